"""The first figures of a page: what was gained and lost, beside the dense network and the paper."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from secateur.experiments.job import dense_job
from secateur.report.commands import command
from secateur.report.facts import Run
from secateur.report.literature import published, reference
from secateur.report.sheets import times


@dataclass(frozen=True, kw_only=True)
class Card:
    """A figure of merit: the network's, large, and what it stands beside."""

    title: str
    value: str
    claim: str
    rows: tuple[tuple[str, str, float], ...] = ()  # who, how much, and the length of a bar from 0 to 1
    notes: tuple[tuple[str, str], ...] = ()  # a sentence and, where it has a remedy, a command


def cards(run: Run) -> tuple[Card, ...]:
    """Return the four of a run: weights, file, error, speed."""
    return _weights_card(run), _file_card(run), _error_card(run), _speed_card(run)


def _weights_card(run: Run) -> Card:
    paper = reference(run.network, run.data) if run.is_pruned else None
    if not run.weights:
        claim = f"{times(run.ratio)} fewer" if math.isfinite(run.ratio) else "not known yet"
        return Card(title="Weights kept", value="–", claim=claim)
    rows = [
        ("this network", f"{run.kept:,}", run.kept / run.weights),
        ("dense", f"{run.weights:,}", 1.0),
    ]
    if paper is not None:
        rows.append(("the paper", f"{paper.kept:,} ({paper.ratio:g}×)", paper.kept / run.weights))
    return Card(
        title="Weights kept",
        value=f"{run.kept:,}",
        claim=f"{times(run.ratio)} fewer than the dense network has",
        rows=tuple(rows),
        notes=((f"With biases: {run.parameters_kept:,} of {run.parameters:,} parameters.", ""),),
    )


def _file_card(run: Run) -> Card:
    if not run.files:
        how = (("To make one:", command(run.job, to_file=True)),) if run.is_pruned and run.job else ()
        return Card(title="File", value="–", claim="no file yet", notes=how)
    file = run.files[0]
    whole = max(1, file.dense_bytes)
    rows = [("this file", _bytes(file.bytes), file.bytes / whole), ("dense", _bytes(file.dense_bytes), 1.0)]
    smallest = min(
        (each for each in published(run.network, run.data) if math.isfinite(each.bytes)),
        key=lambda each: each.bytes,
        default=None,
    )
    notes = [("All of it counts: weights, biases, header, checksums. The paper gives no bytes.", "")]
    if smallest is not None:
        rows.append((f"published, {smallest.error:g} %", _bytes(smallest.bytes), smallest.bytes / whole))
        notes.append((f"Published: {smallest.method} ({smallest.source}).", ""))
    return Card(
        title="File",
        value=_bytes(file.bytes),
        claim=f"{times(file.ratio)} smaller than 32-bit floats, {file.error.images} error {file.error.percent:.2f} %",
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _error_card(run: Run) -> Card:
    error, dense = run.error, run.dense
    paper = reference(run.network, run.data) if run.is_pruned else None
    if error is None or not math.isfinite(error.percent):
        return Card(title="Error", value="–", claim="not known yet")
    beside = run.dense_error
    count = f"{error.count:,} " if error.count else ""
    claim = f"on {count}{error.images} images"
    rows = [("this network", f"{error.percent:.2f} %", error.percent)]
    notes = []
    if dense is not None and math.isfinite(beside):
        claim += f", {error.percent - beside:+.2f} points beside the dense network"
        rows.append(("dense", f"{beside:.2f} %", beside))
        if dense.seeds != (run.seed,):
            notes.append((f"Dense: the mean over seed{'s' if len(dense.seeds) > 1 else ''} {_list(dense.seeds)}.", ""))
    elif run.is_pruned and run.job is not None:
        notes.append(("There is no dense network beside this run; to train it:", command(dense_job(run.job))))
    if paper is not None:
        notes.append((f"The paper: {paper.change:+.1f} points beside its own dense network.", ""))
    if error.images == "validation" and run.state == "finished":
        notes.append(("For test images:", shlex.join(["secateur", "evaluate", str(run.directory.path)])))
    longest = max(length for _, _, length in rows) or 1.0
    return Card(
        title="Error",
        value=f"{error.percent:.2f} %",
        claim=claim,
        rows=tuple((who, text, length / longest) for who, text, length in rows),
        notes=tuple(notes),
    )


def _speed_card(run: Run) -> Card:
    speed = run.speed
    if speed is None:
        how = "`secateur bench RUN` measures it, and this page shows it from then on. The paper gives no times."
        return Card(title="Speed", value="–", claim="not measured", notes=((how, ""),))
    longest = max(speed.sparse_ms, speed.dense_ms) or 1.0
    return Card(
        title="Speed",
        value=times(speed.dense_ms / speed.sparse_ms) if speed.sparse_ms else "–",
        claim=f"as fast as the dense network; batch {speed.batch:,}, threads: {speed.threads}",
        rows=(
            ("this network", f"{speed.sparse_ms:.3g} ms", speed.sparse_ms / longest),
            ("dense", f"{speed.dense_ms:.3g} ms", speed.dense_ms / longest),
        ),
        notes=(("The paper gives no times.", ""),),
    )


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:,.0f} bytes"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
