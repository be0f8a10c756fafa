"""Published searches for a preset's settings: their rule, what they chose, and everything that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secateur.job import Job
from secateur.results import HistoryPoint, StageResult


@dataclass(frozen=True, kw_only=True)
class EpochSearch:
    """A published search: its rule, what it chose, and every epoch of the long run."""

    rule: str
    chosen_epochs: int
    job: Job
    steps: int
    seconds: float
    versions: Mapping[str, str]
    history: tuple[HistoryPoint, ...]


def epoch_search_path(results: Path, network: str) -> Path:
    """Return where the search for the paper preset's epochs is published."""
    return results / network / "paper" / "search.json"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The state of one quality after some rounds; steps and seconds are cumulative from the first stage."""

    quality: float
    rounds: int
    error: float
    kept: int
    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class QualitySearch:
    """A published search: its rule, what it chose, what it cost, and everything that was tried."""

    rule: str
    chosen: Mapping[str, float]
    job: Job
    dense: StageResult
    steps: int
    seconds: float
    threads: int
    versions: Mapping[str, str]
    history: tuple[Tried, ...]


def quality_search_path(results: Path, network: str) -> Path:
    """Return where the search for Han et al.'s quality is published."""
    return results / network / "han2015" / "search.json"
