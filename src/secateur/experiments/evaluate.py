"""Evaluate a finished run on test images, which are read once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from torch import nn

from secateur.data import Inputs
from secateur.experiments.directory import RunDirectory
from secateur.experiments.images import load_split
from secateur.experiments.models import build_again, read_recorded, restore
from secateur.experiments.outcome import FILE
from secateur.experiments.pipeline import pipeline
from secateur.experiments.reference import trained_reference
from secateur.files import load
from secateur.job import GIVEN
from secateur.measure import error_of_batches
from secateur.results import EvaluationResult, RunError, write


def evaluate(
    directory: RunDirectory, *, data_root: Path | None = None, trust: Collection[str] = ()
) -> EvaluationResult:
    """Read the test set, once, and write the error of every form of the network into the run's directory.

    `trust` names the modules that may be imported to build a network that is not ours.
    """
    if directory.test.exists():
        return directory.read_test()
    directory.read_result()  # raises if the run is not finished
    job = directory.read_job()
    if job.preset == GIVEN:
        raise RunError(
            f"{directory.path} was trained on data given in Python, and without test data: "
            "secateur.compress(…, test=…) evaluates a network on these"
        )
    _, input_shape, scaling = read_recorded(directory.model)
    network = build_again(directory, job, trust)
    test = Inputs(load_split(job, "test", data_root, input_shape), scaling)

    def error(network: nn.Module) -> float:
        return error_of_batches(network, test.batches())

    forms = pipeline(job, network, lambda stage: restore(directory, job, stage))
    errors = {name: error(network) for name, network in forms}
    errors[FILE] = error(load(directory.file, trust=trust))
    result = EvaluationResult(errors=errors, images=len(test))
    write(directory.test, result)
    return result


def evaluate_with_reference(
    directory: RunDirectory, *, data_root: Path | None = None, trust: Collection[str] = ()
) -> EvaluationResult:
    """Evaluate a run and, if it was trained alongside, the dense network that it is compared with."""
    found = evaluate(directory, data_root=data_root, trust=trust)
    other = trained_reference(directory.read_job(), directory)
    if other is not None:
        evaluate(other, data_root=data_root, trust=trust)
    return found
