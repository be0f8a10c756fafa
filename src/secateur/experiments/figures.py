"""The paper's figures as numbers: θ and θ̄ in two views each, and where training leaves the first layer's weights.

Does weight decay gather the weights at the threshold, as the paper says of its figure 3? The share of surviving weights
within 10 % of the threshold answers, with and without decay, over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateur.experiments.job import Job, load_sibling, read_job, run, versions
from secateur.experiments.presets import preset
from secateur.experiments.reproduce import mean_std
from secateur.experiments.rundir import RunDirectory, publish, read_published
from secateur.parametrization import readings
from secateur.theta import hard_theta, theta, theta_derivatives
from secateur.threshold import LearnedThreshold, learned_thresholds

FIGURES = ("figure1", "figure2", "figure3")

Content = dict[str, Any]

_ALPHA, _FIXED = 10.0, 2.0  # the paper's: θ^10(x; 2) and θ^10(2; t)
_STEP = 0.02
_NETWORK, _LAYER = "lenet-300-100", "fc1.weight"
_DECAYS = (1e-4, 0.0)
_NEAR = 0.1  # "at the threshold": within this share of it
_BIN, _LARGEST = 0.01, 1.0  # of the histogram of weights


def figure_path(results: Path, figure: str) -> Path:
    """Where the numbers of a figure are published."""
    return results / "figures" / f"{figure}.json"


def smooth_views() -> Content:
    """Return figure 1: θ(x; 2) with its derivative in x, and θ(2; t) with its derivative in t."""
    return _views(
        lambda x, t: theta(x, t, _ALPHA),
        lambda x, t: theta_derivatives(x, t, _ALPHA),
        alpha=_ALPHA,
    )


def hard_views() -> Content:
    """Return figure 2: θ̄ in the same two views, with its derivatives where it has any."""
    return _views(hard_theta, lambda x, t: ((x.abs() >= t).double(), torch.zeros_like(x + t)), alpha=None)


def _views(
    function: Callable[[Tensor, Tensor], Tensor],
    derivatives: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    alpha: float | None,
) -> Content:
    fixed = torch.tensor(_FIXED, dtype=torch.float64)
    x, t = _grid(-4, 4), _grid(0, 4)
    return {
        "alpha": alpha,
        "fixed": _FIXED,
        "views": [
            {
                "of": "x",
                "at": _short(x),
                "value": _short(function(x, fixed)),
                "slope": _short(derivatives(x, fixed)[0]),
            },
            {
                "of": "t",
                "at": _short(t),
                "value": _short(function(fixed.expand_as(t), t)),
                "slope": _short(derivatives(fixed.expand_as(t), t)[1]),
            },
        ],
    }


def _grid(low: int, high: int) -> Tensor:
    return torch.arange(round(low / _STEP), round(high / _STEP) + 1, dtype=torch.float64) * _STEP


def _short(values: Tensor) -> list[float]:
    """Round to what a picture can show, so that every machine writes the same digits."""
    return [round(value, 6) + 0.0 for value in values.tolist()]


def run_gathering(seeds: Iterable[int], *, results: Path, runs: Path, data_root: Path | None) -> Iterable[Path]:
    """Train the networks of figure 3 that are not published yet, one thread each, and yield the path after each seed.

    A run that is in `runs` already is read, not repeated.
    """
    path = figure_path(results, "figure3")
    for seed in seeds:
        content = read_published(path) if path.exists() else _empty()
        if any(entry["seed"] == seed for entry in content["networks"]):
            continue
        torch.set_num_threads(1)
        for decay in _DECAYS:
            directory = run(_job(decay, seed), runs, data_root=data_root, resume=True)
            content["networks"].append({"lambda_wd": decay, "seed": seed, **describe_weights(directory)})
        content["networks"].sort(key=lambda entry: (-entry["lambda_wd"], entry["seed"]))
        yield publish(path, content)


def _empty() -> Content:
    return {"job": asdict(_job(_DECAYS[0], 0)), "layer": _LAYER, "bin": _BIN, "versions": versions(), "networks": []}


def _job(decay: float, seed: int) -> Job:
    paper = preset("paper", _NETWORK)
    return replace(paper, seed=seed, train=replace(paper.train, lambda_wd=decay))


def describe_weights(directory: RunDirectory, layer: str = _LAYER) -> Content:
    """Say where the trained weights of a layer ended: raw W̃, as N_p uses them, those that were cut apart."""
    job = read_job(directory)
    sibling = load_sibling(directory, job)
    function = learned_thresholds(sibling)[layer]
    weight = next(r.original for r in readings(sibling, LearnedThreshold) if r.full_name == layer).detach()
    threshold = function.threshold.detach()
    mapped = theta(weight, threshold, function.alpha)
    kept = mapped.abs() >= job.train.cutoff
    t = threshold.item()
    return {
        "threshold": round(t, 6),
        "weights": weight.numel(),
        "kept": int(kept.sum()),
        "near": share_near(weight[kept], t),
        "near_mapped": share_near(mapped[kept], t),
        "within_20_percent": share_near(weight[kept], t, 0.2),
        "median": round((weight[kept].abs().median() / t).item(), 4),
        "survivors": histogram(weight[kept]),
        "cut": histogram(weight[~kept]),
    }


def share_near(weights: Tensor, threshold: float, tolerance: float = _NEAR) -> float:
    """Return the share of weights whose size is within `tolerance` of the threshold, as a share of it."""
    near = (weights.abs() - threshold).abs() <= tolerance * threshold
    return round(near.double().mean().item(), 6)


def histogram(weights: Tensor) -> list[int]:
    """Count weights in bins of one width over [−1, 1]; what lies beyond goes to the outermost."""
    bins = round(2 * _LARGEST / _BIN)
    places = ((weights.double() + _LARGEST) / _BIN).floor().long().clamp(0, bins - 1)
    return torch.bincount(places.flatten(), minlength=bins).tolist()


@dataclass(frozen=True)
class Gathering:
    """How many surviving weights lie at the threshold, as means and standard errors over seeds."""

    seeds: int
    with_decay: tuple[float, float]
    without_decay: tuple[float, float]
    difference: tuple[float, float]

    @property
    def appears(self) -> bool:
        """Whether decay puts more of them there: by more than twice the standard error of the difference."""
        mean, error = self.difference
        return mean > 2 * error  # false for NaN, that is for a single seed

    @property
    def sentence(self) -> str:
        """The answer in words."""
        shares = [
            f"{100 * mean:.1f} % ± {100 * error:.1f} {word}"
            for word, (mean, error) in (("with decay", self.with_decay), ("without", self.without_decay))
        ]
        verdict = "appears" if self.appears else "does not show"
        return (
            f"The gathering at the threshold {verdict}: of the weights that survive, {shares[0]} and {shares[1]} lie "
            f"within {100 * _NEAR:.0f} % of it (mean ± standard error, {self.seeds} seeds; the difference is "
            f"{100 * self.difference[0]:.1f} ± {100 * self.difference[1]:.1f} points, paired by seed)."
        )


def gathering(content: Content, key: str = "near") -> Gathering:
    """Sum up figure 3: shares of survivors at the threshold, of raw weights ("near") or of θ(w) ("near_mapped")."""
    shares = {
        decay: {entry["seed"]: entry[key] for entry in content["networks"] if entry["lambda_wd"] == decay}
        for decay in _DECAYS
    }
    seeds = sorted(shares[_DECAYS[0]].keys() & shares[_DECAYS[1]].keys())
    if not seeds:
        raise ValueError("figure 3 has no network yet: secateur reproduce figure3 --seeds 5 trains them")
    with_decay, without = ([shares[decay][seed] for seed in seeds] for decay in _DECAYS)
    return Gathering(
        seeds=len(seeds),
        with_decay=_mean_error(with_decay),
        without_decay=_mean_error(without),
        difference=_mean_error([a - b for a, b in zip(with_decay, without, strict=True)]),
    )


def _mean_error(values: list[float]) -> tuple[float, float]:
    mean, deviation = mean_std(values)
    return mean, deviation / math.sqrt(len(values))
