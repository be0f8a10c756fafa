"""What the benchmarks measure with; the benchmarks themselves are run on demand."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from secateur.experiments.subject import random_zeros_

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import deployed_networks  # noqa: E402
from sparse_rivals import Table, check, keep_signal_, parser  # noqa: E402


def network():
    layers = [nn.Conv2d(8, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(1000, 100)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_random_zeros_leave_the_density_that_was_asked_for(density):
    model = random_zeros_(network(), density)
    for layer in (model[0], model[3]):
        deviation = (density * (1 - density) / layer.weight.numel()) ** 0.5
        found = torch.count_nonzero(layer.weight).item() / layer.weight.numel()
        assert found == pytest.approx(density, abs=4 * deviation + 1e-12)
        assert not (layer.weight == 0).logical_and(layer.weight.signbit()).any()


def test_random_zeros_leave_other_layers_and_biases_alone():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_zeros_(model, 0.0, kinds=(nn.Conv2d,))
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["0.weight"]


def test_random_zeros_are_a_function_of_the_seed_and_nested_by_density():
    def kept(density, seed):
        return random_zeros_(nn.Linear(30, 20), density, seed=seed).weight != 0

    assert torch.equal(kept(0.3, seed=1), kept(0.3, seed=1))
    assert not torch.equal(kept(0.3, seed=1), kept(0.3, seed=2))
    assert not (kept(0.1, seed=1) & ~kept(0.3, seed=1)).any()


def test_random_zeros_take_a_share_only():
    with pytest.raises(ValueError, match="density must lie between 0 and 1, got 10"):
        random_zeros_(network(), 10)


def test_signals_pass_through_many_layers_of_random_weights():
    torch.manual_seed(0)
    model, x = nn.Sequential(*[nn.Linear(50, 50) for _ in range(30)]).eval(), torch.randn(2, 50)
    random_zeros_(model, 0.1)
    with torch.no_grad():
        vanished = model(x).std(0).max()
        zeros = [layer.weight == 0 for layer in model]
        y = keep_signal_(model, x)(x)
    assert vanished < 1e-6
    assert y.std(0).max() > 0.1
    assert all(torch.equal(layer.weight == 0, where) for layer, where in zip(model, zeros, strict=True))


# ---- tables that are saved row by row ----


def test_deployed_networks_are_compared_with_every_dense_engine():
    flags = parser(None, repeats=1, engines=deployed_networks.ENGINES)
    assert flags.parse_args([]).engines == ["onnxruntime", "openvino", "compile"]
    assert parser(None, repeats=1).parse_args([]).engines == ["onnxruntime"]


def test_every_deployed_network_has_a_target_with_both_batches_and_numbers_of_threads():
    rows = list(deployed_networks.rows())
    assert len(rows) == 4 * len(deployed_networks.CASES)
    assert len({name for name, *_ in rows}) == len(rows)
    assert {deployed_networks.target(case) for _, case, *_ in rows} == {0.98, 1.0, 1.1, 1.2, 1.3, 1.4}


def test_an_engine_that_is_found_later_is_no_longer_missing(tmp_path):
    measured, layer, x = table(tmp_path / "table.json", engines=["eager"]), nn.Linear(3, 2).eval(), torch.ones(1, 3)
    measured.missing = {"eager": "it was not installed", "openvino": "it is not installed"}
    measured.engines(layer, x)
    assert measured.missing == {"openvino": "it is not installed"}


def test_a_file_names_the_rows_of_the_whole_table(tmp_path):
    path = tmp_path / "table.json"
    options = {"only": "", "repeats": 6, "clock": "cpu", "engines": [], "save": path, "add": False}
    Table(argparse.Namespace(**options), ["a", "b"]).add("a", ROW)
    assert json.loads(path.read_text())["names"] == ["a", "b"]


ROW = {"speedup": 2.0, "interval": [1.9, 2.1], "at_least": 1.5, "reached": True}


def table(path, *, add=False, **settings):
    options = {"only": "", "repeats": 6, "clock": "cpu", "engines": [], "save": path, "add": add}
    return Table(argparse.Namespace(**options | settings))


def test_a_row_says_how_it_was_measured_and_what_it_is_judged_by(tmp_path):
    path = tmp_path / "table.json"
    model, x = random_zeros_(nn.Linear(40, 30).eval(), 0.1), torch.randn(2, 40)
    measured = table(path)
    measured.measure("a", model, x, at_least=1e-9, engines={}, limit=5.0, or_share_of_limit=0.5, kept=120)
    measured.measure("b", model, x, at_least=1e9, engines={}, repeats=7, by_interval=True, plan_s_at_most=60.0)
    saved = json.loads(path.read_text())
    a, b = (saved["rows"][name] for name in "ab")
    own = {"repeats": 6, "threads": 1, "clock": "cpu", "limit": 5.0, "or_share_of_limit": 0.5, "by_interval": False}
    assert own.items() <= a.items()
    assert (a["kept"], a["reached"], set(a["ms"])) == (120, True, {"eager", "sparse"})
    assert {"repeats": 7, "by_interval": True, "plan_s_at_most": 60.0, "reached": False}.items() <= b.items()
    assert saved["torch"] == torch.__version__
    assert measured.options.repeats == 6  # one row's turns are not the next one's


def test_passes_are_taken_together(tmp_path, monkeypatch):
    path, passes = tmp_path / "table.json", iter([[2.0] * 6, [4.0] * 7])

    def take_turns(runs, x, repeats, clock):
        eager = next(passes)
        return {"eager": eager, "sparse": [1.0] * len(eager)}, dict.fromkeys(runs, 1)

    monkeypatch.setattr("sparse_rivals.take_turns", take_turns)
    model, x = random_zeros_(nn.Linear(40, 30).eval(), 0.1), torch.randn(2, 40)
    measured = table(path)
    first = measured.measure("a", model, x, at_least=3.0, engines={})
    assert (first["speedup"], first["repeats"], first["passes"], first["reached"]) == (2.0, 6, 1, False)
    assert measured.wants("a")  # until the last pass
    second = measured.measure("a", model, x, at_least=3.0, engines={})
    assert (second["speedup"], second["repeats"], second["passes"], second["reached"]) == (4.0, 13, 2, True)
    assert second["plan_s"] >= first["plan_s"]
    assert json.loads(path.read_text())["rows"]["a"]["ms"] == {"eager": 4.0, "sparse": 1.0}


def test_every_row_is_in_the_file_as_soon_as_it_is_measured(tmp_path):
    path, rows = tmp_path / "below" / "table.json", {}
    interrupted = table(path)
    for name in "abc":
        rows[name] = ROW
        interrupted.add(name, ROW)
        assert json.loads(path.read_text())["rows"] == rows


def test_adding_keeps_the_rows_of_a_file_and_wants_the_others(tmp_path):
    path = tmp_path / "table.json"
    table(path).add("a", ROW)
    added = table(path, add=True)
    assert [name for name in "abc" if added.wants(name)] == ["b", "c"]
    added.add("b", {**ROW, "speedup": 3.0})
    assert {name: row["speedup"] for name, row in json.loads(path.read_text())["rows"].items()} == {"a": 2.0, "b": 3.0}
    assert table(path).wants("a")  # without --add, all of it is measured again
    assert table(tmp_path / "none.json", add=True).wants("a")


def test_nothing_is_added_to_what_other_versions_measured(tmp_path):
    path = tmp_path / "table.json"
    table(path).add("a", ROW)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"torch": "1.0"}))
    with pytest.raises(SystemExit, match=r"was measured with torch 1\.0, this is .*: start again without --add"):
        table(path, add=True)
    with pytest.raises(SystemExit, match="--add needs a file to add to: name it with --save"):
        table(None, add=True)


def test_an_engine_of_another_version_adds_nothing(tmp_path):
    path, layer, x = tmp_path / "table.json", nn.Linear(3, 2).eval(), torch.ones(1, 3)
    first = table(path, engines=["eager"])
    first.engines(layer, x)
    first.add("a", ROW)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engines": {"eager": "1.0"}}))
    with pytest.raises(SystemExit, match=r"was measured with eager 1\.0"):
        table(path, add=True, engines=["eager"]).engines(layer, x)


def test_a_wrong_answer_ends_a_benchmark():
    check("a", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0001]))
    with pytest.raises(SystemExit, match="a: the output of the sparse network differs from the dense one"):
        check("a", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]))
