"""A run that starts from the weights of another one is compared with them before it prunes."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch

from secateur import networks
from secateur.experiments.evaluate import evaluate
from secateur.experiments.models import load_model, read_recorded
from secateur.experiments.presets import run_name
from secateur.experiments.reference import find_reference, needs_training
from secateur.experiments.runner import run
from secateur.job import InputConfig, Job
from secateur.methods import METHODS, Dense, Han2015, Manessi2018
from secateur.train.observers import Silent
from secateur.train.recipe import Recipe

DENSE = Job(
    network="lenet-300-100",
    data="digits",
    methods=(Dense(),),
    recipe=Recipe(epochs=3),
    inputs=InputConfig(scaling="standard"),
)
PRUNE = replace(DENSE, methods=(Manessi2018(rho=0.2),), recipe=Recipe(epochs=1), inputs=InputConfig())


class Notes(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    torch.set_num_threads(1)
    return run(DENSE, tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def notes():
    return Notes()


@pytest.fixture(scope="module")
def started(dense, notes, tmp_path_factory):
    job = replace(PRUNE, start=str(dense.model.resolve()))
    return run(job, tmp_path_factory.mktemp("started"), observer=notes)


def test_the_error_before_pruning_is_that_of_the_weights_it_starts_from(dense, started):
    errors = started.read_result().errors
    assert list(errors) == ["dense", "sibling", "theta", "raw", "pruned", "file"]
    assert errors["dense"] == dense.read_result().error
    assert started.read_result().kept_by_form["dense"] == 266_200


def test_it_is_compared_with_them_and_needs_no_other_reference(dense, started):
    job = started.read_job()
    assert not needs_training(job, started.path.parent)
    reference = find_reference(job, started)
    assert reference.validation == dense.read_result().error
    assert reference.source == "the dense network that this run started from"


def test_its_inputs_are_scaled_as_those_weights_need(dense, started, notes):
    assert read_recorded(started.model).scaling == read_recorded(dense.model).scaling
    [said] = [text for text in notes.said if "starts from" in text]
    assert said == (
        f"The run starts from {dense.model.resolve()}. Inputs are scaled as its weights need, whatever --scaling says."
    )


def test_the_test_set_is_read_for_them_too(dense, started):
    assert evaluate(started).errors["dense"] == evaluate(dense).error


def test_a_file_of_another_network_leaves_no_run(dense, tmp_path):
    job = replace(PRUNE, network="lenet-5", start=str(dense.model))
    with pytest.raises(ValueError, match=r'does not hold a LeNet5 for 10 classes: it lacks "conv1\.weight"'):
        run(job, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_classifier_is_noted_and_leaves_no_dense_error(tmp_path):
    path = tmp_path / "seven.safetensors"
    safetensors.torch.save_file(networks.build("lenet-300-100", seed=1, classes=7).state_dict(), path)
    notes = Notes()
    directory = run(replace(PRUNE, start=str(path)), tmp_path, observer=notes)
    assert "dense" not in directory.read_result().errors
    said = f'The run starts from {path}. It lacks "fc3.weight" to "fc3.bias" for these classes: they are random, '
    assert any(text.startswith(said) for text in notes.said)


@pytest.mark.parametrize("method", [Dense(), Han2015(rounds=1, retrain_epochs=1)])
def test_a_run_that_trains_a_dense_network_itself_calls_what_it_starts_from_its_start(dense, tmp_path, method):
    directory = run(replace(PRUNE, methods=(method,), start=str(dense.model)), tmp_path)
    errors = directory.read_result().errors
    assert list(errors)[:2] == ["start", "dense"]
    assert errors["start"] == dense.read_result().error


def test_without_training_the_weights_that_it_starts_from_are_cut(dense, tmp_path):
    job = replace(PRUNE, methods=(METHODS["magnitude"](ratio=2, retrain_epochs=0),), recipe=Recipe(epochs=0))
    directory = run(replace(job, start=str(dense.model)), tmp_path)
    whole, cut = load_model(dense.model).fc1.weight, load_model(directory.model).fc1.weight
    assert torch.equal(cut[cut != 0], whole[cut != 0])


def test_a_network_that_is_pruned_already_is_not_called_dense(started, tmp_path):
    directory = run(replace(PRUNE, start=str(started.model)), tmp_path)
    errors = directory.read_result().errors
    assert next(iter(errors)) == "start"
    assert "dense" not in errors
    assert errors["start"] == started.read_result().error
    assert find_reference(directory.read_job(), directory) is None


def test_what_a_run_starts_from_is_in_its_name():
    assert run_name(replace(PRUNE, start="pretrained")).startswith("lenet-300-100-digits-paper-from-pretrained-")
    names = {run_name(replace(PRUNE, start=start)) for start in ("", "pretrained", "/a/net.cut", "/b/net.cut")}
    assert len(names) == 4


def test_a_job_without_a_start_is_written_as_before():
    assert "start" not in DENSE.to_json()
    job = replace(DENSE, start="pretrained")
    assert job.to_json()["start"] == "pretrained"
    assert Job.from_json(job.to_json()) == job
    assert job.reference().start == "pretrained"
