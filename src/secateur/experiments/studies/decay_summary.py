"""Files with and without weight decay, over seeds: the published results of `decay.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secateur.experiments.studies.summaries import FileStats, file_stats
from secateur.job import Job
from secateur.results import FileResult, last, read


@dataclass(frozen=True, kw_only=True)
class DecayFile:
    """A file of one decay and one number of shared values."""

    lambda_wd: float
    levels: int
    kept: int
    errors: Mapping[str, float]
    file: FileResult


@dataclass(frozen=True, kw_only=True)
class DecayStudy:
    """The published files of one seed."""

    job: Job
    files: tuple[DecayFile, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class DecayRow:
    """Files of one decay and one number of shared values, over seeds."""

    lambda_wd: float
    levels: int
    files: FileStats


def summarize_decay(results: Path, network: str) -> list[DecayRow]:
    """Summarise what is published, by decay and number of shared values."""
    studies = [read(DecayStudy, path) for path in sorted((results / network / "decay").glob("seed*.json"))]
    files = [file for study in studies for file in study.files]
    rows = []
    for decay, levels in dict.fromkeys((file.lambda_wd, file.levels) for file in files):
        same = [file for file in files if (file.lambda_wd, file.levels) == (decay, levels)]
        stats = file_stats(
            [each.kept for each in same],
            [each.file.bytes for each in same],
            [each.file.dense_bytes for each in same],
            [last(each.errors) for each in same],
            [each.errors["pruned"] for each in same],
        )
        rows.append(DecayRow(decay, levels, stats))
    return rows
