"""`secateur transfer` compares networks from files and modules, and says in one sentence what is wrong."""

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from commands import sentence

import secateur
from secateur import networks
from secateur.transfer.task import Classification


@pytest.fixture
def colours(pictures, monkeypatch, tmp_path):
    """The table of data sets with one task; the current directory is empty."""
    labels = np.arange(150) % 3
    task = Classification(("red", "green", "blue"), pictures[:30], labels[:30], pictures[30:60], labels[30:60])
    sets = ModuleType("secateur.transfer.sets")
    sets.find = lambda name: SimpleNamespace(name=name, load=lambda root: task)
    monkeypatch.setitem(sys.modules, "secateur.transfer.sets", sets)
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        model = networks.build("lenet-300-100", seed=seed, input_shape=(1, 8, 8))
        secateur.save(model, f"{seed}.cut")
    return ("--tasks", "colours", "--data-root", str(tmp_path))


def test_two_files_are_compared_as_a_table_and_as_json(colours, command, tmp_path):
    pytest.importorskip("bokeh", reason="the report extra is not installed")
    files = ("--save", "out/found.json", "--page", "out/found.html")
    code, said, complaint = command("transfer", "0.cut", "1.cut", *colours, *files)
    assert (code, complaint) == (0, "")
    assert "Where the networks disagree" in (tmp_path / "out/found.html").read_text()
    assert "colours" in said
    assert "points with 95 % probability" in said
    code, said, _ = command("transfer", "0.cut", "1.cut", *colours, "--json")
    found = json.loads(said)
    assert code == 0
    saved = json.loads((tmp_path / "out/found.json").read_text())
    assert all(each["tasks"][0].pop("seconds") > 0 for each in (found, saved))
    assert found == saved
    assert found["threads"] >= 1
    assert {"secateur", "torch", "machine"} <= set(found["versions"])
    assert [network["name"] for network in found["networks"]] == ["0", "1"]
    assert found["networks"][0]["features"] == 100


def test_several_networks_are_named_and_compared_in_pairs(colours, command, tmp_path):
    networks = ("dense=0.cut", "ours=1.cut", "theirs=0.cut")
    code, said, _ = command("transfer", *networks, *colours, "--pair", "ours", "theirs", "--json")
    found = json.loads(said)
    assert code == 0
    assert [(mean["network"], mean["against"]) for mean in found["means"]] == [
        ("ours", "dense"),
        ("theirs", "dense"),
        ("ours", "theirs"),
    ]
    assert {network["kept"] for network in found["networks"]} == {64 * 300 + 300 * 100 + 100 * 10}
    _, said, _ = command("transfer", *networks, *colours, "--pair", "ours", "theirs")
    assert "ours − theirs" in said
    assert "50,200 (1.0×)" in said


def test_networks_are_fine_tuned_where_asked(colours, command):
    settings = ("--fine-tune", "--fine-tune-epochs", "2", "--fine-tune-lr", "0.01")
    code, said, _ = command("transfer", "0.cut", "1.cut", *colours, *settings, "--json")
    assert code == 0
    probe = json.loads(said)["tasks"][0]["probes"][-1]
    assert (probe["probe"], probe["lr"]) == ("fine-tuned", {"0": 0.01, "1": 0.01})


def test_the_results_that_are_saved_stand_in_table_3(colours, command):
    tasks = ("--tasks", "flowers102", *colours[2:])
    assert command("transfer", "0.cut", "1.cut", *tasks, "--save", "results/transfer/flowers.json")[0] == 0
    _, said, _ = command("reproduce", "table3", "--json")
    [grid] = json.loads(said)
    assert sum(row[4] == "not run here" for row in grid["rows"]) == 10
    assert "--tasks flowers102" not in grid["note"]
    assert "secateur transfer DENSE PRUNED --tasks cub200 --save" in grid["note"]
    _, said, _ = command("reproduce", "transfer", "--json")
    assert json.loads(said)[0]["title"] == "Transfer, flowers: features on other tasks"


def test_a_module_is_compared_on_sparse_kernels_at_a_named_layer(colours, command, monkeypatch):
    where = "tiny_networks:Tiny"
    code, said, _ = command(
        "transfer", where, f"twin={where}", *colours, "--layer", "hidden", "--sparse", "--half", "--json"
    )
    assert code == 0
    assert json.loads(said)["means"][0]["difference"] == 0


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("resnet-50", "1.cut"), 2, "there is no file, run or pretrained network"),
        (("alexnet-torchvision", "1.cut"), 2, "the pretrained alexnet-torchvision has no weights for"),
        (("0.cut", "2.cut"), 1, "2.cut"),
        (("0.cut", "1.cut", "--fine-tune-lr", "0.1"), 2, "--fine-tune-epochs and --fine-tune-lr need --fine-tune"),
        (("0.cut", "1.cut", "--fine-tune", "--fine-tune-lr", "0"), 2, "lr must be one positive number or more"),
        (("0.cut",), 2, "PRUNED is missing: name one network or more to compare with DENSE"),
        (("0.cut", "=1.cut"), 2, '"=1.cut" is not NAME=SOURCE'),
        (("a=0.cut", "a=1.cut"), 2, 'two networks are called "a": choose names by NAME=SOURCE'),
        (("0.cut", "1.cut", "--pair", "0", "2"), 2, 'there is no network "2" to compare: the networks are 0, 1'),
        (("0.cut", "1.cut", "--layer", "fc9"), 2, 'there is no layer of 0 "fc9": did you mean "fc3"'),
    ],
)
def test_what_is_wrong_is_one_sentence(words, code, expected, colours, command):
    found, _, complaint = command("transfer", *words, *colours)
    assert found == code
    assert expected in sentence(complaint)
