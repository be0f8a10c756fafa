"""Published results: one JSON file per run, in a folder per network and preset."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from secateur import literature
from secateur.experiments.directory import RunDirectory
from secateur.job import Job
from secateur.results import HistoryPoint, PublishedRun, read
from secateur.train.journal import read_log


def result_path(results: Path, job: Job, *, study: str | None = None, variant: str = "") -> Path:
    """Return the path of one published run: under its preset, or under the study that it belongs to."""
    name = "-".join(filter(None, [job.label, variant, f"seed{job.seed:02d}"]))
    return results / folder_of(job.network, job.data) / (study or job.preset) / f"{name}.json"


def folder_of(network: str, data: str | None = None) -> str:
    """Return the folder of a network's results, which says on which data if these are not the paper's.

    None are the paper's data; networks that the paper does not have are not told apart.
    """
    usual = literature.paper_data(network)
    return network if usual is None or data in (None, usual) else f"{network}-{data}"


def read_runs(results: Path, network: str, preset: str, label: str, data: str | None = None) -> dict[int, PublishedRun]:
    """Return the published runs of these methods by seed, on the paper's data unless others are given."""
    paths = sorted((results / folder_of(network, data) / preset).glob(f"{label}-seed*.json"))
    runs = [read(PublishedRun, path) for path in paths]
    return {run.seed: run for run in runs}


def read_history(directory: RunDirectory, stages: Iterable[str] = ("train",)) -> tuple[HistoryPoint, ...]:
    """Return the epochs of a run's first stage, or of several stages one after the other."""
    keys = ("error", "ratio", "sibling_error", "coded_bytes")
    lines = [line for stage in stages if (log := directory.journal(stage).log).exists() for line in read_log(log)]
    return tuple(
        HistoryPoint(epoch=number, **{key: line[key] for key in keys if key in line})
        for number, line in enumerate(lines, start=1)
    )
