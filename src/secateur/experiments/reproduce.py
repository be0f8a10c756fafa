"""The paper's tables: run what is missing, seed by seed, and set our figures beside the published ones."""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from secateur import models
from secateur.experiments import rival
from secateur.experiments.compress import compress, evaluate_file
from secateur.experiments.job import Job, dense_job, evaluate, run, validation_by_cutoff
from secateur.experiments.presets import compression_preset, preset
from secateur.experiments.rundir import publish, read_published
from secateur.measure import count
from secateur.train.loop import read_log

Result = dict[str, Any]


@dataclass(frozen=True)
class Published:
    """A row of the paper's Table 1, as printed."""

    change: str
    kept: str
    ratio: str


@dataclass(frozen=True)
class PublishedLayers:
    """A row of the paper's Table 2: share of the weights pruned, layer by layer, as printed."""

    pruned: dict[str, float]
    total: float


HAN = {"lenet-300-100": Published("−0.1", "21K", "12×"), "lenet-5": Published("−0.1", "34K", "12×")}
PAPER = {"lenet-300-100": Published("+0.1", "14K", "19×"), "lenet-5": Published("0.0", "29K", "15×")}
PAPER_LAYERS = {
    "lenet-300-100": PublishedLayers({"fc1.weight": 94.7, "fc2.weight": 83.8, "fc3.weight": 11.9}, 94.7),
    "lenet-5": PublishedLayers(
        {"conv1.weight": 31.1, "conv2.weight": 82.2, "fc3.weight": 96.6, "fc4.weight": 41.7}, 93.3
    ),
}


def result_path(results: Path, preset_name: str, job: Job) -> Path:
    """Where the result of one seed is published."""
    variant = f"-p={job.sibling.init_quantile:g}" if preset_name == "sensitivity" else ""
    return results / job.network / preset_name / f"{job.method}{variant}-seed{job.seed:02d}.json"


def jobs(preset_name: str, network: str, seeds: Iterable[int]) -> list[Job]:
    """Return the pruned run of every seed, then the dense reference of every seed."""
    first, listed = preset(preset_name, network), list(seeds)
    return [replace(job, seed=seed) for job in (first, dense_job(first)) for seed in listed]


def file_path(results: Path, preset_name: str, job: Job) -> Path:
    """Where the file that one seed was compressed to is published: its size and error, not the file itself."""
    return results / job.network / preset_name / f"file-seed{job.seed:02d}.json"


