"""Charts of a comparison: error against weights, bytes and gradient steps, one line for each method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from bokeh.models import ColumnDataSource
from bokeh.models.annotations import Whisker
from bokeh.plotting import figure

from secateur.experiments.studies.compare import Comparison
from secateur.experiments.studies.compare_summary import Point
from secateur.literature import Published, published
from secateur.report.page.chart import (
    COLOURS,
    Chart,
    Column,
    Key,
    hover,
    in_words,
    new_figure,
    scaled_figure,
    set_log_ticks,
    shortened,
    style,
    to_item,
)
from secateur.report.page.names import identifier
from secateur.transfer.statistics import Mean

Size: TypeAlias = Literal["kept", "bytes"]
SIZES: tuple[Size, ...] = ("kept", "bytes")
_UNITS: dict[Size, str] = {"kept": "weights kept", "bytes": "bytes of the file"}
_PUBLISHED = COLOURS[-1]  # the marker tells these from a method of the same colour
_HIGHEST = 8.0  # times the lowest error: what is above is not drawn to scale, but listed in the numbers


def size_chart(comparison: Comparison, points: Sequence[Point], size: Size) -> Chart | None:
    """Draw the mean test error of every point with its 95 % interval against its size, and published results."""
    drawn = [point for point in points if point.runs and _size(point, size).value > 0]
    known = [
        each
        for each in published(comparison.network, comparison.data)
        if math.isfinite(getattr(each, size)) and math.isfinite(each.error)
    ]
    if not drawn:
        return None
    sizes = [*(_size(point, size).value for point in drawn), *(getattr(each, size) for each in known)]
    errors = [*(point.error.value for point in drawn), *(each.error for each in known)]
    plot = new_figure(f"{_UNITS[size]}, log scale", "test error %", x_axis_type="log", height=420)
    set_log_ticks(plot, min(sizes) / 1.2, max(sizes) * 1.2)
    plot.x_range.update(start=min(sizes) / 1.2, end=max(sizes) * 1.2)
    top = min(max(errors), _HIGHEST * max(min(errors), 0.1))
    plot.y_range.update(start=max(0.0, min(errors) - 0.1 * top), end=1.08 * top)
    methods: dict[str, list[Point]] = {}
    for point in drawn:
        methods.setdefault(point.label, []).append(point)
    legend = [_draw_method(plot, number, *group, size) for number, group in enumerate(methods.items())]
    if known:
        _draw_published(plot, known, size)
        legend.append(Key("published", _PUBLISHED, "diamond"))
    title = f"Error against {_UNITS[size]}"
    best = min(drawn, key=lambda point: point.error.value)
    left_out = sum(error > 1.08 * top for error in errors)
    return Chart(
        identifier(f"compare-{size}"),
        title,
        f"{title}: {len(drawn)} points of {len(legend)} methods; the lowest error is {best.error.value:.2f} % by "
        f"{best.label} at {_size(best, size).value:,.0f} {_UNITS[size]}.",
        to_item(plot),
        _columns(drawn, known, size),
        shortened(legend),
        f"Bars: 95 % intervals over seeds. {left_out} points lie above the chart: see the numbers."
        if left_out
        else "Bars: 95 % intervals over seeds.",
    )


def _size(point: Point, size: Size) -> Mean:
    return point.kept if size == "kept" else point.size_bytes


def _draw_method(plot: figure, number: int, label: str, points: Sequence[Point], size: Size) -> Key:
    """Draw the points of a method, its intervals, and a line through those with a ratio."""
    colour, dash = style(number)
    ordered = sorted(points, key=lambda point: _size(point, size).value)
    halves = [0.0 if math.isnan(point.error.half) else point.error.half for point in ordered]
    errors = [point.error.value for point in ordered]
    source = ColumnDataSource(
        {
            "x": [_size(point, size).value for point in ordered],
            "y": errors,
            "low": [error - half for error, half in zip(errors, halves, strict=True)],
            "high": [error + half for error, half in zip(errors, halves, strict=True)],
            "half": halves,
            "method": [label] * len(ordered),
            "ratio": [point.ratio.value for point in ordered],
        }
    )
    if len(ordered) > 1:
        plot.line("x", "y", source=source, color=colour, line_dash=dash, line_width=2)
    dots = plot.scatter("x", "y", source=source, size=8, color=colour, fill_alpha=0.8)
    whisker = Whisker(base="x", lower="low", upper="high", source=source, line_color=colour, line_width=1.5)
    for head in (whisker.upper_head, whisker.lower_head):
        if head is not None:
            head.update(size=6, line_color=colour)
    plot.add_layout(whisker)
    tips = [
        ("method", "@method"),
        (_UNITS[size], "@x{0,0}"),
        ("ratio", "@ratio{0.0}×"),
        ("error", "@y{0.00} ± @half{0.00} %"),
    ]
    hover(plot, tips, [dots])
    return Key(label, colour, dash if len(ordered) > 1 else "dot")


def _draw_published(plot: figure, known: Sequence[Published], size: Size) -> None:
    source = ColumnDataSource(
        {
            "x": [getattr(each, size) for each in known],
            "y": [each.error for each in known],
            "method": [f"{each.method}, {each.setting}" if each.setting else each.method for each in known],
            "source": [each.source for each in known],
        }
    )
    drawn = plot.scatter("x", "y", source=source, size=9, marker="diamond", fill_alpha=0.3, color=_PUBLISHED)
    tips = [("published", "@method"), (_UNITS[size], "@x{0,0}"), ("error", "@y{0.00} %"), ("source", "@source")]
    hover(plot, tips, [drawn])


def _columns(drawn: Sequence[Point], known: Sequence[Published], size: Size) -> Mapping[str, Column]:
    return {
        "method": [*(point.label for point in drawn), *(each.method for each in known)],
        "asked": [*(point.asked for point in drawn), *(None for _ in known)],
        _UNITS[size]: [*(_size(point, size).value for point in drawn), *(getattr(each, size) for each in known)],
        "error %": [*(point.error.value for point in drawn), *(each.error for each in known)],
        "half of the 95 % interval": [*(point.error.half for point in drawn), *(math.nan for _ in known)],
        "seeds": [*(len(point.runs) for point in drawn), *(None for _ in known)],
        "source": [*("here" for _ in drawn), *(each.source for each in known)],
    }


def steps_chart(points: Sequence[Point], ratio: float | None) -> Chart | None:
    """Draw the validation error after every epoch against gradient steps, as the mean over seeds.

    `ratio` chooses the methods that were asked for it, next to the dense network; None: those without a ratio.
    """
    chosen = [point for point in points if point.runs and (point.asked == ratio or point.is_dense)]
    lines = {point.label: line for point in chosen if (line := _line(point))}
    if len(lines) < 2:
        return None
    name = "methods without a ratio" if ratio is None else f"{ratio:g}×"
    values = {label: [error for _, error in line] for label, line in lines.items()}
    plot = scaled_figure("gradient steps", "validation error %", [each for line in values.values() for each in line])
    plot.height = 360
    legend, columns = [], dict[str, list[float | int | str | None]](method=[], steps=[], error=[])
    for number, (label, line) in enumerate(lines.items()):
        colour, dash = style(number)
        source = ColumnDataSource(
            {"x": [steps for steps, _ in line], "y": values[label], "method": [label] * len(line)}
        )
        drawn = plot.line("x", "y", source=source, color=colour, line_dash=dash, line_width=2)
        hover(plot, [("method", "@method"), ("steps", "@x{0,0}"), ("error", "@y{0.00} %")], [drawn])
        legend.append(Key(label, colour, dash))
        columns["method"] += [label] * len(line)
        columns["steps"] += [steps for steps, _ in line]
        columns["error"] += values[label]
    title = f"Error against gradient steps, {name}"
    return Chart(
        identifier(f"compare-steps-{'natural' if ratio is None else f'{ratio:g}'}"),
        title,
        in_words(title, values),
        to_item(plot),
        {"method": columns["method"], "steps": columns["steps"], "validation error %": columns["error"]},
        shortened(legend),
        "Mean over seeds after every epoch; what thresholds or scores would cut then is cut. Methods that cut at the "
        "end show a network with all of its weights before. Steps of a search are not drawn.",
    )


def _line(point: Point) -> list[tuple[float, float]]:
    """Return the steps and the mean error of the epochs that all seeds have."""
    histories = [run.history for run in point.runs.values() if run.history]
    if not histories:
        return []
    epochs = min(map(len, histories))
    each = point.steps / epochs
    return [
        (round(each * (epoch + 1)), statistics.fmean(history[epoch].error for history in histories))
        for epoch in range(epochs)
    ]
