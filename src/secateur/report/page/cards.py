"""The first figures of a page: what was gained and lost, compared with the dense network and the paper."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from secateur.literature import published_files, the_paper
from secateur.report.commands import command, evaluation, with_file
from secateur.report.page.run import Run
from secateur.report.ratios import times


@dataclass(frozen=True, kw_only=True)
class Card:
    """A figure of merit: the network's, in large type, and what it is compared with."""

    title: str
    value: str
    claim: str
    rows: tuple[tuple[str, str, float], ...] = ()  # name, amount, and the length of a bar from 0 to 1
    notes: tuple[tuple[str, str], ...] = ()  # a sentence and, where there is a remedy, a command


def cards(run: Run) -> tuple[Card, ...]:
    """Return the four cards of a run: weights, file, error, speed."""
    return _weights_card(run), _file_card(run), _error_card(run), _speed_card(run)


def _weights_card(run: Run) -> Card:
    paper = the_paper(run.network, run.data) if run.is_pruned else None
    if not run.weights:
        claim = f"{times(run.ratio)} fewer" if math.isfinite(run.ratio) else "not known yet"
        return Card(title="Weights kept", value="–", claim=claim)
    rows = [
        ("this network", f"{run.kept:,}", run.kept / run.weights),
        ("dense", f"{run.weights:,}", 1.0),
    ]
    if paper is not None:
        rows.append(("the paper", f"{paper.kept:,} ({paper.ratio:g}×)", paper.kept / run.weights))
    notes = []
    if run.result is not None and run.result.parameters:
        kept, parameters = run.result.parameters_kept, run.result.parameters
        notes.append((f"With biases: {kept:,} of {parameters:,} parameters.", ""))
    else:
        notes.append(("Prunable weights only: biases and norms are counted when the run is finished.", ""))
    return Card(
        title="Weights kept",
        value=f"{run.kept:,}",
        claim=f"{times(run.ratio)} fewer than the {run.weights:,} prunable weights of the dense network",
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _file_card(run: Run) -> Card:
    file = run.file
    if file is None:
        return Card(title="File", value="–", claim="no file yet")
    rows = [("this file", _bytes(file.bytes), file.bytes / file.dense_bytes), ("dense", _bytes(file.dense_bytes), 1.0)]
    counted = "Everything counts: weights, biases, header, checksums."
    notes = [(counted if run.is_given else f"{counted} The paper gives no bytes.", "")]
    known = published_files(run.network, run.data)
    if known:
        smallest = known[-1]
        rows.append(
            (f"published, test error {smallest.error:g} %", _bytes(smallest.bytes), smallest.bytes / file.dense_bytes)
        )
        notes.append((f"Published: {smallest.method} ({smallest.source}).", ""))
    if run.job is not None and run.is_pruned and with_file(run.job) != run.job:
        notes.append(("With few values per layer the file is smaller:", command(with_file(run.job))))
    words = run.wording
    error = f", {run.error.images} {words.name} {words.amount(run.error.value)}" if run.error else ""
    return Card(
        title="File",
        value=_bytes(file.bytes),
        claim=f"{times(file.ratio)} smaller than 32-bit floats{error}",
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _error_card(run: Run) -> Card:
    error, words = run.error, run.wording
    if error is None:
        return Card(title=words.title, value="–", claim="not known yet", notes=_dense_notes(run))
    count = f"{error.count:,} " if error.count else ""
    claim = f"on {count}{error.images} {words.samples}"
    rows = [(f"this network, {error.images} {words.samples}", words.amount(error.value), error.value)]
    dense, notes = run.dense_error(error.images), list(_dense_notes(run))
    if math.isfinite(dense):
        claim += f", {words.change(error.value - dense)} compared with the dense network"
        rows.append((f"dense, {error.images} {words.samples}", words.amount(dense), dense))
    elif run.compared is not None:
        own, dense = run.compared, run.dense_error(run.compared.images)
        rows += [
            (f"this network, {own.images} {words.samples}", words.amount(own.value), own.value),
            (f"dense, {own.images} {words.samples}", words.amount(dense), dense),
        ]
    paper = the_paper(run.network, run.data) if run.is_pruned else None
    if paper is not None:
        notes.append((f"The paper: {paper.change:+.1f} points compared with its own dense network.", ""))
    if error.images == "validation" and run.is_finished and not run.is_given:
        notes.append(("For test images:", evaluation(run.directory.path, run.network, run.data)))
    longest = max(length for _, _, length in rows)
    longest = longest if longest > 0 else 1.0
    return Card(
        title=words.title,
        value=words.amount(error.value),
        claim=claim,
        # A loss may be negative, and then has no bar.
        rows=tuple((name, text, max(length / longest, 0.0)) for name, text, length in rows),
        notes=tuple(notes),
    )


def _dense_notes(run: Run) -> tuple[tuple[str, str], ...]:
    """Say where the dense error comes from, or how to get one."""
    if run.reference is not None:
        return ((f"Dense: {run.reference.source}.", ""),)
    if not run.is_pruned or run.job is None:
        return ()
    if run.is_given:
        untrained = f"The network was not trained when it was given: there is no dense {run.wording.name}."
        return ((untrained, ""),) if run.is_finished else ()
    if not run.is_finished:
        return (("No dense network of this recipe is known yet.", ""),)
    how = command(run.job, extra=("--reference", "train"))
    return (("No dense network of this recipe is known; this trains one:", how),)


def _speed_card(run: Run) -> Card:
    speed, paper = run.speed, () if run.is_given else (("The paper gives no times.", ""),)
    if speed is None:
        if run.is_given:  # `bench` builds networks by their name
            return Card(title="Speed", value="–", claim="not measured")
        how = shlex.join(["secateur", "bench", str(run.directory.path)])
        notes = (("To measure it and show it here:", how), *paper)
        return Card(title="Speed", value="–", claim="not measured", notes=notes if run.is_finished else notes[1:])
    longest = max(speed.sparse_ms, speed.dense_ms) or 1.0
    return Card(
        title="Speed",
        value=times(speed.speedup) if speed.speedup > 0 else "–",
        claim=f"as fast as the dense network; batch {speed.batch:,}, threads: {speed.threads}",
        rows=(
            ("this network", f"{speed.sparse_ms:.3g} ms", speed.sparse_ms / longest),
            ("dense", f"{speed.dense_ms:.3g} ms", speed.dense_ms / longest),
        ),
        notes=paper,
    )


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:,.0f} bytes"
