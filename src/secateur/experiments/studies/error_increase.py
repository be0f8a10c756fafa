"""How far does one run with a budget of error get, compared with a sweep over ratios? On validation images.

For every seed one run is given the budget. Then networks of the same recipe are pruned to larger ratios than its own,
each from the beginning: the largest of them whose error is still allowed is what a sweep would have found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from secateur.budget import Budget
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.error_increase_summary import ErrorIncreaseStudy, Swept, error_increase_path
from secateur.experiments.studies.grid import Places
from secateur.experiments.versions import versions
from secateur.job import Job
from secateur.methods import Budgeted
from secateur.results import write

_INCREASE = 0.3  # points
_LARGER = (1.15, 1.15**2, 1.15**3)  # than the ratio reached


def error_increase_jobs(network: str, seeds: Iterable[int]) -> list[Job]:
    """Return the runs that are given a budget of error."""
    return [_with(preset("quick", network, seed=seed), Budget(error_increase=_INCREASE)) for seed in seeds]


def publish_error_increase(job: Job, places: Places) -> Path:
    """Carry out a run, sweep over larger ratios, and publish both; the test set is not read."""
    torch.set_num_threads(1)
    result = run(job, places.runs, data_root=places.data_root, resume=True).read_result()
    swept = []
    for factor in _LARGER:
        rival = _with(job, Budget(ratio=round(factor * result.ratio, 1)))
        other = run(rival, places.runs, data_root=places.data_root, resume=True).read_result()
        swept.append(Swept(ratio=other.ratio, error=other.error))
    study = ErrorIncreaseStudy(
        job=job,
        increase=_INCREASE,
        dense_error=result.errors["dense"],
        error=result.error,
        ratio=result.ratio,
        swept=tuple(swept),
        seconds=result.seconds,
        versions=versions(),
    )
    return write(error_increase_path(places.results, job), study)


def _with(job: Job, budget: Budget) -> Job:
    return replace(job, methods=(Budgeted(budget=budget),))
