"""The dense network that a run is compared with: trained alongside, the one it started from, or a published one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from secateur.experiments.directory import RunDirectory
from secateur.experiments.presets import preset, run_name
from secateur.job import Job
from secateur.plain_data import from_plain
from secateur.results import RunError

REFERENCES = "references.json"  # written from results/ by `make readme`, so that it is part of the package


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Errors of the dense network, NaN if they are not known, and their source."""

    validation: float
    test: float
    source: str  # a sentence


@dataclass(frozen=True, kw_only=True)
class PublishedReference:
    """The published dense runs of a preset: mean errors over seeds."""

    data: str
    validation: float
    test: float
    seeds: int


def find_reference(job: Job, directory: RunDirectory) -> Reference | None:
    """Return the dense network that a run is compared with; None if no network of its recipe is known."""
    if job.is_dense:
        return None
    return _own(directory) or _alongside(job, directory) or published_reference(job)


def needs_training(job: Job, root: Path) -> bool:
    """Return whether a reference has to be trained before a job has one.

    Some methods train one themselves, and a job that starts from trained weights is compared with these.
    """
    if job.is_dense or job.methods[0].trains_dense or job.start:
        return False
    known = _alongside(job, RunDirectory(root / run_name(job))) or published_reference(job)
    return known is None


def _own(directory: RunDirectory) -> Reference | None:
    """Return the dense network that the run itself started from, if its method trains one."""
    try:
        result = directory.read_result()
        validation = result.errors.get("dense", math.nan)
        test = directory.read_test().errors.get("dense", math.nan) if directory.test.exists() else math.nan
    except RunError:
        return None
    if math.isnan(validation):
        return None
    source = "the network as it was given" if result.job.is_given else "the dense network that this run started from"
    return Reference(validation=validation, test=test, source=source)


def _alongside(job: Job, directory: RunDirectory) -> Reference | None:
    other = trained_reference(job, directory)
    if other is None:
        return None
    try:
        test = other.read_test().error if other.test.exists() else math.nan
        validation = other.read_result().error
    except RunError:
        return None
    return Reference(validation=validation, test=test, source=f"trained with the same recipe: {other.path.name}")


def trained_reference(job: Job, directory: RunDirectory) -> RunDirectory | None:
    """Return the finished dense run with the same recipe and seed in the same folder as a run."""
    if job.is_dense or job.is_given:
        return None
    other = RunDirectory(directory.path.resolve().parent / run_name(job.reference()))
    try:
        return other if other.is_finished and other.read_job() == job.reference() else None
    except RunError:
        return None


def published_reference(job: Job) -> Reference | None:
    """Return the published dense runs of a job's preset; None if there are none for its network and data."""
    found = _references().get(job.network, {}).get(job.preset)
    if found is None or found.data != job.data:
        return None
    source = f'published, preset "{job.preset}", mean over {found.seeds} seeds'
    if job.reference() != preset(job.preset, job.network, data=job.data, seed=job.seed).reference():
        source += ", whose settings differ from this run's"
    return Reference(validation=found.validation, test=found.test, source=source)


@cache
def _references() -> Mapping[str, Mapping[str, PublishedReference]]:
    file = resources.files(__package__).joinpath(REFERENCES)
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return {
        network: {name: from_plain(PublishedReference, each) for name, each in presets.items()}
        for network, presets in content.items()
    }
