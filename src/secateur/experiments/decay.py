"""Does weight decay make quantisation cheaper? The paper suspects so: decay gathers weights at the threshold.

The paper preset is run with and without decay, and each network is compressed with several numbers of shared values.
What counts is bytes at equal error; judged on validation images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from secateur.experiments.compress import Compression, compress
from secateur.experiments.job import Job, versions
from secateur.experiments.presets import preset
from secateur.experiments.reproduce import FileStats
from secateur.experiments.rundir import publish, read_published

_DECAYS = (0.0, 1e-4)
_LEVELS = (2, 4, 8, 32)


@dataclass(frozen=True)
class DecayRow:
    """Files of one decay and one number of shared values."""

    lambda_wd: float
    levels: int
    files: FileStats


def run_decay_study(
    network: str, seeds: Iterable[int], *, results: Path, runs: Path, data_root: Path | None
) -> Iterable[Path]:
    """Run the seeds whose result is not published yet, one thread each, and yield each new result's path."""
    for seed in seeds:
        path = _path(results, network, seed)
        if path.exists():
            continue
        torch.set_num_threads(1)
        entries = []
        for decay in _DECAYS:
            job = _job(network, decay, seed)
            for levels in _LEVELS:
                _, file = compress(
                    job, Compression(levels=levels, conv_levels=levels), runs, data_root=data_root, resume=True
                )
                record = file.read(file.file_record)
                entries.append({"lambda_wd": decay, "levels": levels} | {key: record[key] for key in _KEYS})
        content = {"job": asdict(_job(network, _DECAYS[-1], seed)), "files": entries, "versions": versions()}
        yield publish(path, content)


_KEYS = ("kept", "bytes", "fp32_bytes", "validation")


def summarize_decay(results: Path, network: str) -> list[DecayRow]:
    """Sum up what is published, by decay and number of shared values."""
    files = [
        file
        for path in sorted((results / network / "decay").glob("seed*.json"))
        for file in read_published(path)["files"]
    ]
    rows = []
    for decay, levels in dict.fromkeys((file["lambda_wd"], file["levels"]) for file in files):
        same = [file for file in files if (file["lambda_wd"], file["levels"]) == (decay, levels)]
        errors, pruned = ([file["validation"][key] for file in same] for key in ("decoded", "pruned"))
        rows.append(DecayRow(decay, levels, FileStats.of(same, errors, pruned)))
    return rows


def _job(network: str, decay: float, seed: int) -> Job:
    paper = preset("paper", network)
    return replace(paper, seed=seed, train=replace(paper.train, lambda_wd=decay))


def _path(results: Path, network: str, seed: int) -> Path:
    return results / network / "decay" / f"seed{seed:02d}.json"
