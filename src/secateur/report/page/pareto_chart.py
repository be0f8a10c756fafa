"""Error against size, of runs and of what is published for the same network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bokeh.models import ColumnDataSource, FixedTicker, NumeralTickFormatter
from bokeh.plotting import figure

from secateur.literature import Published, published, the_paper
from secateur.report.page.chart import (
    COLOURS,
    Chart,
    Column,
    Key,
    hover,
    mark,
    new_figure,
    to_item,
    write_note,
)
from secateur.report.page.names import identifier, letter
from secateur.report.page.run import Run

Size: TypeAlias = Literal["kept", "bytes"]
SIZES: tuple[Size, ...] = ("kept", "bytes")
_UNITS: dict[Size, str] = {"kept": "weights kept", "bytes": "bytes of the file"}


@dataclass(frozen=True)
class _Point:
    run: str
    network: str
    data: str
    size: float
    error: float
    images: str
    what: str


def pareto_chart(runs: Sequence[Run], size: Size, network: str, data: str) -> Chart | None:
    """Draw error against weights kept, or against bytes, of a network's runs, with what is published for it.

    A point is on the Pareto curve if no other has both a lower error and a smaller size.
    """
    points = [point for point in _points(runs, size) if (point.network, point.data) == (network, data)]
    marks = [each for each in published(network, data) if math.isfinite(getattr(each, size))]
    if not points or (len(points) == 1 and not marks):
        return None
    plot = new_figure(f"{_UNITS[size]}, log scale", "error, %", x_axis_type="log", height=360)
    sizes = [*(point.size for point in points), *(getattr(each, size) for each in marks)]
    _space_ticks(plot, sizes)
    legend = []
    if marks:
        _draw_published(plot, marks, size)
        legend.append(Key("published", COLOURS[1], "diamond"))
    if size == "kept":
        _mark_paper(plot, network, data, sizes)
    legend += _draw_curve(plot, _pareto(points))
    legend += _draw_runs(plot, points, _UNITS[size], "this run" if len(runs) == 1 else "runs")
    title = f"Error against {_UNITS[size]}"
    note = "Filled: error on test images, as in the literature. Hollow: on validation images only."
    if marks:
        note += f" Published: {'; '.join(dict.fromkeys(each.source for each in marks))}."
    return Chart(
        identifier(f"pareto-{size}-{network}-{data}"),
        f"{title}, {network}",
        _in_words(title, points, len(marks), _UNITS[size]),
        to_item(plot),
        _columns(points, marks, size),
        tuple(legend),
        note,
    )


def _mark_paper(plot: figure, network: str, data: str, sizes: Sequence[float]) -> None:
    """Mark the weights that the paper keeps: it gives no error to draw a point at."""
    paper = the_paper(network, data)
    if paper is not None:
        mark(plot, paper.kept, "dotted")
        change = f"{paper.change:+.1f} points" if paper.change else "no loss"
        is_left = paper.kept**2 < min(sizes) * max(sizes)
        write_note(plot, paper.kept, f" the paper: {change} ", align="left" if is_left else "right")


def _draw_curve(plot: figure, front: Sequence[_Point]) -> list[Key]:
    if len(front) < 2:
        return []
    sizes, errors = [point.size for point in front], [point.error for point in front]
    plot.step(sizes, errors, mode="after", line_width=2, color=COLOURS[0])
    return [Key(f"Pareto curve, {front[0].images} images", COLOURS[0], "solid")]


def _draw_runs(plot: figure, points: Sequence[_Point], unit: str, whose: str) -> list[Key]:
    """Draw the points of runs, those on test images filled."""
    dots, legend = [], []
    for images, fill in (("test", 1.0), ("validation", 0.0)):
        chosen = [point for point in points if point.images == images]
        if chosen:
            columns = {
                "x": [point.size for point in chosen],
                "y": [point.error for point in chosen],
                "run": [point.run for point in chosen],
                "what": [point.what for point in chosen],
                "images": [point.images for point in chosen],
            }
            source = ColumnDataSource(columns)
            dots.append(plot.scatter("x", "y", source=source, size=11, fill_alpha=fill, color=COLOURS[0], line_width=2))
            legend.append(Key(f"{whose}, {images} images", COLOURS[0], "dot" if fill else "ring"))
    tips = [("run", "@run"), (unit, "@x{0,0}"), ("error", "@y{0.00} % on @images images"), ("", "@what")]
    hover(plot, tips, dots)
    return legend


def _columns(points: Sequence[_Point], marks: Sequence[Published], size: Size) -> dict[str, Column]:
    return {
        "who": [*(f"run {point.run}" for point in points), *(each.method for each in marks)],
        _UNITS[size]: [*(point.size for point in points), *(getattr(each, size) for each in marks)],
        "error %": [*(point.error for point in points), *(each.error for each in marks)],
        "images": [*(point.images for point in points), *("test" for _ in marks)],
        "source": [*(point.what for point in points), *(each.source for each in marks)],
    }


def _in_words(title: str, points: Sequence[_Point], published: int, unit: str) -> str:
    best = min(points, key=lambda point: point.error)
    least = min(points, key=lambda point: point.size)
    return (
        f"{title}, {len(points)} points of these runs and {published} published ones: the lowest error is "
        f"{best.error:.2f} % at {best.size:,.0f} {unit}, the smallest has {least.size:,.0f} at {least.error:.2f} %."
    )


def _space_ticks(plot: figure, sizes: Sequence[float]) -> None:
    """Label a logarithmic axis at 1, 2, 5 and 10, or at tens only where it is long: a phone has room for few."""
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    steps = (1, 2, 5) if high - low < 2 else (1,) if high - low > 4 else (1, 3)
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ticks = [step * 10.0**power for power in powers for step in steps]
    # Bokeh would draw parts of the labels beyond the axis.
    near = [tick for tick in ticks if 0.9 * min(sizes) <= tick <= 1.1 * max(sizes)]
    plot.xaxis.ticker = FixedTicker(ticks=near or [min(sizes)])
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")


def _points(runs: Sequence[Run], size: Size) -> list[_Point]:
    points = []
    for number, run in enumerate(runs):
        error, amount, what = run.error, 0, ""
        if size == "bytes" and run.file is not None:
            amount, what = run.file.bytes, f"{run.file.ratio:.1f}× smaller"
        elif size == "kept" and run.is_pruned:
            amount, what = run.kept, f"{run.ratio:.1f}× fewer"
        if error is not None and amount:
            points.append(_Point(letter(number), run.network, run.data, amount, error.percent, error.images, what))
    return points


def _pareto(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other beats in both, the smallest first; only those on test images if there are any."""
    on_test = [point for point in points if point.images == "test"]
    front: list[_Point] = []
    for point in sorted(on_test or points, key=lambda point: (point.size, point.error)):
        if not front or point.error < front[-1].error:
            front.append(point)
    return front


def _draw_published(plot: figure, marks: Sequence[Published], size: Size) -> None:
    columns = {
        "x": [getattr(each, size) for each in marks],
        "y": [each.error for each in marks],
        "method": [f"{each.method}, {each.setting}" if each.setting else each.method for each in marks],
        "source": [each.source for each in marks],
    }
    source = ColumnDataSource(columns)
    drawn = plot.scatter("x", "y", source=source, size=9, marker="diamond", fill_alpha=0.4, color=COLOURS[1])
    tips = [("", "@method"), (_UNITS[size], "@x{0,0}"), ("error", "@y{0.00} %"), ("source", "@source")]
    hover(plot, tips, [drawn])
