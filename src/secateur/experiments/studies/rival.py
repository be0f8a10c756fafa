"""The search for Han et al.'s quality parameter, which learned thresholds make unnecessary.

It uses seed 0 and validation images only, and is part of the method's cost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from secateur import networks
from secateur.experiments.directory import RunDirectory
from secateur.experiments.images import JobImages, load_images
from secateur.experiments.models import build
from secateur.experiments.presets import preset
from secateur.experiments.studies.grid import Places
from secateur.experiments.studies.searches import QualitySearch, Tried, quality_search_path
from secateur.experiments.training import train_stage
from secateur.experiments.versions import versions
from secateur.job import Job
from secateur.methods import Han2015
from secateur.methods.layers import kinds
from secateur.results import RunError, StageResult, write

_QUALITIES = (0.6, 0.7, 0.8, 0.9, 1.0)
_MOST_ROUNDS = 8
_TOLERATED = 0.1  # points of validation error above the dense network's, as in the paper


def search_quality(network: str, places: Places) -> Path:
    """Publish the search: one dense network, pruned with every quality until its error is too large."""
    path = quality_search_path(places.results, network)
    if path.exists():
        return path
    torch.set_num_threads(1)
    job, history, dense = preset("han2015", network), [], None
    steps, seconds = 0, 0.0
    for quality in _QUALITIES:
        stages = _stages(job, quality, places)
        dense = stages[0]
        history += _rounds(stages, quality, len(kinds(networks.build(network))))
        steps += sum(stage.steps for stage in stages[1:])
        seconds += sum(stage.seconds for stage in stages[1:])
    assert dense is not None
    limit = _limit(dense)
    fitting = [tried for tried in history if tried.error <= limit]
    if not fitting:
        raise RunError(f"no quality of {_QUALITIES} keeps {network} within {_TOLERATED} points: try smaller ones")
    best = min(fitting, key=lambda tried: (tried.kept, tried.error))
    found = QualitySearch(
        rule=f"the fewest weights at no more than {_TOLERATED} points above the dense network's error, "
        "on validation images, seed 0; a quality goes on for more rounds until it is above",
        chosen={"quality": best.quality, "rounds": best.rounds},
        job=job,
        dense=dense,
        steps=dense.steps + steps,
        seconds=dense.seconds + seconds,
        threads=torch.get_num_threads(),
        versions=versions(),
        history=tuple(history),
    )
    return write(path, found)


def _stages(job: Job, quality: float, places: Places) -> list[StageResult]:
    """Train round after round with one quality, until the error is above the limit, and return all stages."""
    method = job.methods[0]
    assert isinstance(method, Han2015)
    directory = RunDirectory(places.runs / f"{job.network}-{job.data}-quality-search")
    images = load_images(job, places.data_root)
    model = _network(job, images)
    per_round = len(kinds(model))
    done: list[StageResult] = []
    for stage in replace(method, quality=quality, rounds=_MOST_ROUNDS).stages(model, job.recipe):
        done.append(train_stage(stage, images, directory, job.seed))
        is_whole_round = len(done) > 1 and (len(done) - 1) % per_round == 0
        if is_whole_round and done[-1].error > _limit(done[0]):
            break
    return done


def _network(job: Job, images: JobImages) -> nn.Module:
    return build(job, len(images.training.images.classes), images.training.images.shape)


def _rounds(stages: list[StageResult], quality: float, stages_per_round: int) -> list[Tried]:
    tried = []
    for number in range(stages_per_round, len(stages), stages_per_round):
        stage, so_far = stages[number], stages[: number + 1]
        tried.append(
            Tried(
                quality=quality,
                rounds=number // stages_per_round,
                error=stage.error,
                kept=stage.kept,
                steps=sum(each.steps for each in so_far),
                seconds=sum(each.seconds for each in so_far),
            )
        )
    return tried


def _limit(dense: StageResult) -> float:
    """Return the largest tolerated error, rounded to remove floating-point noise."""
    return round(dense.error + _TOLERATED, 6)
