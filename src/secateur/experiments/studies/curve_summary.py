"""What pruning a network to several ratios has found, over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from secateur.experiments.presets import preset
from secateur.experiments.studies.published import read_runs, result_path
from secateur.experiments.studies.summaries import Spread, mean_error, mean_std
from secateur.job import Job
from secateur.methods import Budgeted, Dense
from secateur.results import PublishedRun

STUDY = "curve"
_LONGER = "longer"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The ratios that a network is pruned to, each with the epochs that lead to it, and the preset for all else."""

    ratios: Mapping[float, int]
    data: str = "cifar10"
    preset: str = "best"
    prune_lr: float | None = None  # of the weights while they are pruned; None: the preset's
    full_width: str = ""  # the network that publications prune, where this one is a narrower copy


# After 12 epochs ResNet-20 at 10× stood 2.5 points above its dense network.
CURVES: Mapping[str, Curve] = {
    "resnet-20": Curve(ratios={10: 40, 20: 25}),
    "resnet-32": Curve(ratios={10: 40, 20: 25}),
    "resnet-56": Curve(ratios={10: 40, 20: 25}),
    # 15 epochs at the dense network's own rate of 0.1 led VGG-16 of half width, seed 0, from 8.5 to 9.4 % at 20×, and
    # at 0.03 to 9.2 % (validation images).
    "vgg-16-cifar-quarter": Curve(ratios={20: 30, 50: 30}, prune_lr=0.03, full_width="vgg-16-cifar"),
    "vgg-16-cifar-half": Curve(ratios={20: 15, 50: 15}, prune_lr=0.03, full_width="vgg-16-cifar"),
    "vgg-16-cifar": Curve(ratios={20: 18, 50: 18, 100: 18}, prune_lr=0.03),
    "alexnet": Curve(ratios={12: 8}, data="imagenette", preset="quick"),
}


@dataclass(frozen=True)
class Longer:
    """A network that was never pruned, trained for as many epochs as the first ratio's and its dense one together."""

    network: str
    epochs: int
    seeds: int
    weights: int
    error: Spread  # on test images, in percent


@dataclass(frozen=True)
class Point:
    """A network at one ratio, over seeds; errors are on test images, in percent."""

    network: str
    ratio: float
    epochs: tuple[int, ...]  # of the dense network, then from one ratio to the next
    seeds: int
    weights: int
    kept: Spread
    dense_error: Spread
    pruned_error: Spread
    difference: Spread  # of the pruned network to the dense one, paired by seed, with its standard error
    file_error: Spread
    file_bytes: Spread
    smaller: float  # bytes of 32-bit floats ÷ bytes of the file
    file_epochs: int  # while layers of the file's network had few values, after all others
    images_per_second: float  # of the training in all its stages, one thread
    pruned_shares: Mapping[str, float]  # percent of each layer's weights, mean over seeds


def longer_job(network: str, seed: int) -> Job:
    """Return the training that tells what pruning gains by its epochs from what it costs."""
    chosen = CURVES[network]
    usual = preset(chosen.preset, network, data=chosen.data, seed=seed)
    recipe = replace(usual.recipe, epochs=usual.recipe.epochs + next(iter(chosen.ratios.values())))
    return replace(usual, methods=(Dense(),), recipe=recipe)


def curve_path(results: Path, job: Job) -> Path:
    """Return where a run of the study is published; its ratio is a part of the name."""
    budgets = [method.budget for method in job.methods if isinstance(method, Budgeted)]
    if budgets:
        variant = _variant(budgets[-1].ratio or 1)
    else:
        variant = _LONGER if job == longer_job(job.network, job.seed) else ""
    return result_path(results, job, study=STUDY, variant=variant)


def curve(results: Path, network: str) -> list[Point]:
    """Return the published points of a network, the smallest ratio first."""
    found = []
    for number, ratio in enumerate(CURVES[network].ratios, start=1):
        label = f"{'+'.join(['dense', *['budget'] * number, 'few-values'])}-{_variant(ratio)}"
        runs = list(read_runs(results, network, STUDY, label, CURVES[network].data).values())
        if runs:
            found.append(_point(network, ratio, runs, pruned="pruned" if number == 1 else f"pruned-{number}"))
    return found


def longer(results: Path, network: str) -> Longer | None:
    """Return what the dense network reaches in as many epochs as the first ratio, if that is published."""
    runs = list(read_runs(results, network, STUDY, f"dense-{_LONGER}", CURVES[network].data).values())
    if not runs:
        return None
    return Longer(
        network=network,
        epochs=runs[0].result.job.recipe.epochs,
        seeds=len(runs),
        weights=runs[0].result.weights,
        error=mean_std(run.test_error() for run in runs),
    )


def _epochs(job: Job) -> tuple[int, ...]:
    pruned = (method.epochs(job.recipe) for method in job.methods if isinstance(method, Budgeted))
    return job.recipe.epochs, *pruned


def _images_per_second(run: PublishedRun) -> float:
    stages = run.result.stages
    seconds = sum(stage.seconds for stage in stages)
    return run.result.job.recipe.batch_size * sum(stage.steps for stage in stages) / seconds if seconds else math.nan


def _variant(ratio: float) -> str:
    return f"{ratio:g}x"


def _point(network: str, ratio: float, runs: list[PublishedRun], *, pruned: str) -> Point:
    files = [run.result.file for run in runs if run.result.file is not None]
    layers = zip(*(run.result.layers for run in runs), strict=True)
    return Point(
        network=network,
        ratio=ratio,
        epochs=_epochs(runs[0].result.job),
        seeds=len(runs),
        weights=runs[0].result.weights,
        kept=mean_std(run.result.kept for run in runs),
        dense_error=mean_std(run.test_error("dense") for run in runs),
        pruned_error=mean_std(run.test_error(pruned) for run in runs),
        difference=mean_error(run.test_error(pruned) - run.test_error("dense") for run in runs),
        file_error=mean_std(run.test_error() for run in runs),
        file_bytes=mean_std(file.bytes for file in files),
        smaller=statistics.fmean(file.dense_bytes / file.bytes for file in files),
        file_epochs=sum(stage.epochs for stage in runs[0].result.stages if stage.name == "quantize"),
        images_per_second=statistics.fmean(_images_per_second(run) for run in runs),
        pruned_shares={
            each[0].name: statistics.fmean(100 * (1 - layer.kept / layer.weights) for layer in each) for each in layers
        },
    )
