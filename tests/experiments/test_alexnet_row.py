"""The paper's AlexNet row: its settings, and the whole run on a small tree in ImageNet's official layout."""

import json
from dataclasses import replace

import pytest
import torch
from official_trees import write_folders
from torch import nn

from secateur import cli, networks
from secateur.data import DATA_SETS
from secateur.experiments import presets
from secateur.methods import Manessi2018
from secateur.networks.network import Network
from secateur.results import PublishedRun, read
from secateur.sibling import SiblingConfig
from secateur.train.recipe import Recipe


def test_the_preset_has_the_settings_that_the_paper_prints():
    found = presets.settings("paper", "alexnet")
    assert found.method == Manessi2018(
        sibling=SiblingConfig(alpha=100, init_quantile=0), rho=1e-11, lambda_t=1e-2, cutoff=1e-3
    )
    assert found.recipe == Recipe(
        epochs=90, batch_size=128, optimizer="sgd", lr=1e-2, bias_lr=2, schedule="step", lambda_wd=5e-4
    )
    rates = [found.recipe.lr * found.recipe.rate_factor(epoch / 90) for epoch in (0, 19, 20, 40, 60, 80, 89)]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-6])


class Small(nn.Module):
    """The names of AlexNet's layers, and next to no weights."""

    def __init__(self, classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.conv1, self.fc8 = nn.Conv2d(3, 4, 7, stride=3), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc8(self.conv1(x).relu().amax((2, 3)).repeat(1, 4))


@pytest.mark.filterwarnings("ignore:.* pictures of imagenet:UserWarning")
def test_one_command_runs_the_row_on_imagenets_layout(tmp_path, monkeypatch, capsys):
    entry = DATA_SETS["imagenet"]
    synsets = dict(list(entry.synsets.items())[:12])
    monkeypatch.setitem(DATA_SETS, "imagenet", replace(entry, synsets=synsets))
    small = Network(name="alexnet", title="", build=Small, input_shape=(3, 16, 16), classes=12, smallest_size=16)
    monkeypatch.setitem(networks.NETWORKS, "alexnet", small)
    usual = presets.settings("paper", "alexnet")
    short = replace(usual, recipe=replace(usual.recipe, epochs=2, batch_size=16))
    monkeypatch.setitem(presets._PRESETS["paper"], "alexnet", short)
    monkeypatch.setattr("secateur.experiments.outcome.Outcome.refuse_guessing", lambda self: None)
    write_folders(tmp_path / "imagenet", synsets, train=5, val=2)
    monkeypatch.chdir(tmp_path)
    words = [
        "reproduce",
        "table1",
        "--network",
        "alexnet",
        "--data",
        "imagenet",
        "--workers",
        "1",
        "--json",
        "--data-root",
    ]
    assert cli.main([*words, str(tmp_path)]) == 0
    [table] = json.loads(capsys.readouterr().out)
    assert [row[0] for row in table["rows"]][1:] == ["alexnet, the paper", "alexnet, secateur paper"]
    assert table["header"][5] == "top-5 error %"
    run = read(PublishedRun, tmp_path / "results" / "alexnet" / "paper" / "manessi2018-seed00.json")
    assert run.test.top5_errors.keys() == run.test.errors.keys() == {"sibling", "theta", "raw", "pruned", "file"}
    assert all(run.test.top5_errors[form] <= error for form, error in run.test.errors.items())
    assert run.result.top5_errors.keys() == run.result.errors.keys()
