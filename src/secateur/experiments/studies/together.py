"""Pruning and quantisation learned together, compared with one after the other in files of the same size.

A network is pruned to a ratio, and its values are shared then. The size of its file is the budget of two others of the
same recipe and seed that learn both together: with the rate term, which lets weights and steps pay for their bits, and
without it. The same coder writes all three files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from secateur.budget import Budget
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.grid import Places, to_publish
from secateur.experiments.studies.published import result_path
from secateur.experiments.studies.together_summary import RATE, RATIO, STUDY, WITHOUT_RATE
from secateur.job import Job
from secateur.methods import Budgeted, Joint
from secateur.results import write


def together_jobs(network: str, seeds: Iterable[int]) -> list[Job]:
    """Return the runs that do one after the other, by seed: preset "quick" at a higher ratio."""
    return [
        replace(job, methods=(Budgeted(budget=Budget(ratio=RATIO)), *job.methods[1:]))
        for job in (preset("quick", network, seed=seed, to_file=True) for seed in seeds)
    ]


def together_path(results: Path, job: Job) -> Path:
    """Return where a run that does one after the other is published; it is written after its two rivals."""
    return result_path(results, job, study=STUDY)


def publish_together(job: Job, places: Places) -> Path:
    """Carry out a run and its two rivals of the same bytes, and publish all three."""
    torch.set_num_threads(1)
    directory = run(job, places.runs, data_root=places.data_root, resume=True)
    file = directory.read_result().file
    assert file is not None
    for variant, with_rate in ((RATE, True), (WITHOUT_RATE, False)):
        rival = replace(job, methods=(Joint(bytes=file.bytes, rate=with_rate),))
        other = run(rival, places.runs, data_root=places.data_root, resume=True)
        write(result_path(places.results, rival, study=STUDY, variant=variant), to_publish(other, places.data_root))
    return write(together_path(places.results, job), to_publish(directory, places.data_root))
