"""What the comparison of joint training with one step after the other has found, over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secateur.experiments.studies.published import read_runs
from secateur.experiments.studies.summaries import Spread, mean_error, mean_std
from secateur.results import PublishedRun

STUDY = "together"
RATIO = 110.0  # of the runs that prune first and share values then
RATE, WITHOUT_RATE = "rate", "no-rate"


@dataclass(frozen=True)
class Way:
    """One way to a small file: runs over seeds, and their differences to those that do one after the other."""

    label: str
    seeds: int
    size_bytes: Spread
    kept: Spread
    error: Spread
    difference: Spread  # paired by seed, with its standard error
    estimate_off: float  # |estimate ÷ file − 1| at most, NaN without an estimate
    layer_bits: Mapping[str, float]  # per weight kept, of the tensor's stream


def together(results: Path, network: str) -> list[Way]:
    """Return the three ways: one after the other, together, and together without the rate term."""
    labels = "budget+few-values", f"joint-{RATE}", f"joint-{WITHOUT_RATE}"
    runs = {label: read_runs(results, network, STUDY, label) for label in labels}
    first = runs[labels[0]]
    return [_way(label, found, first) for label, found in runs.items() if found]


def _way(label: str, runs: Mapping[int, PublishedRun], others: Mapping[int, PublishedRun]) -> Way:
    results = [run.result for run in runs.values()]
    both = sorted(runs.keys() & others.keys()) if runs is not others else []
    return Way(
        label=label,
        seeds=len(runs),
        size_bytes=mean_std(_size(run) for run in runs.values()),
        kept=mean_std(result.kept for result in results),
        error=mean_std(run.test_error() for run in runs.values()),
        difference=mean_error(runs[seed].test_error() - others[seed].test_error() for seed in both),
        estimate_off=max(_estimate_off(run) for run in runs.values()),
        layer_bits={
            layers[0].name: statistics.fmean(8 * layer.bytes / max(layer.kept, 1) for layer in layers)
            for layers in zip(*(result.layers for result in results), strict=True)
        },
    )


def _size(run: PublishedRun) -> float:
    return math.nan if run.result.file is None else run.result.file.bytes


def _estimate_off(run: PublishedRun) -> float:
    return abs(run.history[-1].coded_bytes / _size(run) - 1) if run.history else math.nan
