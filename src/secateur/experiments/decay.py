"""Does weight decay make quantisation cheaper? The paper suspects so: decay gathers weights at the threshold.

The paper preset is run with and without decay, and each network is compressed with several numbers of shared values.
What counts is bytes at equal error; judged on validation images.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from secateur.atomic import write_atomically
from secateur.experiments.compress import Compression, compress
from secateur.experiments.job import Job, versions
from secateur.experiments.presets import preset
from secateur.experiments.reproduce import mean_std

_DECAYS = (0.0, 1e-4)
_LEVELS = (2, 4, 8, 32)


@dataclass(frozen=True)
class DecayRow:
    """Files of one decay and one number of shared values, over seeds."""

    lambda_wd: float
    levels: int
    seeds: int
    kept: tuple[float, float]
    error_pruned: tuple[float, float]
    error: tuple[float, float]
    size_bytes: tuple[float, float]
    bits_per_weight_kept: float


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
                _, file = compress(job, Compression(levels=levels), runs, data_root=data_root, resume=True)
                record = file.read(file.file_record)
                entries.append({"lambda_wd": decay, "levels": levels} | {key: record[key] for key in _KEYS})
        content = {"job": asdict(_job(network, _DECAYS[-1], seed)), "files": entries, "versions": versions()}
        write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        yield path


_KEYS = ("kept", "bytes", "validation")


def summarize_decay(results: Path, network: str) -> list[DecayRow]:
    """Sum up what is published, by decay and number of shared values."""
    files = [
        file
        for path in sorted((results / network / "decay").glob("seed*.json"))
        for file in json.loads(path.read_text())["files"]
    ]
    rows = []
    for decay, levels in dict.fromkeys((file["lambda_wd"], file["levels"]) for file in files):
        same = [file for file in files if (file["lambda_wd"], file["levels"]) == (decay, levels)]
        rows.append(
            DecayRow(
                lambda_wd=decay,
                levels=levels,
                seeds=len(same),
                kept=mean_std(file["kept"] for file in same),
                error_pruned=mean_std(file["validation"]["pruned"] for file in same),
                error=mean_std(file["validation"]["decoded"] for file in same),
                size_bytes=mean_std(file["bytes"] for file in same),
                bits_per_weight_kept=math.fsum(8 * file["bytes"] / file["kept"] for file in same) / len(same),
            )
        )
    return rows


def _job(network: str, decay: float, seed: int) -> Job:
    paper = preset("paper", network)
    return replace(paper, seed=seed, train=replace(paper.train, lambda_wd=decay))


def _path(results: Path, network: str, seed: int) -> Path:
    return results / network / "decay" / f"seed{seed:02d}.json"
