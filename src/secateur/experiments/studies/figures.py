"""The paper's figures as numbers: θ and θ̄ in two views each, and the trained weights of the first layer.

Does weight decay gather the weights at the threshold, as the paper says about its figure 3? The answer is the share of
kept weights within 10 % of the threshold, with and without decay, over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from secateur.experiments.directory import RunDirectory
from secateur.experiments.models import load_stage
from secateur.experiments.presets import preset
from secateur.experiments.runner import run
from secateur.experiments.studies.gathering import (
    DECAYS,
    NEAR,
    GatheringStudy,
    TrainedWeights,
    View,
    Views,
    figure_path,
)
from secateur.experiments.studies.grid import Places
from secateur.experiments.versions import versions
from secateur.functions.threshold import LearnedThreshold
from secateur.job import Job
from secateur.methods import Manessi2018
from secateur.results import read, write
from secateur.theta import hard_theta, theta_derivatives
from secateur.theta_autograd import theta
from secateur.weights.tensors import tensors

_ALPHA, _FIXED = 10.0, 2.0  # the paper's: θ^10(x; 2) and θ^10(2; t)
_STEP = 0.02
_NETWORK, _LAYER = "lenet-300-100", "fc1.weight"
_BIN, _LARGEST = 0.01, 1.0  # of the histogram of weights


def smooth_views() -> Views:
    """Return figure 1: θ(x; 2) with its derivative in x, and θ(2; t) with its derivative in t."""
    return _views(
        lambda x, t: theta(x, t, _ALPHA),
        lambda x, t: theta_derivatives(x, t, _ALPHA),
        alpha=_ALPHA,
    )


def hard_views() -> Views:
    """Return figure 2: θ̄ in the same two views, with its derivatives where they exist."""
    return _views(hard_theta, lambda x, t: ((x.abs() >= t).double(), torch.zeros_like(x + t)), alpha=None)


def _views(
    function: Callable[[Tensor, Tensor], Tensor],
    derivatives: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    alpha: float | None,
) -> Views:
    fixed = torch.tensor(_FIXED, dtype=torch.float64)
    x, t = _grid(-4, 4), _grid(0, 4)
    along_x = View(of="x", at=_short(x), value=_short(function(x, fixed)), slope=_short(derivatives(x, fixed)[0]))
    constant = fixed.expand_as(t)
    along_t = View(of="t", at=_short(t), value=_short(function(constant, t)), slope=_short(derivatives(constant, t)[1]))
    return Views(alpha=alpha, fixed=_FIXED, views=(along_x, along_t))


def _grid(low: int, high: int) -> Tensor:
    return torch.arange(round(low / _STEP), round(high / _STEP) + 1, dtype=torch.float64) * _STEP


def _short(values: Tensor) -> tuple[float, ...]:
    """Round to the precision of a figure, so that every machine writes the same digits."""
    return tuple(round(value, 6) + 0.0 for value in values.tolist())


def run_gathering(seeds: Iterable[int], places: Places) -> Iterator[Path]:
    """Train the networks of figure 3 that are not published yet, one thread each, and yield the path after each seed.

    A finished run is read, not repeated.
    """
    path = figure_path(places.results, "figure3")
    for seed in seeds:
        study = read(GatheringStudy, path) if path.exists() else _empty()
        if any(entry.seed == seed for entry in study.networks):
            continue
        torch.set_num_threads(1)
        added = []
        for decay in DECAYS:
            directory = run(_job(decay, seed), places.runs, data_root=places.data_root, resume=True)
            added.append(describe_weights(directory))
        networks = sorted((*study.networks, *added), key=lambda entry: (-entry.lambda_wd, entry.seed))
        yield write(path, replace(study, networks=tuple(networks)))


def _empty() -> GatheringStudy:
    return GatheringStudy(job=_job(DECAYS[0], 0), layer=_LAYER, bin=_BIN, versions=versions())


def _job(decay: float, seed: int) -> Job:
    job = preset("paper", _NETWORK, seed=seed)
    return replace(job, recipe=replace(job.recipe, lambda_wd=decay))


def describe_weights(directory: RunDirectory, layer: str = _LAYER) -> TrainedWeights:
    """Describe the trained weights of a layer relative to its threshold."""
    job, sibling = directory.read_job(), load_stage(directory)
    method = job.methods[0]
    assert isinstance(method, Manessi2018)
    tensor = next(tensor for tensor in tensors(sibling) if tensor.name == layer)
    function, weight = tensor.function(LearnedThreshold), tensor.stored.detach()
    assert function is not None
    threshold = function.threshold.detach()
    mapped = theta(weight, threshold, function.alpha)
    kept = mapped.abs() >= method.cutoff
    t = threshold.item()
    return TrainedWeights(
        lambda_wd=job.recipe.lambda_wd,
        seed=job.seed,
        threshold=round(t, 6),
        weights=weight.numel(),
        kept=int(kept.sum()),
        near=share_near(weight[kept], t),
        near_mapped=share_near(mapped[kept], t),
        within_20_percent=share_near(weight[kept], t, 0.2),
        median=round((weight[kept].abs().median() / t).item(), 4),
        survivors=histogram(weight[kept]),
        cut=histogram(weight[~kept]),
    )


def share_near(weights: Tensor, threshold: float, tolerance: float = NEAR) -> float:
    """Return the share of weights whose magnitude is within a relative `tolerance` of the threshold."""
    near = (weights.abs() - threshold).abs() <= tolerance * threshold
    return round(near.double().mean().item(), 6)


def histogram(weights: Tensor) -> tuple[int, ...]:
    """Count weights in bins of one width over [−1, 1]; values beyond count in the outermost bins."""
    bins = round(2 * _LARGEST / _BIN)
    places = ((weights.double() + _LARGEST) / _BIN).floor().long().clamp(0, bins - 1)
    return tuple(torch.bincount(places.flatten(), minlength=bins).tolist())
