"""What runs with a budget of error have reached, next to a sweep over ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from secateur.job import Job
from secateur.results import read


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A network that was pruned to a given ratio: what it has, and its error on validation images."""

    ratio: float
    error: float


@dataclass(frozen=True, kw_only=True)
class ErrorIncreaseStudy:
    """A run with a budget of error, and networks of larger ratios; errors in percent, on validation images."""

    job: Job
    increase: float
    dense_error: float
    error: float
    ratio: float
    swept: tuple[Swept, ...]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """Whether the error is within the budget; rounded, because errors are multiples of an image."""
        return self._allows(self.error)

    @property
    def best_ratio(self) -> float:
        """The largest ratio that the error allows, of the run and of the sweep."""
        return max([self.ratio, *(each.ratio for each in self.swept if self._allows(each.error))])

    def _allows(self, error: float) -> bool:
        return round(error - self.dense_error - self.increase, 6) <= 0


def error_increase_path(results: Path, job: Job) -> Path:
    """Return where the study of a seed is published."""
    return results / job.network / "error-increase" / f"seed{job.seed:02d}.json"


def error_increases(results: Path, network: str) -> list[ErrorIncreaseStudy]:
    """Return the published studies of a network, by seed."""
    paths = sorted((results / network / "error-increase").glob("seed*.json"))
    return [read(ErrorIncreaseStudy, path) for path in paths]
