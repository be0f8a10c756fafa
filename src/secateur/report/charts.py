"""The charts of the report page, drawn by Bokeh in the browser; each brings its data along to be downloaded.

Colours that must change with the theme (text, axes, grids) are set by the page's script. Those of the data are chosen
to stand out by 3 : 1 or more from a white page and from a dark one alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bokeh.embed import json_item
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    HoverTool,
    Label,
    Legend,
    LogTicker,
    NumeralTickFormatter,
    Range1d,
    Span,
)
from bokeh.plotting import figure

from secateur.report.gather import Epoch, Run
from secateur.report.literature import PAPER, Published, published
from secateur.report.weights import LayerLook

COLOURS = ("#0b7ac8", "#d55e00", "#00936b", "#a663cc", "#b07d00", "#c2477f", "#0e8f9e", "#7d8590")
_DASHES = ("solid", "dashed", "dotted", "dotdash")
_MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star", "plus")
_MOST_POINTS = 400  # of a history that are drawn
_MOST_NAMES = 8  # that a legend or a tooltip lists
_FONT = "system-ui, sans-serif"

Size = Literal["kept", "bytes"]
SIZES: tuple[Size, ...] = ("kept", "bytes")
Column = Sequence[float | int | str | None]


@dataclass(frozen=True)
class Chart:
    """A chart: what the browser draws, what a person who cannot see it is told, and the numbers."""

    name: str
    title: str
    alternative: str
    item: Mapping[str, Any]
    columns: Mapping[str, Column]
    note: str = ""


def error_chart(run: Run) -> Chart | None:
    """Draw the error of the cut network, and of its sibling, against steps."""
    columns = {"error %": [epoch.error for epoch in run.history]}
    sibling = [epoch.sibling_error for epoch in run.history]
    if any(map(math.isfinite, sibling)):
        columns["error of the sibling %"] = sibling
    note = "Validation images. The error is that of the network cut at this moment; the sibling is what is trained."
    return _history_chart(run, "error", "Error", "error on validation images, %", columns, note=note)


def ratio_chart(run: Run) -> Chart | None:
    """Draw how many times fewer weights there are, against steps."""
    columns = {"times fewer weights": [epoch.ratio for epoch in run.history]}
    return _history_chart(run, "ratio", "Ratio", "all weights ÷ weights kept", columns)


def threshold_chart(run: Run) -> Chart | None:
    """Draw the mean threshold of every layer against steps."""
    history = [epoch for epoch in run.history if epoch.thresholds]
    names = list(history[-1].thresholds) if history else []
    columns = {name: [epoch.thresholds.get(name, math.nan) for epoch in history] for name in names}
    note = "The mean where a layer has several. After the cut there are no thresholds."
    return _history_chart(run, "thresholds", "Thresholds", "threshold t", columns, history=history, note=note)


def loss_chart(run: Run) -> Chart | None:
    """Draw the terms of the loss against steps; their sum alone where an older log has no more."""
    words = {"task": "task, L₀", "thresholds": "thresholds, L_t", "decay": "weight decay, L_wd", "rate": "rate"}
    terms = [name for name in words if any(name in epoch.loss_terms for epoch in run.history)]
    columns = {words[name]: [epoch.loss_terms.get(name, math.nan) for epoch in run.history] for name in terms}
    note = "Means over an epoch; weight decay at its end."
    if not columns:
        columns = {"task and thresholds, L₀ + L_t": [epoch.loss for epoch in run.history]}
        note = "The log of this run, of an older version, has the sum of the terms only; the mean over an epoch."
    return _history_chart(run, "loss", "Loss terms", "loss", columns, note=note)


def _history_chart(
    run: Run,
    name: str,
    title: str,
    label: str,
    series: Mapping[str, Sequence[float]],
    *,
    history: Sequence[Epoch] | None = None,
    note: str = "",
) -> Chart | None:
    epochs = run.history if history is None else history
    series = {key: values for key, values in series.items() if any(map(math.isfinite, values))}
    if len(epochs) == 0 or not series:
        return None
    x = _places(run, epochs)
    columns: dict[str, Column] = {
        "phase": [epoch.phase for epoch in epochs],
        "epoch": [epoch.epoch for epoch in epochs],
        "step" if run.counts_steps else "epoch of the run": x,
        **series,
    }
    step = math.ceil(len(epochs) / _MOST_POINTS)
    drawn = sorted({*range(0, len(epochs), step), len(epochs) - 1})
    values = [value for each in series.values() for value in each]
    plot = _figure("step" if run.counts_steps else "epoch", label, y_axis_type=_scale(values))
    plot.x_range = Range1d(0, max(x) * 1.02)
    source = ColumnDataSource(
        {
            "x": [x[index] for index in drawn],
            "phase": [epochs[index].phase for index in drawn],
            "epoch": [epochs[index].epoch for index in drawn],
            **{f"y{number}": [each[index] for index in drawn] for number, each in enumerate(series.values())},
        }
    )
    lines = []
    for number, key in enumerate(series):
        colour, dash = COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]
        line = plot.line("x", f"y{number}", source=source, color=colour, line_dash=dash, line_width=2, name=key)
        if len(drawn) == 1:
            plot.scatter("x", f"y{number}", source=source, color=colour, size=7)
        lines.append((key, line))
    _mark_phases(plot, run)
    _legend(plot, lines)
    place = [("phase", "@phase, epoch @epoch")] + ([("step", "@x{0,0}")] if run.counts_steps else [])
    if len(series) <= _MOST_NAMES:
        tips = place + [(key, f"@y{number}{{0,0.0000}}") for number, key in enumerate(series)]
        plot.add_tools(HoverTool(renderers=[lines[0][1]], mode="vline", tooltips=tips))
    else:
        plot.add_tools(HoverTool(mode="mouse", tooltips=[("", "$name"), *place, (label, "$y{0,0.0000}")]))
    return Chart(name, title, _in_words(title, series), _item(plot), columns, note)


def _places(run: Run, epochs: Iterable[Epoch]) -> list[int]:
    """Return where epochs lie on the axis: at their step, or one behind the other where steps are not known."""
    if run.counts_steps:
        return [epoch.step for epoch in epochs]
    places = {id(epoch): number for number, epoch in enumerate(run.history, start=1)}
    return [places[id(epoch)] for epoch in epochs]


def _mark_phases(plot: figure, run: Run) -> None:
    """Mark the cut, and what comes after it."""
    x = _places(run, run.history)
    trained = [place for place, epoch in zip(x, run.history, strict=True) if epoch.phase == "train"]
    if run.is_pruned and trained and (len(trained) < len(x) or run.state == "finished"):
        plot.add_layout(Span(location=trained[-1], dimension="height", line_dash="dashed", line_width=1.5, tags=["ink"]))
        _note(plot, trained[-1], "cut ", align="right")
    if trained and len(trained) < len(x):
        plot.add_layout(BoxAnnotation(left=trained[-1], fill_alpha=0.12, fill_color=COLOURS[-1], line_color=None))
        _note(plot, trained[-1], " fine-tune", align="left")


def _note(plot: figure, x: float, text: str, *, align: str) -> None:
    plot.add_layout(
        Label(
            x=x,
            y=4,
            y_units="screen",
            text=text,
            text_align=align,
            text_baseline="bottom",
            text_font=_FONT,
            text_font_size="12px",
            tags=["ink"],
        )
    )


def histogram_chart(look: LayerLook, number: int) -> Chart:
    """Draw how many weights of a layer lie where, before and after the cut, with its thresholds."""
    layer, edges = look.layer, look.edges
    plot = _figure("weight", "weights, log scale", y_axis_type="log", height=240)
    columns: dict[str, Column] = {"from": edges[:-1].tolist(), "to": edges[1:].tolist()}
    legend = []
    shown = [(name, counts) for name, counts in (("before the cut", look.before), ("after", look.after)) if counts is not None]
    top = max(int(counts.max()) for _, counts in shown)
    source = ColumnDataSource({"left": edges[:-1], "right": edges[1:]})
    for (name, counts), colour, alpha in zip(shown, (COLOURS[-1], COLOURS[1]), (0.55, 0.85), strict=False):
        columns[name] = counts.tolist()
        source.data[name] = counts
        source.data[f"{name} top"] = [max(float(count), 0.5) for count in counts]
        bars = plot.quad(
            left="left",
            right="right",
            bottom=0.5,
            top=f"{name} top",
            source=source,
            fill_color=colour,
            fill_alpha=alpha,
            line_color=None,
        )
        legend.append((name, bars))
    plot.y_range = Range1d(0.5, 3 * max(top, 1))
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
    if layer.thresholds:
        for sign in (-1, 1):
            _mark_threshold(plot, sign, layer.thresholds)
        columns["threshold"] = [layer.threshold] + [None] * (len(edges) - 2)
    _legend(plot, legend)
    tips = [("weight", "@left{0.000} … @right{0.000}")] + [(name, f"@{{{name}}}{{0,0}}") for name, _ in shown]
    plot.add_tools(HoverTool(renderers=[legend[0][1]], mode="vline", tooltips=tips))
    words = f"Histogram of the {layer.weights:,} weights of {layer.name}, from {edges[0]:.3g} to {edges[-1]:.3g}"
    if layer.thresholds:
        several = f", {len(layer.thresholds)} thresholds of mean" if len(layer.thresholds) > 1 else ", threshold"
        words += f"{several} {layer.threshold:.4f}"
    if look.after is not None:
        words += f"; {layer.kept:,} are left"
    return Chart(f"histogram-{number}", layer.name, words + ".", _item(plot), columns)


def _mark_threshold(plot: figure, sign: int, thresholds: Sequence[float]) -> None:
    mean = sign * sum(thresholds) / len(thresholds)
    plot.add_layout(Span(location=mean, dimension="height", line_dash="dashed", line_width=1.5, tags=["ink"]))
    if len(thresholds) > 1:
        ends = sorted((sign * min(thresholds), sign * max(thresholds)))
        plot.add_layout(BoxAnnotation(left=ends[0], right=ends[1], fill_alpha=0.15, fill_color=COLOURS[0], line_color=None))


def comparison_chart(runs: Sequence[Run], name: str, title: str, label: str) -> Chart | None:
    """Draw the error or the ratio of several runs against steps."""
    values = {id(run): [getattr(epoch, name) for epoch in run.history] for run in runs}
    drawn = [run for run in runs if any(map(math.isfinite, values[id(run)]))]
    if not drawn:
        return None
    in_steps = all(run.counts_steps for run in drawn)
    everything = [value for run in drawn for value in values[id(run)]]
    plot = _figure("step" if in_steps else "epoch", label, y_axis_type=_scale(everything))
    columns: dict[str, list[float | int | str | None]] = {"run": [], "phase": [], "epoch": [], "step": [], title: []}
    lines = []
    for number, run in enumerate(drawn):
        x = [epoch.step for epoch in run.history] if in_steps else list(range(1, len(run.history) + 1))
        step = math.ceil(len(x) * len(drawn) / (4 * _MOST_POINTS))
        chosen = sorted({*range(0, len(x), step), len(x) - 1})
        source = ColumnDataSource(
            {
                "x": [x[index] for index in chosen],
                "y": [values[id(run)][index] for index in chosen],
                "phase": [run.history[index].phase for index in chosen],
                "epoch": [run.history[index].epoch for index in chosen],
            }
        )
        colour, dash = COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]
        key = letter(runs.index(run))
        line = plot.line("x", "y", source=source, color=colour, line_dash=dash, line_width=2, name=f"run {key}")
        lines.append((key, line))
        for index in chosen:
            columns["run"].append(key)
            columns["phase"].append(run.history[index].phase)
            columns["epoch"].append(run.history[index].epoch)
            columns["step"].append(run.history[index].step or None)
            columns[title].append(values[id(run)][index])
    _legend(plot, lines)
    tips = [("run", "$name"), ("phase", "@phase, epoch @epoch"), (title, "@y{0,0.00}")]
    plot.add_tools(HoverTool(mode="mouse", tooltips=tips))
    ends = "; ".join(f"run {letter(runs.index(run))} ends at {values[id(run)][-1]:.4g}" for run in drawn)
    return Chart(f"compare-{name}", title, f"{title} of {len(drawn)} runs against steps: {ends}.", _item(plot), columns)


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
    label = {"kept": "weights kept, log scale", "bytes": "bytes of the file, log scale"}[size]
    plot = _figure(label, "error, %", x_axis_type="log", height=360)
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.xaxis.ticker = LogTicker(desired_num_ticks=5)
    legend = []
    if marks:
        legend.append(("published", _draw_marks(plot, marks, size)))
    paper = PAPER.get(network) if data in ("mnist", "imagenet") else None
    if size == "kept" and paper is not None:
        plot.add_layout(
            Span(location=paper.kept, dimension="height", line_dash="dotted", line_width=1.5, tags=["ink"])
        )
        _note(plot, paper.kept, f" the paper, {paper.change:+.1f} points", align="left")
    front = _pareto(points)
    if len(points) > 1:
        stairs = plot.step(
            [point.size for point in front], [point.error for point in front], mode="after", line_width=2, color=COLOURS[0]
        )
        legend.append(("best of these runs", stairs))
    dots = []
    for images, fill in (("test", 1.0), ("validation", 0.0)):
        chosen = [point for point in points if point.images == images]
        if chosen:
            source = ColumnDataSource(
                {
                    "x": [point.size for point in chosen],
                    "y": [point.error for point in chosen],
                    "run": [point.run for point in chosen],
                    "what": [point.what for point in chosen],
                    "images": [point.images for point in chosen],
                }
            )
            dot = plot.scatter(
                "x", "y", source=source, size=11, fill_alpha=fill, color=COLOURS[0], line_width=2
            )
            dots.append(dot)
            whose = "this run" if len(runs) == 1 else "runs"
            legend.append((f"{whose}, {images} images", dot))
    unit = {"kept": "weights kept", "bytes": "bytes"}[size]
    tips = [("run", "@run"), (unit, "@x{0,0}"), ("error", "@y{0.00} % on @images images"), ("", "@what")]
    plot.add_tools(HoverTool(renderers=dots, tooltips=tips))
    _legend(plot, legend, location="top_right")
    title = {"kept": "Error against weights kept", "bytes": "Error against bytes"}[size]
    columns: dict[str, Column] = {
        "who": [*(f"run {point.run}" for point in points), *(mark.method for mark in marks)],
        unit: [*(point.size for point in points), *(getattr(mark, size) for mark in marks)],
        "error %": [*(point.error for point in points), *(mark.error for mark in marks)],
        "images": [*(point.images for point in points), *("test" for _ in marks)],
        "source": [*(point.what for point in points), *(mark.source for mark in marks)],
    }
    best = min(points, key=lambda point: point.error)
    least = min(points, key=lambda point: point.size)
    words = (
        f"{title}, {len(points)} points of these runs and {len(marks)} published ones: the lowest error is "
        f"{best.error:.2f} % at {best.size:,.0f} {unit}, the smallest has {least.size:,.0f} at {least.error:.2f} %."
    )
    note = "Filled: error on test images, as in the literature. Hollow: on validation images only."
    return Chart(f"pareto-{size}-{network}-{data}", f"{title}, {network}",  words, _item(plot), columns, note)


def _points(runs: Sequence[Run], size: str) -> list[_Point]:
    points = []
    for number, run in enumerate(runs):
        key, error = letter(number), run.error
        if size == "kept" and error is not None and run.kept and run.is_pruned:
            points.append(_Point(key, run.network, run.data, run.kept, error.percent, error.images, f"{run.ratio:.1f}× fewer"))
        if size == "bytes":
            points += [
                _Point(key, run.network, run.data, file.bytes, file.error.percent, file.error.images, file.name) for file in run.files if file.bytes
            ]
    return [point for point in points if math.isfinite(point.error)]


def _pareto(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other beats in both, from the smallest on."""
    front: list[_Point] = []
    for point in sorted(points, key=lambda point: (point.size, point.error)):
        if not front or point.error < front[-1].error:
            front.append(point)
    return front