def run_missing(
    wanted: Iterable[tuple[str, Job]],
    *,
    results: Path,
    runs: Path,
    workers: int,
    data_root: Path | None,
    as_files: bool = False,
) -> Iterable[Path]:
    """Run jobs whose result is not published yet, one thread each, and yield each new result's path.

    With `as_files` they are compressed as their preset says, and the file is what is published.
    """
    place, work = (file_path, _compress_and_publish) if as_files else (result_path, _run_and_publish)
    missing = [(name, job) for name, job in wanted if not place(results, name, job).exists()]
    if workers == 1:
        for name, job in missing:
            yield work(name, job, results, runs, data_root)
        return
    # The workers leave Ctrl-C to us, and we end them: a run stands being killed at any moment.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    others = set(active_children())
    failures = []
    try:
        futures = [pool.submit(work, name, job, results, runs, data_root) for name, job in missing]
        for future in as_completed(futures):
            failure = future.exception()
            if failure is None:
                yield future.result()
            else:
                failures.append(failure)
        if failures:  # not before the others are through
            raise failures[0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(active_children()) - others:
            worker.terminate()


def _run_and_publish(name: str, job: Job, results: Path, runs: Path, data_root: Path | None) -> Path:
    torch.set_num_threads(1)
    if job.method == "han2015":
        path = result_path(results, name, job)
        return rival.run_and_publish(job, path, results=results, runs=runs, data_root=data_root)
    directory = run(job, runs, data_root=data_root, resume=True)
    # A study of settings is judged on validation images only; the test set is for the final rows.
    judged = (
        {"cutoffs": validation_by_cutoff(directory, _CUTOFFS, data_root)}
        if name == "sensitivity"
        else {"test": evaluate(directory, data_root=data_root)}
    )
    content = {
        **directory.read(directory.result),
        **judged,
        "history": [
            {key: record[key] for key in ("epoch", "error", "ratio")}
            for record in read_log(directory.journal("train").log)
        ],
    }
    path = result_path(results, name, job)
    return publish(path, content)


def _compress_and_publish(name: str, job: Job, results: Path, runs: Path, data_root: Path | None) -> Path:
    torch.set_num_threads(1)
    _, file = compress(job, compression_preset(name), runs, data_root=data_root, resume=True)
    path = file_path(results, name, job)
    content = {**file.read(file.file_record), "test": evaluate_file(file, data_root=data_root)}
    return publish(path, content)


@dataclass(frozen=True)
class FileStats:
    """Files that were made alike, over seeds, as mean and standard deviation."""

    seeds: int
    kept: tuple[float, float]
    error_pruned: tuple[float, float]
    error: tuple[float, float]
    size_bytes: tuple[float, float]
    bits_per_weight_kept: float
    ratio: float

    @classmethod
    def of(cls, files: Sequence[Result], errors: Iterable[float], errors_pruned: Iterable[float]) -> FileStats:
        """Sum up the records of files, with their errors and those of the networks they were made of."""
        before = list(errors_pruned)
        return cls(
            seeds=len(files),
            kept=mean_std(file["kept"] for file in files),
            error_pruned=mean_std(before) if before else (math.nan, math.nan),
            error=mean_std(errors),
            size_bytes=mean_std(file["bytes"] for file in files),
            bits_per_weight_kept=statistics.fmean(8 * file["bytes"] / file["kept"] for file in files),
            ratio=statistics.fmean(file["fp32_bytes"] / file["bytes"] for file in files),
        )


@dataclass(frozen=True)
class FileRow:
    """The files that one preset's seeds were compressed to."""

    network: str
    preset: str
    codec: str
    files: FileStats


def summarize_files(results: Path, preset_name: str, network: str) -> FileRow | None:
    """Sum up the files of a preset, or return None if none is published. Both errors are on test images."""
    paths = sorted((results / network / preset_name).glob("file-seed*.json"))
    files = [read_published(path) for path in paths]
    if not files:
        return None
    pruned = read_results(results, preset_name, network)["prune"]
    stats = FileStats.of(
        files,
        (file["test"]["error"]["decoded"] for file in files),
        (_error(pruned[file["job"]["seed"]]) for file in files if file["job"]["seed"] in pruned),
    )
    return FileRow(network, preset_name, files[0]["compression"]["codec"], stats)


# How the paper's number of epochs was chosen: one long run, judged on validation images.
_SEARCH_EPOCHS = {"lenet-300-100": 70, "lenet-5": 36}
_SEARCH_RATIO = 20.5


def search_epochs(network: str, *, results: Path, runs: Path, data_root: Path | None) -> Path:
    """Publish the search for the paper preset's epochs: the fewest that prune past 20×, with room for other seeds.

    The learning rate is constant, so every epoch of one long run is the end of a shorter one.
    """
    path = results / network / "paper" / "search.json"
    if path.exists():
        return path
    torch.set_num_threads(1)
    first = preset("paper", network)
    job = replace(first, train=replace(first.train, epochs=_SEARCH_EPOCHS[network]))
    directory = run(job, runs, data_root=data_root, resume=True)
    history = [
        {key: record[key] for key in ("epoch", "error", "sibling_error", "ratio")}
        for record in read_log(directory.journal("train").log)
    ]
    content = {
        "rule": f"the fewest epochs with a ratio of at least {_SEARCH_RATIO}, on validation images, seed 0",
        "chosen_epochs": next(record["epoch"] for record in history if record["ratio"] >= _SEARCH_RATIO),
        **{
            key: value
            for key, value in directory.read(directory.result).items()
            if key in ("job", "seconds", "versions")
        },
        "history": history,
    }
    return publish(path, content)


def read_results(results: Path, preset_name: str, network: str) -> dict[str, dict[int, Result]]:
    """Return what is published, by method and seed."""
    found: dict[str, dict[int, Result]] = {"prune": {}, "dense": {}, "han2015": {}}
    for method, by_seed in found.items():
        for path in sorted((results / network / preset_name).glob(f"{method}*-seed*.json")):
            content = read_published(path)
            by_seed[content["job"]["seed"]] = content
    return found


def mean_std(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation (NaN for fewer than two)."""
    listed = list(values)
    return statistics.fmean(listed), statistics.stdev(listed) if len(listed) > 1 else math.nan


@dataclass(frozen=True)
class Row:
    """What we got for one network under one preset; differences are paired by seed, with their standard error."""

    network: str
    preset: str
    seeds: int
    dense_seeds: int
    dense_error: tuple[float, float]
    error: tuple[float, float]
    raw_error: tuple[float, float]
    difference: tuple[float, float]
    raw_difference: tuple[float, float]
    kept: tuple[float, float]
    ratio: tuple[float, float]
    layers: dict[str, tuple[float, float]]
    seconds: tuple[float, float]
    dense_seconds: tuple[float, float]
    training_images: int


def summarize(results: Path, preset_name: str, network: str) -> Row | None:
    """Put the published seeds of one network together; None if no pruned seed is there."""
    found = read_results(results, preset_name, network)
    pruned, dense = found["prune"], found["dense"]
    if not pruned:
        return None
    runs = [pruned[seed] for seed in sorted(pruned)]
    references = [dense[seed] for seed in sorted(dense)]
    return Row(
        network=network,
        preset=preset_name,
        seeds=len(runs),
        dense_seeds=len(references),
        dense_error=mean_std(map(_error, references)) if references else (math.nan, math.nan),
        error=mean_std(map(_error, runs)),
        raw_error=mean_std(_error(result, "raw") for result in runs),
        difference=_difference(pruned, dense, "final"),
        raw_difference=_difference(pruned, dense, "raw"),
        kept=mean_std(result["kept"] for result in runs),
        ratio=mean_std(result["ratio"] for result in runs),
        layers={
            layer["name"]: mean_std(100 * (1 - result["layers"][index]["kept"] / layer["weights"]) for result in runs)
            for index, layer in enumerate(runs[0]["layers"])
        },
        seconds=mean_std(sum(result["seconds"].values()) for result in runs),
        dense_seconds=mean_std(sum(result["seconds"].values()) for result in references)
        if references
        else (math.nan, math.nan),
        training_images=runs[0]["training_images"],
    )


def _difference(pruned: dict[int, Result], dense: dict[int, Result], which: str) -> tuple[float, float]:
    """Return the mean difference of seeds that have both, and its standard error."""
    found = [_error(pruned[seed], which) - _error(dense[seed]) for seed in sorted(pruned.keys() & dense.keys())]
    if not found:
        return math.nan, math.nan
    center, spread = mean_std(found)
    return center, spread / math.sqrt(len(found))


def largest_layers_prune_most(row: Row, weights: dict[str, int]) -> bool:
    """Tell whether the order of the layers by size is their order by share pruned, as the paper observes."""
    by_size = sorted(weights, key=lambda name: weights[name])
    shares = [row.layers[name][0] for name in by_size]
    return shares == sorted(shares)


def layer_sizes(network: str) -> dict[str, int]:
    """Return the number of weights of every prunable tensor of a network."""
    return {tensor.name: tensor.weights for tensor in count(models.build(network, seed=0)).prunable.tensors}


@dataclass(frozen=True)
class Setting:
    """One setting of the sensitivity study, judged on validation images."""

    name: str
    seeds: int
    ratio: tuple[float, float]
    error: tuple[float, float]


_CUTOFFS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
_QUANTILES = (0.0, 0.02, 0.05, 0.1, 0.2)


def sensitivity_jobs(network: str, seeds: Iterable[int]) -> list[tuple[str, Job]]:
    """Return the runs of the sensitivity study: the paper's settings with other initial quantiles p."""
    first = preset("paper", network)
    return [
        ("sensitivity", replace(first, seed=seed, sibling=replace(first.sibling, init_quantile=p)))
        for seed in seeds
        for p in _QUANTILES
    ]


def sensitivity(results: Path, network: str) -> list[Setting]:
    """Put the sensitivity study together: p by runs of its own, γ by cutting the runs with p = 0.1 elsewhere."""
    runs = [read_published(path) for path in sorted((results / network / "sensitivity").glob("*.json"))]
    settings = []
    for p in _QUANTILES:
        chosen = [run for run in runs if run["job"]["sibling"]["init_quantile"] == p]
        if chosen:
            ratios, errors = (
                mean_std(v) for v in ([r["ratio"] for r in chosen], [r["validation"]["final"] for r in chosen])
            )
            settings.append(Setting(f"p = {p:g}", len(chosen), ratios, errors))
    chosen = [run for run in runs if run["job"]["sibling"]["init_quantile"] == 0.1]
    for cutoff in _CUTOFFS if chosen else ():
        cuts = [run["cutoffs"][f"{cutoff:g}"] for run in chosen]
        ratios, errors = mean_std(cut["ratio"] for cut in cuts), mean_std(cut["error"] for cut in cuts)
        settings.append(Setting(f"γ = {cutoff:g}", len(chosen), ratios, errors))
    return settings


def _error(result: Result, which: str = "final") -> float:
    return float(result["test"]["error"][which])
