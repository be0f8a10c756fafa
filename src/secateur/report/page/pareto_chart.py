"""Error against size, of runs and of what is published for the same network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from secateur.literature import Published, published, the_paper
from secateur.report.page.chart import (
    COLOURS,
    FONT,
    Chart,
    Column,
    Key,
    hover,
    mark,
    new_figure,
    set_log_ticks,
    shortened,
    style,
    to_item,
    write_note,
)
from secateur.report.page.names import identifier, letter
from secateur.report.page.run import Images, Run
from secateur.report.ratios import times
from secateur.report.wording import Wording
from secateur.results import ERROR

Size: TypeAlias = Literal["kept", "bytes"]
SIZES: tuple[Size, ...] = ("kept", "bytes")
_UNITS: dict[Size, str] = {"kept": "weights kept", "bytes": "bytes of the file"}
_PUBLISHED = COLOURS[-1]  # grey: the other colours belong to runs


@dataclass(frozen=True)
class _Point:
    run: str
    colour: str
    size: float
    error: float
    what: str


@dataclass(frozen=True)
class _Frame:
    """What a chart shows of its axes, with room around the points."""

    sizes: tuple[float, float]
    errors: tuple[float, float]


def pareto_chart(runs: Sequence[Run], size: Size, network: str, data: str, measure: str = ERROR) -> Chart | None:
    """Draw error against weights kept, or against bytes, of a network's runs, with what is published for it.

    The errors of all runs have the same measure, and are on the same images: test images if every run was evaluated on
    them. The Pareto front passes through the runs that no other beats in both.
    """
    key = (network, data, measure)
    group = [(number, run) for number, run in enumerate(runs) if (run.network, run.data, run.measure) == key]
    images = _common_images([run for _, run in group])
    points = _points(group, size, images, is_alone=len(runs) == 1)
    known = published(network, data) if measure == ERROR else ()
    marks = [each for each in known if math.isfinite(getattr(each, size) + each.error)]
    if not points or (len(points) == 1 and not marks):
        return None
    words = group[0][1].wording
    frame = _frame(points, marks, size, measure)
    plot = new_figure(f"{_UNITS[size]}, log scale", words.axis(words.name), x_axis_type="log", height=360)
    _set_axes(plot, frame)
    legend = []
    if marks:
        _draw_published(plot, marks, size)
        legend.append(Key("published, test images", _PUBLISHED, "diamond"))
    if size == "kept":
        _mark_paper(plot, network, data, frame.sizes)
    if len(points) > 1:
        _draw_front(plot, _pareto(points), frame)
        legend.append(Key("Pareto front of these runs", COLOURS[-1], "solid"))
    legend += _draw_runs(plot, points, _UNITS[size], images, words, is_alone=len(runs) == 1)
    title = f"{words.title} against {_UNITS[size]}"
    return Chart(
        identifier(f"pareto-{size}-{network}-{data}{'' if measure == ERROR else f'-{measure}'}"),
        f"{title}, {network}",
        _in_words(title, points, images, len(marks), _UNITS[size], words),
        to_item(plot),
        _columns(points, marks, size, images, words),
        tuple(legend),
        _note(images, marks, words),
    )


def _common_images(runs: Sequence[Run]) -> Images:
    """Return the images on which the errors of these runs are compared."""
    known = [run for run in runs if run.errors]
    return "test" if known and all(run.error_on("test") is not None for run in known) else "validation"


def _points(group: Sequence[tuple[int, Run]], size: Size, images: Images, *, is_alone: bool) -> list[_Point]:
    points = []
    for number, run in group:
        error, amount, what = run.error_on(images), 0, ""
        if size == "bytes" and run.file is not None:
            amount, what = run.file.bytes, f"{times(run.file.ratio)} smaller"
        elif size == "kept" and run.is_pruned:
            amount, what = run.kept, f"{times(run.ratio)} fewer"
        elif size == "kept" and not is_alone:
            amount, what = run.kept, "dense"
        if error is not None and amount:
            points.append(_Point(letter(number), style(number)[0], amount, error.value, what))
    return points


def _frame(points: Sequence[_Point], marks: Sequence[Published], size: Size, measure: str) -> _Frame:
    sizes = [*(point.size for point in points), *(getattr(each, size) for each in marks)]
    errors = [*(point.error for point in points), *(each.error for each in marks)]
    factor = max((max(sizes) / min(sizes)) ** 0.08, 1.15)
    # In percent points; a loss may be of any size and sign, so that its room is a share of it.
    least = 0.02 if measure == ERROR else 0.1 * max(map(abs, errors)) or 0.02
    room = max(0.1 * (max(errors) - min(errors)), least)
    low = min(errors) - room
    low = max(low, 0.0) if min(errors) >= 0 else low
    return _Frame((min(sizes) / factor, max(sizes) * factor), (low, max(errors) + room))


def _set_axes(plot: figure, frame: _Frame) -> None:
    plot.x_range = Range1d(start=frame.sizes[0], end=frame.sizes[1])
    plot.y_range = Range1d(start=frame.errors[0], end=frame.errors[1])
    set_log_ticks(plot, *frame.sizes)


def _mark_paper(plot: figure, network: str, data: str, sizes: tuple[float, float]) -> None:
    """Mark the weights that the paper keeps: it gives no error to draw a point at."""
    paper = the_paper(network, data)
    if paper is not None:
        mark(plot, paper.kept, "dotted")
        change = f"{paper.change:+.1f} points" if paper.change else "no loss"
        is_left = paper.kept**2 < min(sizes) * max(sizes)
        write_note(plot, paper.kept, f" the paper: {change} ", align="left" if is_left else "right")


def _pareto(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other beats in both, the smallest first."""
    front: list[_Point] = []
    for point in sorted(points, key=lambda point: (point.size, point.error)):
        if not front or point.error < front[-1].error:
            front.append(point)
    return front


