import copy
import itertools
import json
import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur import models
from secateur.cli import main
from secateur.experiments import rival
from secateur.experiments.job import run
from secateur.experiments.reproduce import result_path, run_missing
from secateur.experiments.rundir import RunDirectory, RunError
from secateur.experiments.standings import standings
from secateur.measure import count
from secateur.methods import METHODS, DeepCompression, Dense, Han2015, Manessi2018
from secateur.methods.han2015 import (
    adjust_dropout_,
    cut_,
    dropout_ratio,
    kinds,
    layers,
    others_fixed,
    read_dropouts,
    threshold,
)
from secateur.report.tables import rival_table, stages_table
from secateur.train.loop import Silent, TrainConfig

weights = st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=40).map(torch.tensor)


def linear(*rows):
    """A linear layer with these weights."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight.data.copy_(torch.tensor(rows))
    return layer


def small_network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 3)
    )


def train(model):
    """Take a few steps that decay weights too, as a retraining does."""
    inputs, labels = torch.randn(24, 1, 6, 6), torch.arange(24) % 3
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2, weight_decay=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def carry_out(method, model, after=lambda stage: None):
    """Train every stage of a method and return the finished network."""
    stages = method.stages(model)
    while True:
        try:
            stage = next(stages)
        except StopIteration as end:
            return end.value
        train(stage.model)
        after(stage)


# Where Han et al. cut


def test_a_threshold_is_the_quality_times_the_standard_deviation():
    assert threshold(torch.tensor([[3.0, -3.0], [1.0, -1.0]]), 0.5) == pytest.approx(0.5 * math.sqrt(5))


def test_weights_that_are_gone_have_no_part_in_the_standard_deviation():
    assert threshold(torch.tensor([3.0, -3.0, 0.0, 0.0, 0.0]), 1.0) == pytest.approx(3)


def test_each_layer_is_cut_at_its_own_standard_deviation():
    model = nn.Sequential(linear([3.0, -3.0], [1.0, -1.0]), linear([0.3, 0.1], [-0.3, -0.1]), linear([2.0, -2.0]))
    cut_(model, 0.9, "fc")
    assert model[0].weight.tolist() == [[3, -3], [0, 0]]
    assert torch.equal(model[1].weight != 0, torch.tensor([[True, False], [True, False]]))
    assert model[2].weight.tolist() == [[2, -2]]


@given(weight=weights, quality=st.floats(0.1, 1))
def test_a_quality_of_at_most_one_empties_no_layer(weight, quality):
    model = nn.Sequential(linear(weight.tolist()))
    cut_(model, quality, "fc")
    assert bool(model[0].weight.any()) == bool(weight.any())


@given(weight=weights, quality=st.floats(0.1, 1), exponent=st.integers(-6, 6))
def test_the_scale_of_a_layer_does_not_matter(weight, quality, exponent):
    model = nn.Sequential(linear(weight.tolist()), linear((weight * 2.0**exponent).tolist()))
    cut_(model, quality, "fc")
    assert torch.equal(model[0].weight != 0, model[1].weight != 0)


def test_a_layer_that_would_lose_everything_is_named():
    with pytest.raises(ValueError, match=r'"0" would lose all of its weights.*smaller quality'):
        cut_(nn.Sequential(linear([1.0, -1.0])), 1.5, "fc")


def test_a_kind_is_cut_and_the_other_left_alone():
    model = small_network()
    before = model[0].weight.clone()
    cut_(model, 0.5, "fc")
    assert torch.equal(model[0].weight, before)
    assert not model[3].weight.all()
    cut_(model, 0.5, "conv")
    assert not model[0].weight.all()


def test_a_tied_weight_is_cut_once():
    first = linear([4.0, -4.0], [2.0, -2.0])
    second = nn.Linear(2, 2)
    second.weight = first.weight
    assert len(list(layers(nn.Sequential(first, second), "fc"))) == 1


# Rounds


def test_zeros_never_come_back_and_every_round_adds_some():
    masks = []
    carry_out(
        Han2015(quality=0.9, rounds=2),
        small_network(),
        lambda stage: masks.append([weight != 0 for kind in ("fc", "conv") for _, weight in layers(stage.model, kind)]),
    )
    for earlier, later in itertools.pairwise(masks):
        assert all(not (new & ~old).any() for old, new in zip(earlier, later, strict=True))
        assert sum(int(new.sum()) for new in later) < sum(int(old.sum()) for old in earlier)


def test_survivors_start_a_round_with_the_values_they_had():
    stages = Han2015(quality=0.5, rounds=1).stages(nn.Sequential(nn.Linear(9, 9)))
    dense = next(stages).model[0].weight.detach().clone()
    left = next(stages).model[0].weight
    assert torch.equal(left, torch.where(left != 0, dense, 0))


def test_a_round_goes_through_linear_layers_and_then_convolutions():
    names = []
    carry_out(Han2015(quality=0.5, rounds=2), small_network(), lambda stage: names.append((stage.name, stage.phase)))
    assert names == [
        ("train", "train"),
        ("quality=0.5-round=1-fc", "fine-tune"),
        ("quality=0.5-round=1-conv", "fine-tune"),
        ("quality=0.5-round=2-fc", "fine-tune"),
        ("quality=0.5-round=2-conv", "fine-tune"),
    ]


def test_while_one_kind_is_retrained_the_other_stays_as_it_is():
    stages, moved = Han2015(quality=0.5, rounds=1).stages(small_network()), []
    next(stages)
    for stage in stages:
        before = copy.deepcopy(stage.model)
        train(stage.model)
        changed = [
            not torch.equal(new, old)
            for index in (0, 3, 6)
            for new, old in (
                (stage.model[index].weight, before[index].weight),
                (stage.model[index].bias, before[index].bias),
            )
        ]
        moved.append(changed)
    assert moved == [[False, False, True, True, True, True], [True, True, False, False, False, False]]


def test_a_network_of_one_kind_is_retrained_whole():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    with others_fixed(model, "fc"):
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_was_fixed_before_is_fixed_after():
    model = small_network()
    model[0].bias.requires_grad_(False)
    with others_fixed(model, "fc"):
        assert not model[0].weight.requires_grad
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["0.bias"]


def test_a_finished_network_can_be_trained_whole():
    finished = carry_out(Han2015(quality=0.5, rounds=1), small_network())
    assert all(parameter.requires_grad for parameter in finished.parameters())


# Dropout


@pytest.mark.parametrize(("left", "ratio"), [(100, 0.5), (25, 0.25), (1, 0.05), (0, 0.0)])
def test_dropout_shrinks_with_the_root_of_the_connections(left, ratio):
    assert dropout_ratio(0.5, 100, left) == pytest.approx(ratio)


def test_a_dropout_follows_the_layer_before_it_and_starts_from_its_first_ratio():
    model = nn.Sequential(linear([4.0, -4.0], [2.0, -2.0]), nn.Dropout(0.4), linear([1.0, 1.0]), nn.Dropout(0.2))
    dropouts = read_dropouts(model)
    for _ in range(2):
        model[0].weight.data[1] = 0
        adjust_dropout_(model, dropouts)
        assert model[1].p == pytest.approx(0.4 * math.sqrt(0.5))
        assert model[3].p == 0.2


def test_rounds_adjust_dropout():
    finished = carry_out(Han2015(quality=0.8, rounds=2), small_network())
    left = int(finished[3].weight.count_nonzero()) / finished[3].weight.numel()
    assert 0 < finished[4].p == pytest.approx(0.5 * math.sqrt(left))


# Every method of the table


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_first_and_returns_a_plain_network_of_the_same_class(name):
    model, phases = small_network(), []
    kind, keys = type(model), list(model.state_dict())
    finished = carry_out(METHODS[name](), model, lambda stage: phases.append(stage.phase))
    assert phases[0] == "train"
    assert set(phases[1:]) <= {"fine-tune"}
    assert (type(finished), list(finished.state_dict())) == (kind, keys)
    assert (count(finished).prunable.zeros == 0) == (name == "dense")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_settings(name):
    assert METHODS[name]() == METHODS[name](**{f.name: getattr(METHODS[name](), f.name) for f in fields(METHODS[name])})
    assert hash(METHODS[name]()) == hash(METHODS[name]())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"quality": 0.0}, "quality must be positive"), ({"quality": math.nan}, "quality"), ({"rounds": -1}, "rounds")],
)
def test_settings_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Han2015(**settings)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (DeepCompression, {"quality": -1}),
        (DeepCompression, {"fc_levels": 0}),
        (DeepCompression, {"conv_levels": 1 << 16}),
        (Manessi2018, {"cutoff": -1}),
    ],
)
def test_settings_are_refused_before_hours_of_training(method, settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must"):
        method(**settings)


def test_the_dropout_of_alexnet_follows_its_weights():
    assert len(read_dropouts(models.build("alexnet"))) == 2


def test_a_network_with_nothing_to_cut_is_refused():
    with pytest.raises(ValueError, match="LayerNorm has no linear or convolution layer"):
        next(Han2015().stages(nn.LayerNorm(3)))


def test_a_network_names_its_kinds_in_the_order_of_a_round():
    assert kinds(small_network()) == ["fc", "conv"]
    assert kinds(nn.Sequential(nn.Linear(2, 2))) == ["fc"]


# The experiment

TRAIN = TrainConfig(epochs=2, fine_tune_epochs=1, fine_tune_lr=1e-4, batch_size=100)


@pytest.fixture
def digits(monkeypatch):
    """The rival in miniature: other settings and a data set that is already there."""
    monkeypatch.setattr(rival, "_TRAIN", {"lenet-300-100": TRAIN, "lenet-5": TRAIN})
    monkeypatch.setattr(rival, "_QUALITIES", (0.3, 0.8))
    monkeypatch.setattr(rival, "_MOST_ROUNDS", 2)
    monkeypatch.setattr(rival.job, "__defaults__", (0, "digits"))
    return rival.job("lenet-300-100")


def follow(job, method, runs):
    return [point.record for point in rival.points(job, method, runs)]


def same_parameters(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def without_time(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


class Counter(Silent):
    """An observer that counts the steps it is told of."""

    taken = 0

    def step(self, phase, done, total):
        self.taken += 1


def test_every_gradient_step_is_counted(digits, tmp_path):
    counter, counted = Counter(), []
    for point in rival.points(digits, Han2015(quality=0.5, rounds=2), tmp_path, observer=counter):
        counted.append((point.record["steps"], counter.taken))
    assert counted == [(24, 24), (36, 36), (48, 48)]  # 1,200 images, 100 a step; two epochs, then one a round


class Killer(Silent):
    """An observer that ends the run in the middle of a round."""

    def step(self, phase, done, total):
        if phase == "fine-tune" and done == 3:
            raise KeyboardInterrupt


def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(digits, tmp_path):
    method = Han2015(quality=0.5, rounds=2)
    whole = list(rival.points(digits, method, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        list(rival.points(digits, method, tmp_path / "killed", observer=Killer()))
    resumed = list(rival.points(digits, method, tmp_path / "killed"))
    assert without_time(point.record for point in resumed) == without_time(point.record for point in whole)
    assert same_parameters(resumed[-1].model, whole[-1].model)


def test_the_loop_leaves_a_fixed_kind_alone_and_can_be_stopped_there(digits, tmp_path):
    job, method = rival.job("lenet-5"), Han2015(quality=0.5, rounds=1)
    networks = [copy.deepcopy(point.model) for point in rival.points(job, method, tmp_path)]
    again = [copy.deepcopy(point.model) for point in rival.points(job, method, tmp_path)]
    dense, fc, conv = networks
    assert torch.equal(fc.conv2.weight, dense.conv2.weight)
    assert not torch.equal(fc.fc3.bias, dense.fc3.bias)
    assert torch.equal(conv.fc3.weight, fc.fc3.weight)
    assert not torch.equal(conv.conv2.bias, fc.conv2.bias)
    assert same_parameters(conv, again[-1])


def test_two_qualities_share_their_dense_network(digits, tmp_path):
    first = follow(digits, Han2015(quality=0.5, rounds=1), tmp_path)
    checkpoint = RunDirectory(tmp_path / digits.name).journal("train").checkpoint
    written = checkpoint.stat().st_mtime_ns
    second = follow(digits, Han2015(quality=0.9, rounds=1), tmp_path)
    assert second[0] == first[0]
    assert checkpoint.stat().st_mtime_ns == written
    assert second[1]["kept"] < first[1]["kept"]


def test_a_dense_method_ends_where_the_rounds_begin(digits, tmp_path):
    (dense,) = follow(digits, Dense(), tmp_path)
    assert dense == follow(digits, Han2015(quality=0.5, rounds=0), tmp_path)[0]


def test_an_ordinary_run_refuses_the_rival(digits, tmp_path):
    with pytest.raises(ValueError, match="reproduce rival"):
        run(digits, tmp_path)


def places(tmp_path):
    return {"results": tmp_path / "results", "runs": tmp_path / "runs", "data_root": None}


def test_the_search_chooses_the_fewest_weights_that_cost_no_more_than_tolerated(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(rival, "_TOLERATED", 1.0)
    path = rival.search_quality("lenet-300-100", **places(tmp_path))
    search = json.loads(path.read_text())
    good = [entry for entry in search["history"] if entry["error"] <= search["dense"]["error"] + 1.0]
    best = min(good, key=lambda entry: entry["kept"])
    assert search["chosen"] == {"quality": best["quality"], "rounds": best["rounds"]}
    assert rival.chosen_method(tmp_path / "results", "lenet-300-100") == Han2015(**search["chosen"])


def test_the_search_counts_the_dense_network_once_and_all_that_was_tried(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(rival, "_TOLERATED", 100.0)
    search = json.loads(rival.search_quality("lenet-300-100", **places(tmp_path)).read_text())
    per_epoch = search["dense"]["steps"] // 2
    assert len(search["history"]) == 4  # two qualities, two rounds each
    assert search["steps"] == (2 + 4) * per_epoch


def test_a_quality_that_has_lost_too_much_is_given_up(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(rival, "_TOLERATED", -100.0)
    with pytest.raises(RunError, match="no quality of"):
        rival.search_quality("lenet-300-100", **places(tmp_path))
    tried = sorted(path.name for path in (tmp_path / "runs" / digits.name).glob("quality*.jsonl"))
    assert tried == ["quality=0.3-round=1-fc.jsonl", "quality=0.8-round=1-fc.jsonl"]


def test_without_a_search_there_is_nothing_to_run(digits, tmp_path):
    with pytest.raises(RunError, match="makes the search first"):
        rival.run_and_publish(digits, tmp_path / "x.json", **places(tmp_path))


def test_a_seed_is_published_with_the_error_after_every_stage(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(rival, "_TOLERATED", 100.0)
    rival.search_quality("lenet-300-100", **places(tmp_path))
    (path,) = run_missing([("han2015", replace(digits, seed=1))], workers=1, **places(tmp_path))
    assert path == result_path(tmp_path / "results", "han2015", replace(digits, seed=1))
    result = json.loads(path.read_text())
    assert [stage["stage"] for stage in result["stages"]] == [
        "train",
        "quality=0.8-round=1-fc",
        "quality=0.8-round=2-fc",
    ]
    assert result["kept"] == sum(layer["kept"] for layer in result["layers"]) == result["stages"][-1]["kept"]
    assert set(result["test"]["error"]) == {"dense", "pruned", "final"}


def test_sharing_and_coding_go_on_from_a_published_seed(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(rival, "_TOLERATED", 100.0)
    rival.search_quality("lenet-300-100", **places(tmp_path))
    (path,) = run_missing([("han2015", digits)], workers=1, **places(tmp_path))
    pruned = json.loads(path.read_text())
    content = rival.add_sharing_and_coding(path, runs=tmp_path / "runs", data_root=None)
    assert content == json.loads(path.read_text())
    assert content["bytes"] == (tmp_path / "runs" / digits.name / "model.cut").stat().st_size
    assert content["stages"][:-1] == pruned["stages"]
    assert content["stages"][-1]["kept"] == pruned["kept"]
    errors = content["test"]["error"]
    assert errors["coded"] == errors["shared"]
    assert {key: errors[key] for key in pruned["test"]["error"]} == pruned["test"]["error"]


def test_a_network_without_settings_is_refused():
    with pytest.raises(ValueError, match='settings for lenet-300-100, lenet-5, not for "vgg"'):
        rival.job("vgg")


# The table


def published(results, method, seed, *, error, kept, dense=2.0, **more):
    name = "han2015" if method == "han2015" else "paper"
    path = results / "lenet-300-100" / name / f"{method}-seed{seed:02d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    train = {"epochs": 3, "batch_size": 100}
    content = {
        "job": {"network": "lenet-300-100", "method": method, "seed": seed, "sibling": {}, "train": train},
        "training_images": 950,
        "kept": kept,
        "ratio": 266200 / kept,
        "test": {"error": {"final": error, "dense": dense}},
        "seconds": {"train": 60.0},
    }
    path.write_text(json.dumps(content | more))


def test_the_three_claims_stand_side_by_side(tmp_path):
    for seed in (0, 1):
        published(tmp_path, "han2015", seed, error=2.0 + seed, kept=20_000, steps=50, seconds=120.0)
        published(tmp_path, "prune", seed, error=2.8, kept=10_000)
        published(tmp_path, "dense", seed, error=2.7, kept=266_200)
    (tmp_path / "lenet-300-100" / "han2015" / "search.json").write_text(json.dumps({"steps": 300, "seconds": 600.0}))
    theirs, ours = standings(tmp_path, "lenet-300-100")
    assert (theirs.steps, theirs.search_steps, theirs.search_seconds) == (50, 300, 600.0)
    assert (ours.steps, ours.search_steps) == (30, None)  # three epochs of ten steps
    assert theirs.difference == pytest.approx((0.5, 0.5))
    assert ours.difference == pytest.approx((0.1, 0.0))
    grid = rival_table(tmp_path, ("lenet-300-100",))
    assert grid.rows[2][4:] == ("20,000 ± 0", "13.3× ± 0.0", "50 (300)", "2.0 ± 0.0 (10.0)")
    assert grid.rows[3][6:] == ("30", "1.0 ± 0.0")
    assert "keeps 0.50 times the weights" in grid.note
    assert "an error 0.30 points higher" in grid.note
    assert "0.60 times the steps." in grid.note


def test_the_table_shows_what_is_there(tmp_path, capsys):
    assert main(["reproduce", "rival", "--results", str(tmp_path), "--json"]) == 0
    grid, stages = json.loads(capsys.readouterr().out)
    assert [row[0] for row in grid["rows"][:2]] == [
        "lenet-300-100, Han et al. as published",
        "lenet-300-100, the paper as published",
    ]
    assert (len(grid["rows"]), stages["rows"]) == (4, [])


def test_the_error_after_each_stage_is_shown_when_every_seed_has_it(tmp_path):
    later = {"final": 2.0, "dense": 1.8, "pruned": 2.0, "shared": 2.1, "coded": 2.1}
    published(tmp_path, "han2015", 0, error=2.0, kept=20_000, test={"error": later}, bytes=27_000)
    (row,) = stages_table(tmp_path, ("lenet-300-100", "lenet-5")).rows
    assert row == ("lenet-300-100", "1", "1.80", "2.00", "2.10", "2.10", "27.0")
    published(tmp_path, "han2015", 1, error=2.0, kept=20_000, test={"error": {"final": 2.0, "dense": 1.8, "pruned": 2}})
    (row,) = stages_table(tmp_path, ("lenet-300-100",)).rows
    assert row[3:] == ("2.00 ± 0.00", "not run", "not run", "not run")


def test_a_single_seed_has_no_spread(tmp_path):
    published(tmp_path, "han2015", 0, error=2.5, kept=20_000, steps=50, seconds=120.0)
    row = rival_table(tmp_path, ("lenet-300-100",)).rows[2]
    assert row[1:] == ("1", "2.50", "+0.50", "20,000", "13.3×", "50", "2.0")
