"""Presets compared: what is left, at which error, for how much training."""

from __future__ import annotations

from pathlib import Path

from secateur.experiments.studies.comparison import Standing, standings
from secateur.experiments.studies.summaries import NONE, FileRow, summarize_files
from secateur.report.forms import in_words
from secateur.report.tables.grid import Grid, kilobytes, minutes, signed, spread
from secateur.report.tables.paper import as_printed


def comparison_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Show what every preset leaves of a network, at which error and for how much training, next to what is printed."""
    header = (
        "network, method",
        "seeds",
        "error %",
        "difference, points",
        "weights kept",
        "ratio",
        "steps (with search)",
        "minutes (with search)",
    )
    rows: list[tuple[str, ...]] = []
    notes = []
    for network in networks:
        for who, printed in as_printed(network, "Han et al. as quoted by the paper", "the paper as published"):
            rows.append((f"{network}, {who}", "–", "–", *printed, "–", "–"))
        found = standings(results, network)
        rows += [_row(standing) for standing in found]
        searched = [standing for standing in found if standing.search_steps is not None]
        notes += [_verdict(searched[0], other) for other in searched[1:]]
    note = (
        "Run here: mean ± standard deviation over seeds, on test images. Differences are to the dense network of the "
        "same recipe (preset han2015: the shorter training that its rounds start from), paired by seed, ± standard "
        "error. Preset han2015 has the data, optimizer, batch size and decay of the paper preset. Steps are gradient "
        "steps up to the finished network; minutes likewise, on one thread of a busy machine. In brackets: everything "
        "that the first seed took, including the search for the quality parameter of han2015 and for the epochs of the "
        "paper preset, on validation images (searches for other presets are not counted)."
    )
    return Grid("Presets compared: size, error and training", header, tuple(rows), " ".join((note, *notes)).strip())


def _row(standing: Standing) -> tuple[str, ...]:
    row = standing.row
    steps, time = f"{row.steps:,}", minutes(row.seconds)
    if standing.search_steps is not None and standing.search_seconds is not None:
        steps += f" ({standing.search_steps:,})"
        time += f" ({standing.search_seconds / 60:.1f})"
    return (
        f"{row.network}, {row.label}, preset {row.preset}",
        str(row.seeds),
        spread(row.error, 2),
        signed(row.difference),
        spread(row.kept, 0),
        spread(row.ratio, 1, "×"),
        steps,
        time,
    )


def _verdict(ours: Standing, theirs: Standing) -> str:
    """Put the three claims into one sentence, whichever way they turn out."""
    row, other = ours.row, theirs.row
    apart = row.error[0] - other.error[0]
    sentence = (
        f"In {row.network} preset {row.preset} keeps {row.kept[0] / other.kept[0]:.2f} times the weights of preset "
        f"{other.preset} at an error {abs(apart):.2f} points {'higher' if apart > 0 else 'lower'}, and takes "
        f"{row.steps / other.steps:.2f} times the steps"
    )
    if ours.search_steps and theirs.search_steps:
        sentence += f", {ours.search_steps / theirs.search_steps:.2f} times with both searches"
    return sentence + "."


def stages_table(results: Path, presets: tuple[str, ...], networks: tuple[str, ...]) -> Grid:
    """Show whether the steps of a pipeline interfere: the test error after each of them, as far as it is published."""
    found = [summarize_files(results, preset, network) for network in networks for preset in presets]
    shown = [row for row in found if row is not None and len(row.errors) > 1]
    # Rows with the most forms first: their order is that of the pipeline, which those with fewer forms do not know.
    forms = tuple(dict.fromkeys(form for row in sorted(shown, key=lambda row: -len(row.errors)) for form in row.errors))
    header = ("network, preset", "seeds", *(f"{in_words(form)}, error %" for form in forms), "file, kB")
    return Grid("Error after each step of a pipeline", header, tuple(_stages(row, forms) for row in shown))


def _stages(row: FileRow, forms: tuple[str, ...]) -> tuple[str, ...]:
    errors = (spread(row.errors.get(form, NONE), 2) for form in forms)
    return f"{row.network}, {row.preset}", str(row.files.seeds), *errors, kilobytes(row.files.size_bytes, 1, "")
