"""Error against size: a network that is trained once and then pruned to several ratios, each to a file.

Every pruned network continues from the same dense one of its seed and is trained for as many epochs again. The paper
names VGG and ResNet as its first future work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from secateur.budget import Budget
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.curve_summary import DATA, RATIOS, curve_path
from secateur.experiments.studies.grid import Places, to_publish
from secateur.job import Job
from secateur.methods import Budgeted, Dense
from secateur.results import write


def curve_jobs(network: str, seeds: Iterable[int]) -> list[Job]:
    """Return the runs of a network: for every seed the dense one, then one for every ratio."""
    wanted = []
    for seed in seeds:
        usual = preset("best", network, data=DATA, seed=seed, to_file=True)
        method, *others = usual.methods
        assert isinstance(method, Budgeted)
        wanted.append(replace(usual, methods=(Dense(),)))
        wanted += [
            replace(usual, methods=(Dense(), replace(method, budget=Budget(ratio=ratio)), *others))
            for ratio in RATIOS[network]
        ]
    return wanted


def publish_point(job: Job, places: Places) -> Path:
    """Carry out a run with one thread, its dense stage from a finished run if there is one, and publish it."""
    torch.set_num_threads(1)
    directory = run(job, places.runs, data_root=places.data_root, resume=True)
    return write(curve_path(places.results, job), to_publish(directory, places.data_root))
