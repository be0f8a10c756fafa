"""Networks are compared on every kind of task."""

import json

import numpy as np
import pytest
import torch
from tiny_networks import tiny

from secateur.data import DataError
from secateur.plain_data import from_plain, to_plain
from secateur.transfer.outcome import TransferStudy
from secateur.transfer.study import study
from secateur.transfer.task import Attributes, Classification, Query, Retrieval

COLOURS = np.arange(150) % 3


def classification(pictures):
    return Classification(("red", "green", "blue"), pictures[:60], COLOURS[:60], pictures[60:], COLOURS[60:])


def attributes(pictures, score):
    labels = np.where(COLOURS[:, None] == np.arange(2), 1, -1)
    labels[::7] = 0
    return Attributes(("red", "green"), pictures[:60], labels[:60], pictures[60:], labels[60:], score)


def retrieval(pictures, score):
    queries = tuple(
        Query(pictures[index], frozenset(range(index % 3, 60, 3)) - {index}, frozenset({index})) for index in range(20)
    )
    return Retrieval(pictures[:60], queries, score)


def compare(pictures, tmp_path, task=None, networks=None, **settings):
    """Return the study of two networks or more on one task."""
    chosen = networks or [tiny(name="dense"), tiny(seed=1, name="pruned")]
    tasks = {"colours": task or classification(pictures)}
    [found] = study(chosen, tasks, cache=tmp_path / "cache", **settings)
    return found


def test_a_network_does_not_differ_from_itself(pictures, tmp_path):
    found = compare(pictures, tmp_path, networks=[tiny(name="dense"), tiny(name="twin")])
    [task] = found.tasks
    assert (task.measure, task.items, [probe.probe for probe in task.probes]) == ("accuracy", 90, ["svm", "neighbours"])
    for probe in task.probes:
        assert probe.scores["dense"] == probe.scores["twin"] > 0.6
        [change] = probe.differences
        assert (change.difference, change.low, change.high, change.p_value) == (0, 0, 0, 1)
        assert change.sentence == "no loss greater than 0.0 points with 95 % probability"
    assert [each.layer for each in task.similarity["twin"]] == ["conv", "hidden", "last"]
    assert all(each.cka == pytest.approx(1) for each in task.similarity["twin"])


def test_networks_of_different_feature_sizes_are_compared(pictures, tmp_path):
    found = compare(pictures, tmp_path, networks=[tiny(name="dense"), tiny(seed=1, units=9, name="wide")])
    assert [network.features for network in found.networks] == [6, 9]
    [change] = found.tasks[0].main.differences
    scores = found.tasks[0].main.scores
    assert change.difference == pytest.approx(scores["wide"] - scores["dense"])
    assert change.low <= change.difference <= change.high
    assert from_plain(TransferStudy, json.loads(json.dumps(to_plain(found)))) == found


def test_pruned_networks_are_compared_with_each_other_where_asked(pictures, tmp_path):
    networks = [tiny(name="dense"), tiny(seed=1, name="ours"), tiny(seed=2, name="theirs")]
    tasks = {"colours": classification(pictures), "search": retrieval(pictures, "ap")}
    *_, found = study(networks, tasks, cache=tmp_path, pairs=[("ours", "theirs")])
    assert found.pairs == (("ours", "dense"), ("theirs", "dense"), ("ours", "theirs"))
    for pair in found.pairs:
        by_task = [task.main.difference(pair) for task in found.tasks]
        mean = found.mean(pair)
        assert mean.difference == pytest.approx(np.mean([each.difference for each in by_task]))
        assert mean.low < mean.difference < mean.high
        # Tasks vary independently, so the mean of two has √(a² + b²) ÷ 2 of their widths.
        widths = [each.high - each.low for each in by_task]
        assert mean.high - mean.low == pytest.approx(np.hypot(*widths) / 2, rel=0.1)
    with pytest.raises(ValueError, match='there is no network "mine" to compare: the networks are dense, ours, theirs'):
        next(study(networks, tasks, cache=tmp_path, pairs=[("mine", "theirs")]))


def test_tasks_with_the_same_test_pictures_vary_together(pictures, tmp_path):
    networks = [tiny(name="dense"), tiny(seed=1, name="pruned")]
    tasks = {"colours": classification(pictures), "again": classification(pictures)}
    first, second = study(networks, tasks, cache=tmp_path)
    [alone], [mean] = first.means, second.means
    assert (alone.low, alone.high) == (mean.low, mean.high)


def test_the_weights_kept_are_counted(pictures, tmp_path):
    pruned = tiny(seed=1, name="pruned")
    with torch.no_grad():
        pruned.model.hidden.weight[:3] = 0
    found = compare(pictures, tmp_path, networks=[tiny(name="dense"), pruned])
    weights = 3 * 4 * 9 + 36 * 6 + 6 * 3
    assert [(network.weights, network.kept) for network in found.networks] == [
        (weights, weights),
        (weights, weights - 108),
    ]


def test_a_study_continues_where_it_was_interrupted(pictures, tmp_path, monkeypatch):
    networks = [tiny(name="dense"), tiny(seed=1, name="pruned")]
    tasks = {"colours": classification(pictures), "search": retrieval(pictures, "ap")}
    running = study(networks, tasks, cache=tmp_path)
    first = next(running)
    monkeypatch.setattr("secateur.transfer.probing.classify_by_svm", lambda *_: pytest.fail("computed again"))
    again = study([*networks, tiny(name="third")], tasks, cache=tmp_path)
    assert next(again).tasks[0].main.scores == {
        **first.tasks[0].main.scores,
        "third": first.tasks[0].main.scores["dense"],
    }
    assert next(running).tasks[0].probes == first.tasks[0].probes


@pytest.mark.parametrize(("score", "measure"), [("ap11", "mAP (11 points)"), ("ap", "mAP"), ("auc", "mAUC")])
def test_attributes_are_compared(score, measure, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("secateur.transfer.study.swap_test", lambda *_, **__: 0.5)
    [task] = compare(pictures, tmp_path, attributes(pictures, score)).tasks
    [change] = task.main.differences
    assert task.measure == measure
    assert change.low <= change.difference <= change.high
    assert change.difference == pytest.approx(task.main.scores["pruned"] - task.main.scores["dense"])
    assert len(task.main.penalties["dense"]) == 2


@pytest.mark.parametrize(("score", "measure"), [("ap", "mAP"), ("recall@4", "Recall@4")])
def test_retrieval_is_compared(score, measure, pictures, tmp_path):
    steps = []
    found = compare(pictures, tmp_path, retrieval(pictures, score), progress=lambda *step: steps.append(step))
    [task] = found.tasks
    [probe] = task.probes
    assert (task.measure, task.items, probe.probe, probe.penalties) == (measure, 20, "distance", {})
    assert probe.scores["dense"] > 0.4
    assert steps[-1] == ("colours", 120, 120)  # the queries are among the pictures that are searched


def test_a_task_without_test_pictures_is_refused(pictures, tmp_path):
    empty = Classification(("a", "b"), pictures[:2], COLOURS[:2], (), COLOURS[:0])
    with pytest.raises(DataError, match="colours has no test pictures"):
        compare(pictures, tmp_path, empty)


def test_damaged_answers_are_named(pictures, tmp_path):
    compare(pictures, tmp_path)
    for path in (tmp_path / "cache").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"\.npz is damaged: delete it"):
        compare(pictures, tmp_path)
