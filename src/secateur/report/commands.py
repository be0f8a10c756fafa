"""The commands that repeat what a run has done."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from secateur.budget import Budget
from secateur.experiments.presets import default_preset, has_preset, preset
from secateur.job import Job
from secateur.networks import modules_of

_USUAL_DATA = "mnist"  # what the command line starts from


def command(job: Job, *, extra: Sequence[str] = ()) -> str:
    """Return the shortest command that repeats a job, with `extra` words at the end.

    Settings are flags on top of a preset. The preset is a part of a run's name, so that the job's own is used if it has
    settings for the network. A ValueError says that no command describes the job.
    """
    if job.is_given:
        raise ValueError("no command repeats a run of secateur.compress: its network and data are objects in Python")
    to_file = len(job.methods) > 1
    start = preset(job.preset, job.network, data=job.data, seed=job.seed, to_file=to_file)
    words = ["secateur", "compress" if to_file else "prune", job.network]
    words += [] if job.data == _USUAL_DATA else ["--data", job.data]
    words += [] if job.preset == default_preset(job.network) else ["--preset", job.preset]
    if type(job.methods[0]) is not type(start.methods[0]):
        words += ["--method", job.methods[0].name]
        start = start.with_method(type(job.methods[0])())
    if [*map(type, job.methods)] != [*map(type, start.methods)]:
        raise ValueError(f"no command runs the methods {job.label}")
    pairs = [*zip(start.methods, job.methods, strict=True), (start.recipe, job.recipe)]
    pairs += [(start.inputs, job.inputs), (start.coding, job.coding)]
    for before, after in pairs:
        words += _flags(before, after)
    words += [] if job.seed == 0 else ["--seed", str(job.seed)]
    return shlex.join([*words, *extra])


def evaluation(run: Path, network: str, data: str) -> str:
    """Return the command that evaluates a finished run; modules of its network and data have to be trusted."""
    modules = dict.fromkeys((*modules_of(network), *modules_of(data)))
    trust = [word for module in modules for word in ("--trust", module)]
    return shlex.join(["secateur", "evaluate", str(run), *trust])


def with_file(job: Job) -> Job:
    """Return a job that goes on to a file of few values, as its preset does; the job itself if it already does."""
    if len(job.methods) > 1 or not has_preset(job.preset, job.network):
        return job
    whole = preset(job.preset, job.network, to_file=True)
    return replace(job, methods=(*job.methods, *whole.methods[1:]))


def _flags(before: Any, after: Any) -> list[str]:
    """Return a flag for every setting that differs; settings of nested dataclasses are flags like the others."""
    found = []
    for entry in fields(before):
        old, new = getattr(before, entry.name), getattr(after, entry.name)
        if isinstance(new, Budget):
            found += [] if new == old else _budget_flag(new)
        elif is_dataclass(old) and type(old) is type(new):
            found += _flags(old, new)
        elif new != old:
            found += _flag(entry.name, new)
    return found


def _budget_flag(budget: Budget) -> list[str]:
    """Return the one flag of a budget, which takes the place of the preset's."""
    [(name, value)] = [(name, value) for name, value in vars(budget).items() if value is not None]
    return _flag(name, value)


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", repr(value) if isinstance(value, float) else str(value)]
