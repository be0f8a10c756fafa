"""Presets side by side: weights kept, error and training cost, including the search for settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secateur.experiments.presets import has_preset, preset_names
from secateur.experiments.studies.searches import EpochSearch, QualitySearch, epoch_search_path, quality_search_path
from secateur.experiments.studies.summaries import Row, summarize
from secateur.results import read


@dataclass(frozen=True)
class Standing:
    """The result of a preset on one network, and the cost of the search for its settings, if published."""

    row: Row
    search_steps: int | None
    search_seconds: float | None


def standings(results: Path, network: str) -> list[Standing]:
    """Return the results of every preset with published runs of this network."""
    rows = [summarize(results, name, network) for name in preset_names() if has_preset(name, network)]
    return [Standing(row, *_search(results, row.preset, network)) for row in rows if row is not None]


def _search(results: Path, name: str, network: str) -> tuple[int | None, float | None]:
    """Return the steps and seconds of the search for a preset's settings, if one is published."""
    search: EpochSearch | QualitySearch
    if name == "paper" and (path := epoch_search_path(results, network)).exists():
        search = read(EpochSearch, path)
    elif name == "han2015" and (path := quality_search_path(results, network)).exists():
        search = read(QualitySearch, path)
    else:
        return None, None
    return search.steps, search.seconds
