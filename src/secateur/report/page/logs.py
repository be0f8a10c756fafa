"""The logs of a run's stages as epochs of one history; a line that is damaged is left out and counted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from secateur.experiments.directory import RunDirectory
from secateur.report.page.run import Epoch
from secateur.results import ERROR

# What content that is damaged, or written by another program, may raise when it is read as ours.
DAMAGES = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def read_history(
    directory: RunDirectory, problems: list[str], *, stages: Sequence[str], steps_each: int
) -> tuple[Epoch, ...]:
    """Return the epochs of all stages, in the order of `stages`, then by the time of their logs.

    `steps_each`, the steps of an epoch, is used where a log does not have them; 0 if it is not known.
    """
    epochs: list[Epoch] = []
    for log in _in_order(directory, stages):
        before = epochs[-1].step if epochs else 0
        has_place = before > 0 or not epochs  # after a stage whose steps are unknown, those of the next one are too
        for epoch in _epochs(log, problems):
            step = epoch.step or epoch.epoch * steps_each
            epochs.append(replace(epoch, step=before + step if step and has_place else 0))
    return tuple(epochs)


def _in_order(directory: RunDirectory, stages: Sequence[str]) -> list[Path]:
    try:
        logs = directory.logs()
    except OSError:  # a run that starts anew replaces its logs
        return []
    known = {directory.journal(name).log: place for place, name in enumerate(stages)}
    return sorted(logs, key=lambda log: known.get(log, len(known)))


def _epochs(log: Path, problems: list[str]) -> list[Epoch]:
    """Return the epochs of one log, and note how many lines could not be read."""
    epochs, lost = [], 0
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    epochs.append(_epoch(json.loads(text), log.stem))
                except DAMAGES:
                    lost += 1
    except OSError as error:
        problems.append(f"{log.name} cannot be read: {error.strerror}")
    if lost:
        problems.append(f"{log.name}: {lost} line{'s' if lost > 1 else ''} damaged or of another version, left out")
    return epochs


def _epoch(line: Mapping[str, Any], stage: str) -> Epoch:
    return Epoch(
        stage=stage,
        phase=str(line.get("phase", stage)),
        epoch=_count(line["epoch"]),
        epochs=_count(line.get("epochs", 0)),
        step=_count(line.get("step", 0)),
        error=_number(line.get("error")),
        measure=str(line.get("measure", ERROR)),
        sibling_error=_number(line.get("sibling_error")),
        ratio=math.inf if "ratio" in line and line["ratio"] is None else _number(line.get("ratio")),
        kept={str(name): _count(value) for name, value in _object(line.get("kept_per_layer", {})).items()},
        thresholds=_numbers(line.get("thresholds", {})),
        loss=_number(line.get("loss")),
        loss_terms=_numbers(line.get("loss_terms", {})),
        coded_bytes=_number(line.get("coded_bytes")),
        target=_numbers(line.get("target", {})),
    )


def _object(content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"an object is expected, not {type(content).__name__}")
    return content


def _numbers(content: Any) -> dict[str, float]:
    return {str(name): _number(value) for name, value in _object(content).items()}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is not a count")
    return int(value)
