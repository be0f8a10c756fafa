"""What is printed before and after a run: what will be pruned, one table of what came of it, and its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secateur.experiments.directory import RunDirectory
from secateur.experiments.reference import Reference, find_reference
from secateur.report.commands import evaluation
from secateur.report.forms import in_words
from secateur.report.ratios import times
from secateur.report.terminal.lines import say
from secateur.report.wording import Wording, wording
from secateur.results import RunResult, SpeedResult, last
from secateur.sibling import Target
from secateur.weights.coverage import LeftOut


def summary_table(targets: tuple[Target, ...], left_out: tuple[LeftOut, ...] = ()) -> Table:
    """Show what will be pruned and what is left out, before anything is trained."""
    table = _table("To be pruned", "tensor", "shape", right=("weights", "thresholds", "per threshold", "α"))
    for target in targets:
        table.add_row(
            Text(" = ".join(target.names)),
            "×".join(map(str, target.shape)),
            f"{target.weights:,}",
            f"{target.thresholds:,}",
            f"{target.weights / target.thresholds:,.0f}",
            f"{target.config.alpha:g}",
        )
    weights, thresholds = sum(t.weights for t in targets), sum(t.thresholds for t in targets)
    table.add_row("total", "", f"{weights:,}", f"{thresholds:,}", "", "", style="bold")
    if left_out:
        table.caption = Text("Left out (share of all parameters): " + "; ".join(map(str, left_out)))
    return table


def print_outcome(console: Console, directory: RunDirectory) -> None:
    """Show a finished run: dense, pruned and file in one table, and where the page and the file are."""
    _print_table(console, directory)
    if directory.page.exists():
        say(console, f"page: {directory.page}")
    say(console, f"file: {directory.file}")
    job = directory.read_job()
    if not directory.test.exists() and not job.is_given:
        say(console, f"next: {evaluation(directory.path, job.network, job.data)}")


def print_layers(console: Console, directory: RunDirectory) -> None:
    """Show where the weights went, layer by layer, and the error of every form of the network."""
    result = directory.read_result()
    job = result.job
    table = _table(
        f"{job.network} on {job.data_name}, seed {job.seed}",
        "layer",
        right=("weights", "kept", "pruned", "ratio", "threshold"),
    )
    for layer in result.layers:
        thresholds = result.thresholds.get(layer.name, ())
        mean = f"{sum(thresholds) / len(thresholds):.4f}" if thresholds else "–"
        table.add_row(Text(layer.name), *_kept(layer.weights, layer.kept), mean)
    table.add_row("all prunable weights", *_kept(result.weights, result.kept), "", style="bold")
    if result.parameters:
        table.add_row("whole model", *_kept(result.parameters, result.parameters_kept), "")
    console.print(table)
    words = wording(job, result.measure)
    _say_errors(console, words, "validation", result.errors, result.validation_images)
    if directory.test.exists():
        test = directory.read_test()
        _say_errors(console, words, "test", test.errors, test.images)
    trained = f"Trained on {result.training_images:,} {words.samples}"
    say(console, f"{trained} in {result.seconds:.0f} s, {result.threads} thread(s).")


def _print_table(console: Console, directory: RunDirectory) -> None:
    """Print one row each for the dense network, what the first method leaves, and the file."""
    result = directory.read_result()
    test = directory.read_test() if directory.test.exists() else None
    speed = directory.read_speed() if directory.speed.exists() else None
    reference = find_reference(result.job, directory)
    job, evaluations = result.job, {"validation": result.errors, **({"test": test.errors} if test else {})}
    words = wording(job, result.measure)
    table = _table(
        f"{job.network} on {job.data_name}, {job.label}, seed {job.seed}",
        "network",
        right=("weights", "bytes", *(f"{images} {result.measure}" for images in evaluations), "ms"),
    )
    file = result.file
    floats, size = ("–", "–") if file is None else (f"{file.dense_bytes:,}", f"{file.bytes:,}")
    dense_ms, sparse_ms = ("–", "–") if speed is None else (_ms(speed.dense_ms), _ms(speed.sparse_ms))
    left = job.methods[0].leaves
    if left == "dense":
        table.add_row(left, f"{result.weights:,}", floats, *_errors_of(left, evaluations, words), dense_ms)
    else:
        dense = [_dense_error(reference, images, words) for images in evaluations]
        table.add_row("dense", f"{result.weights:,}", floats, *dense, dense_ms)
        # Before it is coded, a network is stored as 32-bit floats, zeros included, and runs like the dense one.
        table.add_row(
            left,
            f"{result.kept_by_form.get(left, result.kept):,}",
            floats,
            *_errors_of(left, evaluations, words),
            dense_ms,
        )
    table.add_row(
        "file", f"{result.kept:,}", size, *(words.figure(last(errors)) for errors in evaluations.values()), sparse_ms
    )
    table.caption = Text(_note(result, speed, reference))
    console.print(table)


def _errors_of(form: str, evaluations: Mapping[str, Mapping[str, float]], words: Wording) -> list[str]:
    return [words.figure(errors.get(form, math.nan)) for errors in evaluations.values()]


def _dense_error(reference: Reference | None, images: str, words: Wording) -> str:
    if reference is None:
        return "–"
    return words.figure(reference.test if images == "test" else reference.validation)


def _note(result: RunResult, speed: SpeedResult | None, reference: Reference | None) -> str:
    """Say where the dense numbers come from, and how to get those that are missing."""
    parts, job, name = [], result.job, wording(result.job, result.measure).name
    if result.file is not None:
        parts.append(f"{times(result.ratio)} fewer weights, {times(result.file.ratio)} fewer bytes.")
    if reference is not None:
        parts.append(f"Dense {name}: {reference.source}.")
    elif job.is_given:
        parts.append(f"The network was not trained when it was given: there is no dense {name}.")
    elif not job.is_dense:
        parts.append("No dense network of this recipe is known: --reference train trains one.")
    if speed is None:
        parts += [] if job.is_given else ["Milliseconds: secateur bench RUN."]  # which cannot build a given network
    else:
        parts.append(f"Milliseconds at batch {speed.batch}, threads: {speed.threads}.")
    return " ".join(parts)


def _say_errors(console: Console, words: Wording, images: str, errors: Mapping[str, float], count: int) -> None:
    """Print the error of every form in one line, or on a terminal in lines broken between words."""
    parts = [f"{in_words(form)} {words.amount(error)}" for form, error in errors.items()]
    sentence = f"{words.title} on {count:,} {images} {words.samples}: " + "; ".join(parts)
    console.print(sentence, soft_wrap=not console.is_terminal, highlight=False, markup=False)


def _table(title: str, *left: str, right: tuple[str, ...]) -> Table:
    """Return a table whose cells continue on the next line where the terminal is narrow: no digit is cut off."""
    table = Table(title=Text(title), title_justify="left", caption_justify="left")
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _kept(weights: int, kept: int) -> tuple[str, str, str, str]:
    return (
        f"{weights:,}",
        f"{kept:,}",
        f"{1 - kept / weights:.1%}" if weights else "–",
        times(weights / kept) if kept else "∞",
    )


def _ms(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3g}"
