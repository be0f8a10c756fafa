"""Tables of a comparison: every method at every operating point, and published results next to ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from secateur.experiments.studies.compare import Comparison, Refusal
from secateur.experiments.studies.compare_summary import (
    Difference,
    NextToPublished,
    Point,
    Ranked,
    next_to_published,
    ranking,
    read_points,
)
from secateur.report.tables.grid import Grid
from secateur.transfer.statistics import Mean


def compare_tables(comparison: Comparison, results: Path, refusals: Sequence[Refusal] = ()) -> list[Grid]:
    """Return the tables of errors and of costs and, if methods of ours have published results, the table of these."""
    points = read_points(comparison, results)
    ranked = ranking(points)
    grids = [
        errors_table(comparison, ranked, refusals),
        costs_table(comparison, ranked),
        published_table(comparison, points),
    ]
    return [grid for grid in grids if grid.rows]


def errors_table(comparison: Comparison, ranked: Sequence[Ranked], refusals: Sequence[Refusal] = ()) -> Grid:
    """Show the error of every method at every operating point, the lowest of a ratio first."""
    header = ("method", "seeds", "error %", "to dense, points", "to the best, points", "p: seeds, images")
    rows = [_errors(each) for each in ranked]
    rows += [(named(each.label, each.ratio), "–", f"not run: {each.reason}", "–", "–", "–") for each in refusals]
    after = ", with few values a layer at the end" if comparison.few_values else ""
    note = (
        f"Recipe of preset {comparison.preset}, {comparison.total_epochs} epochs for every method{after}; the same "
        "initial weights, images and order of images for a seed. Mean ± half of the 95 % interval (Student's t over "
        "seeds); the network in the file, on test images, which were read once. Differences are paired by seed; "
        'p-values are of t tests paired over seeds and over test images. "*": worse, both are below 0.05 after Holm\'s '
        "adjustment for the methods of a ratio. Missed: it kept more than asked for. No ratio: it takes none."
    )
    title = f"Methods compared on {comparison.network}, {comparison.data}: errors"
    return Grid(title, header, tuple(rows), " ".join([note, *verdicts(ranked)]))


def costs_table(comparison: Comparison, ranked: Sequence[Ranked]) -> Grid:
    """Show what is left of every network, and what it took."""
    header = ("method", "weights kept", "ratio", "file, bytes", "fewer products", "steps", "minutes")
    note = (
        "Mean ± half of the 95 % interval over seeds. Weights kept: prunable ones that are not zero. Fewer products: "
        "multiply-accumulates of an image with all weights ÷ with those kept. Steps: gradient steps of a run, and of "
        "the search for settings if there was one. Minutes: training on one thread, of a machine that may be busy."
    )
    rows = tuple(_costs(each.point) for each in ranked if each.point.runs)
    return Grid(f"Methods compared on {comparison.network}, {comparison.data}: size and cost", header, rows, note)


def verdicts(ranked: Sequence[Ranked]) -> list[str]:
    """Say for each ratio which method is best and which others cannot be told apart from it."""
    said = []
    for ratio in sorted({each.point.asked for each in ranked if each.point.asked is not None}):
        group = [each for each in ranked if each.point.asked == ratio and each.point.runs]
        best = next((each for each in group if each.is_best), None)
        if best is None:
            said.append(f"At {ratio:g}× no method reached the ratio with every seed.")
            continue
        if len(group) < 2:
            continue
        sentence = f"At {ratio:g}× {best.point.label} is best with {best.point.error.value:.2f} %"
        close = [each.point.label for each in group if each.is_worse is False]
        untested = [each.point.label for each in group if not each.is_best and each.is_worse is None]
        close += [f"{name} (not tested: too few seeds)" for name in untested]
        worse = sum(each.is_worse is True for each in group)
        if len(best.point.runs) < 2:
            sentence += "; one seed, nothing was tested"
        else:
            sentence += f"; {worse} of {len(group) - 1} others {'is' if worse == 1 else 'are'} significantly worse"
            sentence += f", which cannot be said of {', '.join(close)}" if close else ""
        said.append(sentence + ".")
    return said


def _errors(each: Ranked) -> tuple[str, ...]:
    point = each.point
    seeds = str(len(point.runs)) + (f", {len(point.failures)} failed" if point.failures else "")
    if not point.runs:
        return _name(point), seeds, f"failed: {next(iter(point.failures.values())).reason}", "–", "–", "–"
    return (
        _name(point),
        seeds,
        in_short(point.error, 2, always=True),
        "–" if point.is_dense else _signed(each.to_dense.seeds),
        "–" if each.to_best is None else _signed(each.to_best.seeds) + ("*" if each.is_worse else ""),
        "–" if each.to_best is None else _p_values(each.to_best),
    )


def _costs(point: Point) -> tuple[str, ...]:
    return (
        _name(point),
        in_short(point.kept, 0),
        in_short(point.ratio, 1, "×"),
        in_short(point.size_bytes, 0),
        in_short(point.fewer_products, 1, "×"),
        f"{point.steps:,}" + (f" + {point.search_steps:,}" if point.search_steps else ""),
        f"{point.seconds.value / 60:.1f}",
    )


def _name(point: Point) -> str:
    return named(point.label, point.asked) + ("" if point.is_met else ", missed")


def named(label: str, ratio: float | None) -> str:
    """Name a method at an operating point."""
    return label if ratio is None else f"{label}, {ratio:g}×"


def in_short(mean: Mean, digits: int, unit: str = "", *, always: bool = False) -> str:
    """Write a mean with half of its interval: none for a single value, nor for equal ones unless `always`."""
    if math.isnan(mean.value):
        return "–"
    text = f"{mean.value:,.{digits}f}{unit}"
    is_alone = math.isnan(mean.half) or (mean.half == 0 and not always)
    return text if is_alone else f"{text} ± {mean.half:,.{digits}f}"


def _signed(mean: Mean) -> str:
    if math.isnan(mean.value):
        return "–"
    return f"{mean.value:+.2f}" + ("" if math.isnan(mean.half) else f" ± {mean.half:.2f}")


def _p_values(found: Difference) -> str:
    return ", ".join(p_value(p) for p in (found.seeds.p, found.images.p))


def p_value(p: float) -> str:
    """Write a p-value with three digits; one that would be written as zero is not."""
    return "–" if math.isnan(p) else "< 0.001" if p < 0.0005 else f"{p:.3f}"


def published_table(comparison: Comparison, points: Sequence[Point]) -> Grid:
    """Show published results of the methods that were run, each next to our point of the nearest size."""
    header = (
        "published",
        "error %",
        "weights kept",
        "bytes",
        "here",
        "error %",
        "weights kept",
        "bytes",
        "why it differs",
    )
    rows = tuple(_published_row(each, comparison) for each in next_to_published(comparison, points))
    return Grid(f"Published results next to ours, {comparison.network}, {comparison.data}", header, rows)


def _published_row(each: NextToPublished, comparison: Comparison) -> tuple[str, ...]:
    published, ours = each.published, each.ours
    name = f"{published.method}, {published.setting}" if published.setting else published.method
    return (
        name,
        f"{published.error:g}",
        "–" if math.isnan(published.kept) else f"{published.kept:,.0f}",
        "–" if math.isnan(published.bytes) else f"{published.bytes:,.0f}",
        _name(ours),
        in_short(ours.error, 2),
        in_short(ours.kept, 0),
        in_short(ours.size_bytes, 0),
        " ".join(_reasons(each, comparison)),
    )


def _reasons(each: NextToPublished, comparison: Comparison) -> list[str]:
    """Return what is known to be different: whether the errors are, the dense networks, and what the paper says."""
    published, error = each.published, each.ours.error
    said = []
    if not math.isnan(error.half) and abs(published.error - error.value) <= error.half:
        return ["It does not, within the interval."]
    if not math.isnan(published.dense_error):
        said.append(f"Dense network there {published.dense_error:g} %, here {each.dense_error:.2f} %.")
    said.append(f"Here {comparison.total_epochs} epochs by one recipe and default settings; there its own.")
    return [*said, *([published.remark] if published.remark else [])]
