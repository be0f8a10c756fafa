"""Does weight decay make quantisation cheaper? The paper suspects so: decay gathers weights at the threshold.

The paper preset is run with and without decay, and each network is compressed with several numbers of shared values.
What counts is bytes at equal error, on validation images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.decay_summary import DecayFile, DecayStudy
from secateur.experiments.studies.grid import Places
from secateur.experiments.versions import versions
from secateur.job import Coding, Job
from secateur.methods import FewValues
from secateur.results import write

_DECAYS = (0.0, 1e-4)
_LEVELS = (2, 4, 8, 32)


def run_decay_study(network: str, seeds: Iterable[int], places: Places) -> Iterator[Path]:
    """Run the seeds whose result is not published yet, one thread each, and yield each new result's path."""
    for seed in seeds:
        path = places.results / network / "decay" / f"seed{seed:02d}.json"
        if path.exists():
            continue
        torch.set_num_threads(1)
        files = []
        for decay in _DECAYS:
            pruning = _job(network, decay, seed)
            run(pruning, places.runs, data_root=places.data_root, resume=True)  # the files below reuse its stages
            for levels in _LEVELS:
                job = replace(
                    pruning,
                    methods=(*pruning.methods, FewValues(levels=levels, conv_levels=levels)),
                    coding=Coding(),
                )
                result = run(job, places.runs, data_root=places.data_root, resume=True).read_result()
                assert result.file is not None
                files.append(
                    DecayFile(lambda_wd=decay, levels=levels, kept=result.kept, errors=result.errors, file=result.file)
                )
        study = DecayStudy(job=_job(network, _DECAYS[-1], seed), files=tuple(files), versions=versions())
        yield write(path, study)


def _job(network: str, decay: float, seed: int) -> Job:
    job = preset("paper", network, seed=seed)
    return replace(job, recipe=replace(job.recipe, lambda_wd=decay))
