"""Evaluate a finished run on test images, which are read once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from torch import nn

from secateur import networks
from secateur.data import Inputs
from secateur.experiments.directory import RunDirectory
from secateur.experiments.given_data import batches_of
from secateur.experiments.images import evaluation_of, load_split
from secateur.experiments.imported_data import load_parts, workload_of
from secateur.experiments.models import build_again, read_recorded, restore
from secateur.experiments.outcome import FILE
from secateur.experiments.pipeline import pipeline
from secateur.experiments.reference import trained_reference
from secateur.experiments.workload import Evaluation
from secateur.files import load
from secateur.job import Job
from secateur.pretrained import read_start
from secateur.results import EvaluationResult, RunError, packed, write


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
    if job.is_given:
        raise RunError(
            f"{directory.path} was trained on data given in Python, and without test data: "
            "secateur.compress(…, test=…) evaluates a network on these"
        )
    start = read_start(job.start, job.network, data_root)
    network = build_again(directory, job, trust, start)
    is_trained = start is not None and not start.left_random(network)
    evaluated, images = _measure(directory, job, network, data_root, trust)
    forms = pipeline(job, network, lambda stage: restore(directory, job, stage), is_trained=is_trained)
    found = {name: evaluated(network) for name, network in forms}
    found[FILE] = evaluated(load(directory.file, trust=trust))
    near = {name: each.answers.top5_error for name, each in found.items() if each.answers is not None}
    result = EvaluationResult(
        errors={name: each.error for name, each in found.items()},
        images=images,
        top5_errors={name: error for name, error in near.items() if error is not None},
        wrong="" if (answers := found[FILE].answers) is None else packed(answers.is_wrong.tolist()),
    )
    write(directory.test, result)
    return result


def _measure(
    directory: RunDirectory, job: Job, network: nn.Module, data_root: Path | None, trust: Collection[str]
) -> tuple[Callable[[nn.Module], Evaluation], int]:
    """Return how a network is evaluated on the test set of a job, and the number of its samples."""
    if networks.is_import_path(job.data):
        parts = load_parts(job.data, trust)
        if parts.test is None:
            raise RunError(f"{job.data} returns no test data: let it return (train, validation, test)")
        unseen = replace(workload_of(parts, network), validation=batches_of(parts.test, "test"))
        return unseen.evaluate, unseen.validation_samples
    recorded = read_recorded(directory.model)
    if recorded.scaling is None:
        raise RunError(f"{directory.model} does not say how its inputs are scaled: run it again")
    test = Inputs(load_split(job, "test", data_root, recorded.input_shape), recorded.scaling)
    return lambda model: evaluation_of(model, test), len(test)


def evaluate_with_reference(
    directory: RunDirectory, *, data_root: Path | None = None, trust: Collection[str] = ()
) -> EvaluationResult:
    """Evaluate a run and, if it was trained alongside, the dense network that it is compared with."""
    found = evaluate(directory, data_root=data_root, trust=trust)
    other = trained_reference(directory.read_job(), directory)
    if other is not None:
        evaluate(other, data_root=data_root, trust=trust)
    return found
