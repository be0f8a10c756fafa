"""Error against size: a network that is trained once and then pruned to one ratio after the other, each to a file.

The network of the first ratio continues from the dense one of its seed, and that of every other ratio from the one
before it. The paper names VGG and ResNet as its first future work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from secateur.budget import Budget
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.curve_summary import CURVES, curve_path
from secateur.experiments.studies.grid import Places, to_publish
from secateur.job import Job
from secateur.methods import Budgeted, Dense
from secateur.results import write


def curve_jobs(network: str, seeds: Iterable[int]) -> list[Job]:
    """Return the runs of a network: for every seed the dense one, then one for every ratio."""
    chosen, wanted = CURVES[network], []
    for seed in seeds:
        usual = preset(chosen.preset, network, data=chosen.data, seed=seed, to_file=True)
        method, *others = usual.methods
        assert isinstance(method, Budgeted)
        method = replace(method, prune_lr=chosen.prune_lr)
        steps = [
            replace(method, budget=Budget(ratio=ratio), prune_epochs=epochs) for ratio, epochs in chosen.ratios.items()
        ]
        wanted.append(replace(usual, methods=(Dense(),)))
        wanted += [replace(usual, methods=(Dense(), *steps[:number], *others)) for number in range(1, len(steps) + 1)]
    return wanted


def in_rounds(wanted: Sequence[Job], workers: int) -> list[list[Job]]:
    """Return runs in groups that are carried out one after the other: a network waits for that with a method less.

    One worker finishes a seed before it begins the next, so that what an interrupted study leaves are whole seeds.
    """
    if workers == 1:
        return [list(wanted)]
    lengths = sorted({len(job.methods) for job in wanted})
    return [[job for job in wanted if len(job.methods) == length] for length in lengths]


def publish_point(job: Job, places: Places) -> Path:
    """Carry out a run with one thread, method by method so that other ratios can continue from it, and publish it."""
    torch.set_num_threads(1)
    for number in range(1, len(job.methods) + 1):
        part = replace(job, methods=job.methods[:number])
        directory = run(part, places.runs, data_root=places.data_root, resume=True)
    return write(curve_path(places.results, job), to_publish(directory, places.data_root))
