"""Published runs over seeds, as means with standard deviations; every error with its dense network's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from secateur import networks
from secateur.experiments.presets import preset
from secateur.experiments.studies.published import folder_of, read_runs
from secateur.measure import count
from secateur.results import PublishedRun

Spread: TypeAlias = tuple[float, float]  # mean and sample standard deviation, or standard error where it says so
NONE: Spread = (math.nan, math.nan)


def mean_std(values: Iterable[float]) -> Spread:
    """Return mean and sample standard deviation (NaN for fewer than two); values that are NaN do not count."""
    listed = [value for value in values if not math.isnan(value)]
    if not listed:
        return NONE
    return statistics.fmean(listed), statistics.stdev(listed) if len(listed) > 1 else math.nan


def mean_error(values: Iterable[float]) -> Spread:
    """Return mean and standard error."""
    listed = [value for value in values if not math.isnan(value)]
    mean, deviation = mean_std(listed)
    return mean, deviation / math.sqrt(len(listed) or 1)


@dataclass(frozen=True)
class Row:
    """Runs of one network under one preset; differences are paired by seed, with their standard error."""

    network: str
    preset: str
    label: str
    seeds: int
    dense_seeds: int
    dense_error: Spread
    error: Spread
    raw_error: Spread
    difference: Spread
    raw_difference: Spread
    top5_error: Spread  # NaN with ten classes or fewer
    top5_difference: Spread
    kept: Spread
    ratio: Spread
    layers: dict[str, Spread]
    layer_weights: dict[str, int]
    steps: int
    seconds: Spread
    training_images: int


def summarize(
    results: Path, preset_name: str, network: str, label: str | None = None, *, data: str | None = None
) -> Row | None:
    """Summarise the published runs of a preset, with its own method or another one; None if there is none.

    They are those on the paper's data unless others are given.
    """
    if not (results / folder_of(network, data) / preset_name).is_dir():
        return None
    label = preset(preset_name, network).label if label is None else label
    pruned = read_runs(results, network, preset_name, label, data)
    references = read_runs(results, network, preset_name, "dense", data)
    if not pruned:
        return None
    runs = [pruned[seed] for seed in sorted(pruned)]
    first, dense = runs[0].result, dense_errors(pruned, references)
    return Row(
        network=network,
        preset=preset_name,
        label=label,
        seeds=len(runs),
        dense_seeds=len(dense),
        dense_error=mean_std(dense.values()),
        error=mean_std(run.test_error() for run in runs),
        raw_error=mean_std(run.test_error("raw") for run in runs),
        difference=_difference(pruned, dense, None),
        raw_difference=_difference(pruned, dense, "raw"),
        top5_error=mean_std(run.test_top5_error() for run in runs),
        top5_difference=mean_error(
            pruned[seed].test_top5_error() - references[seed].test_top5_error()
            for seed in sorted(pruned.keys() & references.keys())
        ),
        kept=mean_std(run.result.kept for run in runs),
        ratio=mean_std(run.result.ratio for run in runs),
        layers={
            layer.name: mean_std(100 * (1 - run.result.layers[index].kept / layer.weights) for run in runs)
            for index, layer in enumerate(first.layers)
        },
        layer_weights={layer.name: layer.weights for layer in first.layers},
        steps=first.steps,
        seconds=mean_std(run.result.seconds for run in runs),
        training_images=first.training_images,
    )


def dense_errors(runs: Mapping[int, PublishedRun], references: Mapping[int, PublishedRun]) -> dict[int, float]:
    """Return the test errors of dense networks by seed: those that the runs started from, or else the references'."""
    own = {seed: run.test_error("dense") for seed, run in runs.items()}
    own = {seed: error for seed, error in own.items() if not math.isnan(error)}
    return own or {seed: run.test_error() for seed, run in references.items()}


def _difference(runs: Mapping[int, PublishedRun], dense: Mapping[int, float], form: str | None) -> Spread:
    return mean_error(runs[seed].test_error(form) - dense[seed] for seed in sorted(runs.keys() & dense.keys()))


@dataclass(frozen=True)
class FileStats:
    """Files written with the same settings, over seeds."""

    seeds: int
    kept: Spread
    error_pruned: Spread
    error: Spread
    size_bytes: Spread
    bits_per_weight_kept: float
    ratio: float


def file_stats(
    kept: Sequence[int],
    sizes: Sequence[int],
    dense_sizes: Sequence[int],
    errors: Iterable[float],
    errors_pruned: Iterable[float],
) -> FileStats:
    """Summarise files: their weights, their bytes, and the errors of their networks before and after coding."""
    return FileStats(
        seeds=len(sizes),
        kept=mean_std(kept),
        error_pruned=mean_std(errors_pruned),
        error=mean_std(errors),
        size_bytes=mean_std(sizes),
        bits_per_weight_kept=statistics.fmean(8 * size / left for size, left in zip(sizes, kept, strict=True)),
        ratio=statistics.fmean(dense / size for size, dense in zip(sizes, dense_sizes, strict=True)),
    )


@dataclass(frozen=True)
class FileRow:
    """The files of one preset over seeds; errors are on test images."""

    network: str
    preset: str
    codec: str
    files: FileStats
    dense_seeds: int
    dense_error: Spread
    errors: dict[str, Spread]  # after each step that every seed has: dense, pruned, shared, file


def summarize_files(results: Path, preset_name: str, network: str) -> FileRow | None:
    """Summarise the published files of a preset; None if there is none."""
    if not (results / network / preset_name).is_dir():
        return None
    whole, pruning = preset(preset_name, network, to_file=True), preset(preset_name, network)
    runs = read_runs(results, network, preset_name, whole.label)
    if not runs:
        return None
    pruned = read_runs(results, network, preset_name, pruning.label)
    dense = dense_errors(runs, read_runs(results, network, preset_name, "dense"))
    found = [(run, run.result.file) for run in runs.values()]
    files = [(run, file) for run, file in found if file is not None]
    forms = [form for form in ("dense", "pruned", "shared", "file") if all(form in _forms(run) for run, _ in files)]
    return FileRow(
        network=network,
        preset=preset_name,
        codec=whole.coding.codec,
        files=file_stats(
            [run.result.kept for run, _ in files],
            [file.bytes for _, file in files],
            [file.dense_bytes for _, file in files],
            (run.test_error() for run, _ in files),
            (pruned[seed].test_error(pruning.methods[0].leaves) for seed in runs if seed in pruned),
        ),
        dense_seeds=len(dense),
        dense_error=mean_std(dense.values()),
        errors={form: mean_std(run.test_error(form) for run, _ in files) for form in forms},
    )


def _forms(run: PublishedRun) -> Mapping[str, float]:
    return run.test.errors if run.test is not None else {}


def largest_layers_prune_most(row: Row, weights: Mapping[str, int]) -> bool:
    """Return whether the order of the layers by size is their order by share pruned, as the paper observes."""
    by_size = sorted(weights, key=lambda name: weights[name])
    shares = [row.layers[name][0] for name in by_size]
    return shares == sorted(shares)


def layer_sizes(network: str) -> dict[str, int]:
    """Return the number of weights of every prunable tensor of a network."""
    return {tensor.name: tensor.weights for tensor in count(networks.build(network, seed=0)).prunable.tensors}
