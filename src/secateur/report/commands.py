"""The commands that repeat what a run has done."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from secateur.experiments.compress import Compression
from secateur.experiments.job import Job
from secateur.experiments.presets import compression_preset, preset, preset_names


def command(job: Job, *, to_file: bool = False, compression: Compression | None = None) -> str:
    """Return the shortest command that repeats a job, or makes a file out of it: as its preset does, or as told."""
    if job.method == "han2015":
        return shlex.join(["secateur", "reproduce", "rival", "--networks", job.network, "--seeds", str(job.seed + 1)])

    def flags(name: str) -> list[str]:
        start = preset(name, job.network)
        found = [] if name == "paper" else ["--preset", name]
        pairs: list[tuple[Any, Any]] = [(start.sibling, job.sibling), (start.train, job.train)]
        if to_file and compression is not None:
            pairs.append((compression_preset(name), compression))
        for before, after in pairs:
            for entry in fields(before):
                value = getattr(after, entry.name)
                if value != getattr(before, entry.name):
                    found += _flag(entry.name, value)
        return found

    shortest = min((flags(name) for name in preset_names() if _has_preset(name, job.network)), key=len)
    data = [] if job.data == "mnist" else ["--data", job.data]
    seed = [] if job.seed == 0 else ["--seed", str(job.seed)]
    dense = ["--dense"] if job.method == "dense" and not to_file else []
    verb = "compress" if to_file else "prune"
    return shlex.join(["secateur", verb, job.network, *data, *shortest, *seed, *dense])


def _has_preset(name: str, network: str) -> bool:
    try:
        preset(name, network)
    except ValueError:
        return False
    return True


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", repr(value) if isinstance(value, float) else str(value)]
