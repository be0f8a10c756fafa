"""The command `bench`: what a person sees, what a program reads, and what is refused in one sentence."""

import json
import re
from pathlib import Path

import pytest
import torch
from commands import sentence
from rich.console import Console
from safetensors.torch import save_file

import secateur
from secateur import networks
from secateur.experiments.directory import RunDirectory
from secateur.measure import engines
from secateur.measure.engines import EngineError
from secateur.report.terminal.speed import print_batch
from secateur.run.bench import BatchSpeed, GroupSpeed, LayerSpeed, Limit

SHORT = ("--repeats", "6", "--engines", "eager")


@pytest.fixture(autouse=True)
def _in_a_directory_with_a_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secateur.save(network(), "model.cut", codec="raw")


def network():
    """LeNet-300-100 with 5 % of its weights."""
    model, draw = networks.build("lenet-300-100", seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.children():
            layer.weight.masked_fill_(torch.rand(layer.weight.shape, generator=draw) > 0.05, 0.0)
            layer.weight += 0.0
    return model


def test_a_file_is_timed_layer_by_layer_in_eighty_columns(command):
    code, printed, complained = command("bench", "model.cut", *SHORT, "--batch", "1", "3")
    assert (code, complained) == (0, "")
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "model.cut, lenet-300-100: medians of 6 turns, in milliseconds"
    assert len(re.findall(r"^batch (?:1|3), planned in \d+\.\d s", printed, re.M)) == 2
    for row in (
        r" fc1 +5\.\d% +\d+\.\d+ ",
        r" fc3 +\d\.\d% +\d+\.\d+ ",
        r" whole network +\d+\.\d+ +\d+\.\d+ +\d+\.\d+× ",
    ):
        assert len(re.findall(f"^{row}", printed, re.M)) == 2, row
    words = " ".join(printed.split())
    assert "whole network: the speed-up is the median of ratios within a turn" in words
    assert "Limits are what dense torch reaches here on 1 thread: " in words
    assert "andom weights" not in words


def test_every_number_of_a_table_has_its_place(capsys):
    joined = tuple(LayerSpeed(name, 200, 20, ms, 0.5) for name, ms in (("conv1", 3.0), ("conv2", 1.0)))
    groups = (
        GroupSpeed(joined, "panel 32", 0.8, 0.8, Limit(0.2, "flops")),
        GroupSpeed((LayerSpeed("fc1", 1000, 32, 25.0, 2.0),), "sample", 2.0, 2.0, Limit(1.5, "bytes")),
        GroupSpeed((LayerSpeed("fc2", 10, 6, 0.125, 0.25),), None, 0.25, 0.125, None),
    )
    found = BatchSpeed(
        8, 30.0, 3.0, 10.0, (9.5, 10.5), {"compile": 15.0}, groups, 0.26, 1000, 1500, {"onnxruntime": "no"}
    )
    print_batch(Console(width=80), found, 4000)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "batch 8, planned in 0.3 s"
    assert lines[4:] == [
        "conv1 10.0% 3.000 0.5000 6.00×",
        "conv2 10.0% 1.000 0.5000 2.00×",
        "└ in one call 4.000 0.8000 5.00× panel 32 25% f",
        "fc1 3.2% 25.00 2.000 12.5× sample 75% b",
        "fc2 60.0% 0.1250 (0.2500) dense",
        "everything else 0.8750 0.0750",
        "whole network 30.00 3.000 10.0×",
        "",
        "Sparse 3.000 ms; torch eager 30.00 ms: 10.0× (95 % interval 9.50× to 10.5×)",
        "torch.compile, dense, 15.00 ms: 5.00×",
        "Amdahl's ceiling, if the layers that run sparse took no time: 30.0×; if what was",
        "fused with them, activations and poolings, took none either: 150×",
        "Weights: 4,000 bytes dense, 1,000 sparse (4.00× less); 1,500 with the copy that",
        "is saved",
        "Without ONNX Runtime: no",
    ]


HEADER = {"network": "lenet-300-100", "classes": "10", "input_shape": "1 28 28", "mean": "0.0", "std": "1.0"}


def test_json_is_all_that_is_printed(command):
    code, printed, complained = command("bench", "model.cut", *SHORT, "--batch", "1", "3", "--threads", "1", "--json")
    assert (code, complained) == (0, "")
    read = json.loads(printed)
    assert (read["network"], read["threads"], read["repeats"], read["density"]) == ("lenet-300-100", 1, 6, None)
    assert [speed["batch"] for speed in read["speeds"]] == [1, 3]
    assert [layer["name"] for group in read["speeds"][0]["groups"] for layer in group["layers"]] == [
        "fc1",
        "fc2",
        "fc3",
    ]
    assert read["dense_bytes"] == 4 * (266_200 + 410)


def test_the_result_of_a_run_is_written_to_its_directory(command):
    state = {name: tensor.contiguous() for name, tensor in network().state_dict().items()}
    Path("run").mkdir()
    save_file(state, "run/model.safetensors", HEADER)
    code, printed, _ = command("bench", "run", *SHORT)
    assert code == 0
    assert printed.splitlines()[-1] == "wrote run/speed.json"
    found = RunDirectory(Path("run")).read_speed()
    assert (found.threads, found.batch) == (1, 1)
    assert list(found.layers) == ["fc1.weight", "fc2.weight", "fc3.weight"]
    assert all(times.dense_ms > 0 and times.sparse_ms > 0 for times in found.layers.values())


def test_a_file_can_be_timed_for_the_run_it_belongs_to(command):
    Path("run/compressed").mkdir(parents=True)
    Path("model.cut").rename("run/compressed/model.cut")
    assert command("bench", "run/compressed/model.cut", *SHORT)[0] == 0
    assert not list(Path().rglob("speed.json"))
    code, printed, told = command("bench", "run/compressed/model.cut", *SHORT, "--run", "run", "--json")
    assert (code, told) == (0, "wrote run/speed.json\n")
    assert json.loads(printed)["network"] == "lenet-300-100"
    assert command("bench", "run/compressed", *SHORT)[0] == 0  # a directory that holds a file alone
    assert sorted(Path().rglob("speed.json")) == [Path("run/compressed/speed.json"), Path("run/speed.json")]


def test_a_network_by_name_has_random_weights_and_the_output_says_so(command):
    code, printed, _ = command("bench", "lenet-300-100", *SHORT, "--density", "0.02")
    assert code == 0
    notice = "Random weights, 2 % of them kept in random places: nothing here was trained."
    assert printed.splitlines()[1] == notice
    assert re.search(r"^ fc1 +(1\.9|2\.0|2\.1)% ", printed, re.M)
    read = json.loads(command("bench", "lenet-300-100", *SHORT, "--json")[1])
    assert read["density"] == 0.1


def test_a_dense_network_keeps_its_layers_and_the_output_says_so(command):
    code, printed, _ = command("bench", "lenet-300-100", *SHORT, "--density", "1")
    assert code == 0
    assert re.search(r"^ fc1 +100\.0% +\d+\.\d+ +dense *$", printed, re.M)
    assert "No layer gains by running sparse: the network keeps its own layers" in printed


def test_an_engine_that_is_not_there_is_a_sentence_and_no_failure(command, monkeypatch):
    def absent(model, x):
        raise EngineError("onnxruntime cannot be imported")

    monkeypatch.setitem(engines.ENGINES, "onnxruntime", absent)
    code, printed, _ = command("bench", "model.cut", "--repeats", "6")
    assert code == 0
    assert "Without ONNX Runtime: onnxruntime cannot be imported" in printed


def test_a_dense_engine_that_is_faster_comes_first_and_reasons_last(capsys):
    reasons = {f"fc{k}": f"too small: 0.01 ms dense, 0.0{k} ms sparse" for k in range(2, 7)} | {"words": "has hooks"}
    found = BatchSpeed(1, 9.0, 3.0, 3.0, (2.5, 3.5), {"openvino": 2.0}, (), 0.1, 10, 10, stays_dense=reasons)
    print_batch(Console(width=200), found, 40)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Dense OpenVINO is faster here: 2.000 ms, sparse 3.000 ms"
    first = ", ".join(f"fc{k} (0.01 ms dense, 0.0{k} ms sparse)" for k in (2, 3, 4))
    assert lines[-2:] == [f"Dense, too small: {first} and 2 more", "Dense, has hooks: words"]


def test_an_engine_that_is_there_is_a_rival(command, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "onnxruntime", lambda model, x: ("9.9", model))
    code, printed, _ = command("bench", "model.cut", "--repeats", "6")
    assert code == 0
    assert re.search(r"^ONNX Runtime, dense, \d+\.\d+ ms: \d+\.\d+×$", printed, re.M)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("lenet-55", 2, 'there is no file, run or network "lenet-55": did you mean "lenet-5"?'),
        ("model.cut --density 0.1", 2, "model.cut has its own weights: density is for networks by name"),
        ("lenet-5 --density 1.5", 2, "density must lie between 0 and 1, got 1.5"),
        ("lenet-5 --density nan", 2, "density must lie between 0 and 1, got nan"),
        ("lenet-5 --run here", 2, "lenet-5 would have random weights, which do not belong to here: give a .cut file"),
        ("model.cut --batch 1 0", 2, "batch must be ≥ 1, got 0"),
        ("model.cut --batch --json", 2, "batch needs at least one size, got none"),
        ("model.cut --threads 0", 2, "threads must be ≥ 1, got 0"),
        ("model.cut --repeats 5", 2, "repeats must be ≥ 6, got 5"),
        ("model.cut --engines eager onnx-runtime", 2, 'there is no engine "onnx-runtime": did you mean "onnxruntime"?'),
        ("model.cut --batches 1", 2, 'there is no flag "--batches": did you mean "--batch"?'),
        ("absent.cut", 1, "absent.cut: No such file or directory"),
        ("no/run", 1, "no/run: No such file or directory"),
        ("text.cut", 1, "text.cut"),
        ("empty", 1, "empty/model.safetensors does not exist: give the directory of a finished run"),
        ("model.cut --run absent", 1, "absent is not a directory: give the directory of a run"),
    ],
)
def test_bad_input_is_one_sentence(command, words, code, said):
    Path("text.cut").write_text("no network")
    Path("empty").mkdir()
    found, printed, complained = command("bench", *words.split())
    assert (found, printed) == (code, "")
    assert sentence(complained).startswith(said)


def test_every_flag_is_in_the_help(command):
    code, printed, _ = command("bench", "--help")
    assert code == 0
    for flag in ("--batch", "--threads", "--repeats", "--density", "--engines", "--run", "--json"):
        assert f" {flag}" in printed
