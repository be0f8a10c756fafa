"""Runs on data of another module, named as `package.module:callable`."""

from pathlib import Path

import pytest
import torch

from secateur.cli import main
from secateur.data import DataError
from secateur.experiments.directory import newest_finished
from secateur.experiments.imported_data import load_parts, sizes_of
from secateur.networks import NetworkError

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def net(num_classes=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, num_classes))

def images(number, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (number,), generator=generator)
    return TensorDataset(torch.randn(number, 1, 6, 6, generator=generator) + labels.view(-1, 1, 1, 1), labels)

def sets():
    return images(96, 0), images(32, 1), images(32, 2)

def two_sets():
    return sets()[:2]

def failing():
    raise KeyError("no such file")

def one_set():
    return images(8, 0)

number = 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mydata.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "mydata"


def prune(data):
    settings = ["--ratio", "2", "--epochs", "4", "--lr", "0.02", "--batch-size", "16"]
    return main(["prune", "mydata:net", "--data", data, *settings])


def test_a_run_is_trained_evaluated_and_timed(module, capsys):
    assert prune("mydata:sets") == 0
    directory = newest_finished(Path("runs"))
    assert directory.read_result().ratio >= 2
    assert main(["evaluate", str(directory.path)]) == 1
    assert "--trust mydata" in capsys.readouterr().err
    assert main(["evaluate", str(directory.path), "--trust", "mydata"]) == 0
    assert directory.read_test().images == 32


def test_without_test_data_evaluate_says_so(module, capsys):
    assert prune("mydata:two_sets") == 0
    assert main(["evaluate", "--trust", "mydata"]) == 1
    assert "return (train, validation, test)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mydata:failing", "failed: KeyError: 'no such file'"),
        ("mydata:one_set", "must return training and validation data"),
        ("mydata:number", "is of type int, not a function that returns data sets"),
    ],
)
def test_functions_that_return_no_data_are_refused(module, name, said):
    with pytest.raises(DataError, match=said):
        load_parts(name, ["mydata"])


def test_nothing_is_imported_without_trust(module):
    with pytest.raises(NetworkError, match="nothing was imported"):
        load_parts("mydata:sets", [])


def test_classes_and_shape_come_from_the_data_set():
    class Named(list):
        classes = ("a", "b")

    assert sizes_of(Named([(torch.zeros(3, 4, 5), 1)])) == (2, (3, 4, 5))
    assert sizes_of([{"x": 1}]) == (None, None)