def _draw_front(plot: figure, front: Sequence[_Point], frame: _Frame) -> None:
    """Draw the front to the edges of the chart: above it and to its right, runs are beaten."""
    sizes = [front[0].size, *(point.size for point in front), frame.sizes[1]]
    errors = [frame.errors[1], *(point.error for point in front), front[-1].error]
    plot.step(sizes, errors, mode="after", line_width=2, color=COLOURS[-1])


def _draw_runs(
    plot: figure, points: Sequence[_Point], unit: str, images: Images, words: Wording, *, is_alone: bool
) -> list[Key]:
    """Draw the points of runs in their colours, filled if they are errors on test images, and name them."""
    dots, legend, is_filled = [], [], images == "test"
    for point in points:
        columns = {"x": [point.size], "y": [point.error], "run": [point.run], "what": [point.what]}
        source = ColumnDataSource(columns)
        dots.append(
            plot.scatter(
                "x", "y", source=source, size=11, fill_alpha=float(is_filled), color=point.colour, line_width=2
            )
        )
        name = f"this run, {images} {words.samples}" if is_alone else f"run {point.run}"
        legend.append(Key(name, point.colour, "dot" if is_filled else "ring"))
    if not is_alone:
        _name_points(plot, points)
    number, formats = ("@y{0.00} %", {}) if words.measure == ERROR else ("@y{%.4g}", {"formatters": {"@y": "printf"}})
    measured = (words.name, f"{number} on {images} {words.samples}")
    tips = [("run", "@run"), (unit, "@x{0,0}"), measured, ("", "@what")]
    hover(plot, tips if not is_alone else tips[1:], dots, **formats)
    return legend if is_alone else list(shortened(legend))


def _name_points(plot: figure, points: Sequence[_Point]) -> None:
    """Write the letter of a run next to its point; runs at the same place share a label."""
    places: dict[tuple[float, float], list[_Point]] = {}
    for point in points:
        places.setdefault((point.size, point.error), []).append(point)
    for (size, error), group in places.items():
        plot.text(
            [size],
            [error],
            text=value(", ".join(point.run for point in group)),
            text_color=group[0].colour,
            x_offset=9,
            y_offset=-4,
            text_font=value(FONT),
            text_font_size="13px",
            text_font_style="bold",
        )


def _note(images: Images, marks: Sequence[Published], words: Wording) -> str:
    if not marks:
        several = "Errors" if words.measure == ERROR else words.title
        return f"{several} on {images} {words.samples}."
    sources = "; ".join(dict.fromkeys(each.source for each in marks))
    own = "on test images too" if images == "test" else "on validation images: hollow"
    return f"Published errors are on test images; those of these runs are {own}. Published: {sources}."


def _columns(
    points: Sequence[_Point], marks: Sequence[Published], size: Size, images: Images, words: Wording
) -> dict[str, Column]:
    return {
        "who": [*(f"run {point.run}" for point in points), *(each.method for each in marks)],
        _UNITS[size]: [*(point.size for point in points), *(getattr(each, size) for each in marks)],
        words.measure: [*(point.error for point in points), *(each.error for each in marks)],
        words.samples: [*(images for _ in points), *("test" for _ in marks)],
        "source": [*(point.what for point in points), *(each.source for each in marks)],
    }


def _in_words(title: str, points: Sequence[_Point], images: Images, published: int, unit: str, words: Wording) -> str:
    best = min(points, key=lambda point: point.error)
    least = min(points, key=lambda point: point.size)
    return (
        f"{title}, {len(points)} points of these runs on {images} {words.samples} and {published} published ones: the "
        f"lowest {words.name} is {words.amount(best.error)} at {best.size:,.0f} {unit}, the smallest has "
        f"{least.size:,.0f} at {words.amount(least.error)}."
    )


def _draw_published(plot: figure, marks: Sequence[Published], size: Size) -> None:
    columns = {
        "x": [getattr(each, size) for each in marks],
        "y": [each.error for each in marks],
        "method": [f"{each.method}, {each.setting}" if each.setting else each.method for each in marks],
        "source": [each.source for each in marks],
    }
    source = ColumnDataSource(columns)
    drawn = plot.scatter("x", "y", source=source, size=9, marker="diamond", fill_alpha=0.4, color=_PUBLISHED)
    tips = [("", "@method"), (_UNITS[size], "@x{0,0}"), ("error", "@y{0.00} %"), ("source", "@source")]
    hover(plot, tips, [drawn])
