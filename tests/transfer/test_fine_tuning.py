"""Fine-tuning learns what features do not show, keeps zeros, and is the same when repeated or continued."""

import numpy as np
import pytest
import torch
from tiny_networks import tiny

from secateur.transfer import fine_tuning
from secateur.transfer.fine_tuning import FineTuneConfig, FineTunedNetwork, fine_tune
from secateur.transfer.study import study
from secateur.transfer.task import Attributes, Classification

COLOURS = np.arange(150) % 3
FAST = FineTuneConfig(epochs=12, lr=(0.02,), batch_size=10)


@pytest.fixture
def classes(pictures):
    return Classification(("red", "green", "blue"), pictures[:60], COLOURS[:60], pictures[60:], COLOURS[60:])


def blind():
    """A network that sees no colours: its features tell nothing about the classes. Half of `hidden` is zero."""
    network = tiny(seed=1, name="blind")
    with torch.no_grad():
        network.model.conv.weight.copy_(network.model.conv.weight.mean(1, keepdim=True).expand(-1, 3, -1, -1))
        network.model.hidden.weight[:, ::2] = 0
    return network


def test_it_learns_what_features_do_not_show(classes, tmp_path):
    found = fine_tune(blind(), classes, FAST, tmp_path / "work")
    assert found.score == found.items.mean() > 0.9
    untrained = fine_tune(blind(), classes, FineTuneConfig(epochs=1, lr=(1e-9,)), tmp_path / "work")
    assert untrained.score < 0.5
    assert not (tmp_path / "work").exists()


def test_attributes_are_learned_from_the_labels_that_are_known(pictures, tmp_path):
    labels = np.where(COLOURS[:, None] == np.arange(2), 1, -1)
    labels[::7] = 0
    task = Attributes(("red", "green"), pictures[:60], labels[:60], pictures[60:], labels[60:], "ap")
    found = fine_tune(blind(), task, FAST, tmp_path / "work")
    assert found.items.shape == (90, 2)
    assert found.score > 0.9


def test_zeros_are_kept_and_the_network_is_left_as_it_was(classes, tmp_path, monkeypatch):
    network, trained = blind(), []
    before = network.digest
    monkeypatch.setattr(fine_tuning, "_answers", lambda model, inputs: trained.append(model) or np.zeros((90, 3)))
    fine_tune(network, classes, FAST, tmp_path / "work")
    weight = trained[0].body.hidden.weight
    assert not weight[:, ::2].any()
    assert weight[:, 1::2].all()
    assert not torch.equal(weight, network.model.hidden.weight)
    del network.__dict__["digest"]
    assert network.digest == before


def test_a_named_layer_and_a_network_without_zeros_are_fine_tuned():
    network = tiny(layer="conv")
    model = FineTunedNetwork(network, 5)
    assert model.head.in_features == network.features == 36
    assert model(torch.zeros(2, 3, 8, 8)).tolist() == [[0] * 5] * 2


def test_the_rate_is_chosen_on_training_pictures_alone(classes, tmp_path, monkeypatch):
    several = FineTuneConfig(epochs=12, lr=(0.02, 1e-9), batch_size=10)
    assert fine_tune(blind(), classes, several, tmp_path / "work").lr == 0.02
    seen = []
    answers = fine_tuning._answers
    monkeypatch.setattr(
        fine_tuning, "_answers", lambda model, inputs: seen.append(len(inputs)) or answers(model, inputs)
    )
    fine_tune(blind(), classes, FineTuneConfig(epochs=1, lr=(1e-9, 2e-9)), tmp_path / "work")
    assert seen == [12, 12, 90]


def test_an_interrupted_training_continues_to_the_same_answers(classes, tmp_path):
    expected = fine_tune(blind(), classes, FAST, tmp_path / "work")

    def stop(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fine_tune(blind(), classes, FAST, tmp_path / "work", progress=stop)
    again = fine_tune(blind(), classes, FAST, tmp_path / "work")
    np.testing.assert_array_equal(again.items, expected.items)


def test_a_study_compares_fine_tuned_networks_and_keeps_their_answers(classes, tmp_path, monkeypatch):
    networks = [tiny(name="dense"), blind()]
    [found] = study(networks, {"colours": classes}, cache=tmp_path / "cache", fine_tune=FAST)
    probe = found.tasks[0].probes[-1]
    assert (probe.probe, probe.lr) == ("fine-tuned", {"dense": 0.02, "blind": 0.02})
    [change] = probe.differences
    assert change.difference == pytest.approx(probe.scores["blind"] - probe.scores["dense"])
    assert change.low <= change.difference <= change.high
    monkeypatch.setattr("secateur.transfer.probing.fine_tune", lambda *_, **__: pytest.fail("computed again"))
    [again] = study(networks, {"colours": classes}, cache=tmp_path / "cache", fine_tune=FAST)
    assert again.tasks[0].probes == found.tasks[0].probes
