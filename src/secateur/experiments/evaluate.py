"""Evaluate a finished run on test images, which are read once."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from secateur.data import Inputs
from secateur.experiments.directory import RunDirectory
from secateur.experiments.images import load_split
from secateur.experiments.models import build_again, load_model, restore
from secateur.experiments.outcome import FILE
from secateur.experiments.pipeline import pipeline
from secateur.experiments.reference import trained_reference
from secateur.files import load
from secateur.measure import error_of_batches
from secateur.results import EvaluationResult, RunError, write


def evaluate(directory: RunDirectory, *, data_root: Path | None = None) -> EvaluationResult:
    """Read the test set, once, and write the error of every form of the network into the run's directory."""
    if directory.test.exists():
        return directory.read_test()
    directory.read_result()  # raises if the run is not finished
    job = directory.read_job()
    if job.is_given:
        raise RunError(
            f"{directory.path} was trained on data given in Python, and without test data: "
            "secateur.compress(…, test=…) evaluates a network on these"
        )
    _, scaling = load_model(directory.model)
    test = Inputs(load_split(job, "test", data_root), scaling)

    def error(network: nn.Module) -> float:
        return error_of_batches(network, test.batches())

    forms = pipeline(job, build_again(directory, job), lambda stage: restore(directory, job, stage))
    errors = {name: error(network) for name, network in forms}
    errors[FILE] = error(load(directory.file))
    result = EvaluationResult(errors=errors, images=len(test))
    write(directory.test, result)
    return result


def evaluate_with_reference(directory: RunDirectory, *, data_root: Path | None = None) -> EvaluationResult:
    """Evaluate a run and, if it was trained alongside, the dense network that it is compared with."""
    found = evaluate(directory, data_root=data_root)
    other = trained_reference(directory.read_job(), directory)
    if other is not None:
        evaluate(other, data_root=data_root)
    return found
