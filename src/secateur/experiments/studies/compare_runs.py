"""Carries out the runs of a comparison, each in a process of its own, and publishes what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch's stubs do not list it

from secateur.experiments.directory import RunDirectory
from secateur.experiments.evaluate import evaluate
from secateur.experiments.models import load_model, read_recorded
from secateur.experiments.runner import run
from secateur.experiments.studies.compare import Entry, Failure
from secateur.experiments.studies.grid import Places, in_processes
from secateur.experiments.studies.published import read_history
from secateur.experiments.versions import versions
from secateur.measure import count_flops
from secateur.measure.flops import Work
from secateur.results import PublishedRun, write
from secateur.sentences import sentence


def run_entries(entries: Sequence[Entry], places: Places, *, workers: int) -> Iterator[Path]:
    """Carry out the runs that are not published yet, some at a time, and yield the path of each result."""
    missing = [entry for entry in entries if not entry.is_published(places.results)]
    return in_processes(missing, partial(publish_entry, places=places), workers=workers)


def publish_entry(entry: Entry, places: Places) -> Path:
    """Carry out a run, from its checkpoints on if there are any, and publish its result."""
    return publish(entry, carried_out(entry, places.runs, places.data_root), places)


def publish(entry: Entry, found: PublishedRun | Failure, places: Places) -> Path:
    """Write what came of a run where it belongs, and return its path."""
    path = entry.path if isinstance(found, PublishedRun) else entry.failed_path
    return write(path(places.results), found)


def carried_out(entry: Entry, runs: Path, data_root: Path | None = None) -> PublishedRun | Failure:
    """Carry out a run with one thread and evaluate it on the test set, which is read once, at the end.

    A network that does no better than guessing is a result here: no method is left out because it did badly. What the
    method itself raises becomes a failure to be published; anything else, such as missing data, is raised.
    """
    torch.set_num_threads(1)
    try:
        directory = run(entry.job, runs, data_root=data_root, resume=True, keep_guessing=True)
    except (ValueError, FloatingPointError, LinAlgError) as error:
        return Failure(job=entry.job, reason=sentence(error), versions=versions())
    result = directory.read_result()
    published = PublishedRun(
        result=result,
        test=evaluate(directory, data_root=data_root),
        history=read_history(directory, [stage.name for stage in result.stages]),
        work=_work(directory),
    )
    for path in directory.checkpoints():  # a grid of hundreds of runs would fill the disk with them
        path.unlink()
    return published


def _work(directory: RunDirectory) -> Work | None:
    """Return the multiply-accumulates of one image; None if inputs are no images."""
    shape = read_recorded(directory.model).input_shape
    if shape is None:
        return None
    found = count_flops(load_model(directory.model), torch.zeros(1, *shape))
    return Work(macs=found.macs, sparse_macs=found.sparse_macs)
