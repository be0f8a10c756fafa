"""Every run has a dense network to be compared with."""

import math
from dataclasses import replace

import pytest
import torch

from secateur.experiments import reference
from secateur.experiments.directory import RunDirectory
from secateur.experiments.evaluate import evaluate, evaluate_with_reference
from secateur.experiments.presets import preset, run_name
from secateur.experiments.reference import PublishedReference, find_reference, needs_training
from secateur.experiments.runner import run
from secateur.methods import Han2015, Manessi2018
from secateur.train.recipe import Recipe

JOB = replace(preset("paper", "lenet-300-100", data="digits"), methods=(Manessi2018(rho=0.2),), recipe=Recipe(epochs=1))


@pytest.fixture
def published(monkeypatch):
    """One published reference: of the paper preset of LeNet-300-100 on MNIST."""
    found = PublishedReference(data="mnist", validation=1.8, test=1.9, seeds=20)
    monkeypatch.setattr(reference, "_references", lambda: {"lenet-300-100": {"paper": found}})


def test_a_published_reference_is_taken_and_says_so(published, tmp_path):
    job = preset("paper", "lenet-300-100")
    found = find_reference(job, RunDirectory(tmp_path / run_name(job)))
    assert (found.validation, found.test) == (1.8, 1.9)
    assert found.source == 'published, preset "paper", mean over 20 seeds'
    assert not needs_training(job, tmp_path)


def test_a_published_reference_of_other_settings_says_so(published, tmp_path):
    job = preset("paper", "lenet-300-100")
    found = find_reference(replace(job, recipe=Recipe(epochs=3)), RunDirectory(tmp_path / "run"))
    assert found.source.endswith("whose settings differ from this run's")


@pytest.mark.parametrize(
    "job", [JOB, replace(JOB, network="lenet-5", data="mnist"), preset("quick", "lenet-300-100")], ids=str
)
def test_without_a_published_one_the_reference_is_trained(published, tmp_path, job):
    assert needs_training(job, tmp_path)
    assert find_reference(job, RunDirectory(tmp_path / "run")) is None


def test_a_method_that_trains_a_dense_network_needs_no_other(published, tmp_path):
    assert not needs_training(JOB.with_method(Han2015()), tmp_path)


def test_a_dense_run_needs_no_reference(published, tmp_path):
    assert not needs_training(JOB.reference(), tmp_path)
    assert find_reference(JOB.reference(), RunDirectory(tmp_path / "run")) is None


def test_the_reference_trained_alongside_goes_before_the_published_one(published, tmp_path):
    torch.set_num_threads(1)
    job = JOB
    dense, pruned = run(job.reference(), tmp_path), run(job, tmp_path)
    found = find_reference(job, pruned)
    assert found.validation == dense.read_result().error
    assert math.isnan(found.test)
    assert found.source == f"trained with the same recipe: {dense.path.name}"
    evaluate_with_reference(pruned)
    assert find_reference(job, pruned).test == dense.read_test().error


def test_a_method_that_trains_a_dense_network_first_is_compared_with_that(published, tmp_path):
    torch.set_num_threads(1)
    job = replace(JOB, methods=(Han2015(quality=0.5, rounds=1, retrain_epochs=1),))
    directory = run(job, tmp_path)
    evaluate(directory)
    found = find_reference(job, directory)
    assert found.validation == directory.read_result().errors["dense"]
    assert found.test == directory.read_test().errors["dense"]
    assert found.source == "the dense network that this run started from"