def _draw_marks(plot: figure, marks: Sequence[Published], size: str) -> Any:
    source = ColumnDataSource(
        {
            "x": [getattr(mark, size) for mark in marks],
            "y": [mark.error for mark in marks],
            "method": [mark.method for mark in marks],
            "source": [mark.source for mark in marks],
        }
    )
    drawn = plot.scatter("x", "y", source=source, size=9, marker="diamond", fill_alpha=0.25, color=COLOURS[1])
    unit = {"kept": "weights kept", "bytes": "bytes"}[size]
    tips = [("", "@method"), (unit, "@x{0,0}"), ("error", "@y{0.00} %"), ("source", "@source")]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
    return drawn


def letter(number: int) -> str:
    """Name a run of a comparison: A to Z, then A2 and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26 + 1) if number >= 26 else "")


def _figure(x: str, y: str, *, height: int = 280, **options: Any) -> figure:
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        x_axis_label=x,
        y_axis_label=y,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **options,
    )
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.update(
            axis_label_text_font=_FONT,
            axis_label_text_font_style="normal",
            axis_label_text_font_size="13px",
            major_label_text_font=_FONT,
            major_label_text_font_size="12px",
            minor_tick_line_color=None,
        )
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[0000]")
    plot.xgrid.grid_line_color = None
    return plot


def _legend(plot: figure, entries: Sequence[tuple[str, Any]], location: str | None = None) -> None:
    if not 1 < len(entries) <= 2 * _MOST_NAMES:
        return
    legend = Legend(
        items=[(name, [renderer]) for name, renderer in entries],
        orientation="horizontal",
        ncols="auto",
        label_text_font=_FONT,
        label_text_font_size="12px",
        background_fill_color=None,
        border_line_color=None,
        padding=2,
        spacing=10,
        click_policy="hide",
    )
    plot.add_layout(legend, "above")


def _scale(values: Iterable[float]) -> str:
    """Choose a logarithmic axis for positive values that span more than a factor of eight."""
    finite = [value for value in values if math.isfinite(value)]
    return "log" if finite and min(finite) > 0 and max(finite) > 8 * min(finite) else "linear"


def _in_words(title: str, series: Mapping[str, Sequence[float]]) -> str:
    parts = []
    for name, values in list(series.items())[:_MOST_NAMES]:
        finite = [value for value in values if math.isfinite(value)]
        parts.append(f"{name} from {finite[0]:.4g} to {finite[-1]:.4g}, lowest {min(finite):.4g}")
    more = f"; and {len(series) - _MOST_NAMES} more" if len(series) > _MOST_NAMES else ""
    return f"{title} against steps: {'; '.join(parts)}{more}."


def _item(plot: figure) -> dict[str, Any]:
    return dict(json_item(plot))
