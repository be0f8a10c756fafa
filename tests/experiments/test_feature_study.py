"""AlexNet's linear layers on features of its convolutions, with a small network in its place."""

from dataclasses import replace

import pytest
import torch
from official_trees import write_folders
from torch import nn

from secateur import networks
from secateur.data import DATA_SETS, Scaling
from secateur.experiments.models import load_state
from secateur.experiments.presets import run_name
from secateur.experiments.studies import feature_study
from secateur.experiments.studies.feature_study import run_feature_study
from secateur.experiments.studies.feature_summary import FeatureStudy
from secateur.experiments.studies.grid import Places
from secateur.files import load
from secateur.networks.network import Network
from secateur.pretrained import Start
from secateur.report.tables.features import feature_tables
from secateur.results import PublishedRun, read
from secateur.train.recipe import Recipe

SHORT = Recipe(epochs=2, batch_size=16, optimizer="sgd", lr=0.01)
STUDY = FeatureStudy(
    data="imagenette",
    ratios=(2, 3),
    further_epochs=1,
    scratch_ratio=2,
    whole_ratio=2,
    rival_ratio=2,
    recipe=SHORT,
    whole_recipe=SHORT,
    input_shape=(3, 16, 16),
)


class Small(nn.Module):
    """The names of torchvision's AlexNet, and next to no weights."""

    def __init__(self, classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.features = nn.Sequential(nn.Conv2d(3, 4, 5, stride=2), nn.ReLU())
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@pytest.fixture
def small(tmp_path, monkeypatch):
    shape = STUDY.input_shape
    entry = Network(name=feature_study.NETWORK, title="", build=Small, input_shape=shape, classes=10, smallest_size=16)
    monkeypatch.setitem(networks.NETWORKS, feature_study.NETWORK, entry)
    monkeypatch.setattr("secateur.experiments.outcome.Outcome.refuse_guessing", lambda self: None)
    state = {name: value for name, value in Small(10, shape).state_dict().items() if name.startswith("features.")}
    start = Start("made up", state, Scaling((0.5,) * 3, (0.2,) * 3), ("classifier.",))
    monkeypatch.setattr(feature_study, "read_start", lambda *_: start)
    write_folders(tmp_path / "imagenette", DATA_SETS["imagenette"].synsets, train=6, val=2)
    return Places(tmp_path / "results", tmp_path / "runs", tmp_path)


@pytest.mark.filterwarnings("ignore:.* pictures of imagenette:UserWarning")
def test_the_study_goes_from_features_to_the_whole_network_and_does_not_repeat_itself(small):
    assert list(run_feature_study(STUDY, small, part="features")) == []
    [train, test] = sorted((small.data_root / "features").iterdir(), reverse=True)
    assert (train.stat().st_size, test.stat().st_size) == (60 * (4 + 2 * 16), 20 * (4 + 2 * 16))
    paths = list(run_feature_study(STUDY, small))
    assert [path.name.removesuffix("-seed00.json") for path in paths] == [
        *(
            "dense",
            "dense-longer",
            "budget-2x",
            "dense+budget-2x",
            "dense+budget+budget-3x",
            "han2015+few-values",
            "budget-whole",
            "dense-whole",
        )
    ]
    assert list(run_feature_study(STUDY, small)) == []
    runs = [read(PublishedRun, path) for path in paths]
    assert [len(run.result.layers) for run in runs] == [2, 2, 2, 2, 2, 2, 3, 3]
    assert [run.result.ratio for run in runs] == pytest.approx([1, 1, 2, 2, 3, 2, 2, 1], rel=0.02)
    assert all(run.test.images == 20 for run in runs)
    assert [run.result.job.start for run in runs[-2:]] == [
        f"{run_name(job)}/whole.safetensors" for job in (STUDY.pruned_job(2), STUDY.dense_job)
    ]
    first, second = feature_tables(small.results, STUDY)
    assert [row[0] for row in first.rows][-2:] == [
        "the whole network, dense, trained end to end",
        "the whole network, pruned end to end",
    ]
    assert len(second.rows) == 2 * 4 + 3  # of those that are pruned
    assert [row[0].rpartition(": ")[2] for row in second.rows[-3:]] == ["conv1", "fc6", "classifier.3.weight"]


@pytest.mark.filterwarnings("ignore:.* pictures of imagenette:UserWarning")
def test_linear_layers_leave_the_whole_network_in_a_file_and_the_rival_continues_the_dense_ones(small):
    for part in ("dense", "rival"):
        list(run_feature_study(STUDY, small, part=part))
    dense, rival = (
        feature_study.RunDirectory(small.runs / run_name(job)) for job in (STUDY.dense_job, STUDY.rival_job)
    )
    assert rival.journal("train").log.read_bytes() == dense.journal("train").log.read_bytes()
    whole = load(dense.path / feature_study.WHOLE_FILE)
    assert torch.equal(whole.classifier[1].weight, load_state(dense.model)["classifier.1.weight"])
    assert torch.equal(whole.features[0].weight, feature_study.read_start().state["features.0.weight"])


@pytest.mark.filterwarnings("ignore:.* pictures of imagenette:UserWarning")
def test_a_ratio_continues_the_layers_of_the_one_before(small):
    list(run_feature_study(STUDY, small, part="pruned"))
    first, second = (feature_study.RunDirectory(small.runs / run_name(STUDY.pruned_job(one))) for one in (2, 3))
    assert [log.name for log in second.logs()][:-1] == [log.name for log in first.logs()]
    for log in first.logs():
        assert (second.path / log.name).read_bytes() == log.read_bytes()
    assert len(second.logs()[-1].read_text().splitlines()) == STUDY.further_epochs


@pytest.mark.filterwarnings("ignore:.* pictures of imagenette:UserWarning")
def test_the_whole_network_starts_with_the_function_of_its_parts(small):
    [path, _] = run_feature_study(STUDY, small, part="pruned")
    run = read(PublishedRun, path)
    start = feature_study._joined(
        feature_study.read_start(), feature_study.RunDirectory(small.runs / run_name(STUDY.pruned_job(2)))
    )
    first = replace(STUDY, whole_recipe=replace(SHORT, epochs=0)).whole_job(start)
    finished = feature_study.run(first, small.runs, data_root=small.data_root)
    assert finished.read_result().errors["start"] == pytest.approx(run.result.errors["file"], abs=10)


def test_convolutions_answer_what_the_network_computes_before_its_linear_layers(small):
    start = feature_study.read_start()
    convolutions, shape = feature_study.convolutions_of(start, 10, STUDY.input_shape)
    model = Small(10, STUDY.input_shape)
    start.fill(model)
    x = torch.randn(3, 3, 16, 16)
    assert shape == (4, 2, 2)
    torch.testing.assert_close(convolutions(x), model.avgpool(model.features(x)))
