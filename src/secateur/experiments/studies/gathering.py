"""Published data of the paper's figures, and whether weight decay gathers weights at the threshold (figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from secateur.experiments.studies.summaries import Spread, mean_error
from secateur.job import Job

FIGURES = ("figure1", "figure2", "figure3")
DECAYS = (1e-4, 0.0)
NEAR = 0.1  # "at the threshold": within this share of it


@dataclass(frozen=True, kw_only=True)
class View:
    """A function of "x" or "t" with the other variable fixed: positions, values and slopes."""

    of: str
    at: tuple[float, ...]
    value: tuple[float, ...]
    slope: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Views:
    """Figure 1 or 2: the function along x and along t."""

    alpha: float | None
    fixed: float
    views: tuple[View, ...]


@dataclass(frozen=True, kw_only=True)
class TrainedWeights:
    """The trained weights of a layer, raw as N_p uses them, with kept and cut weights counted separately."""

    lambda_wd: float
    seed: int
    threshold: float
    weights: int
    kept: int
    near: float
    near_mapped: float
    within_20_percent: float
    median: float
    survivors: tuple[int, ...]  # histogram of the weights kept
    cut: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GatheringStudy:
    """Figure 3: the first layer's weights with and without decay, over seeds."""

    job: Job
    layer: str
    bin: float
    versions: Mapping[str, str]
    networks: tuple[TrainedWeights, ...] = ()


def figure_path(results: Path, figure: str) -> Path:
    """Return the path of a figure's published data."""
    return results / "figures" / f"{figure}.json"


@dataclass(frozen=True)
class Gathering:
    """The shares of kept weights at the threshold, as means and standard errors over seeds."""

    seeds: int
    with_decay: Spread
    without_decay: Spread
    difference: Spread

    @property
    def appears(self) -> bool:
        """Whether the share with decay is larger by more than twice the standard error of the difference."""
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
            f"The gathering at the threshold {verdict}: of the weights kept, {shares[0]} and {shares[1]} lie "
            f"within {100 * NEAR:.0f} % of it (mean ± standard error, {self.seeds} seeds; the difference is "
            f"{100 * self.difference[0]:.1f} ± {100 * self.difference[1]:.1f} points, paired by seed)."
        )


def gathering(study: GatheringStudy, key: Literal["near", "near_mapped", "within_20_percent"] = "near") -> Gathering:
    """Summarise figure 3: shares of kept weights at the threshold, raw ("near") or after θ ("near_mapped")."""
    shares: dict[float, dict[int, float]] = {
        decay: {entry.seed: getattr(entry, key) for entry in study.networks if entry.lambda_wd == decay}
        for decay in DECAYS
    }
    seeds = sorted(shares[DECAYS[0]].keys() & shares[DECAYS[1]].keys())
    if not seeds:
        raise ValueError("figure 3 has no networks yet: secateur reproduce figure3 --seeds 5 trains them")
    with_decay, without = ([shares[decay][seed] for seed in seeds] for decay in DECAYS)
    return Gathering(
        seeds=len(seeds),
        with_decay=mean_error(with_decay),
        without_decay=mean_error(without),
        difference=mean_error(a - b for a, b in zip(with_decay, without, strict=True)),
    )
