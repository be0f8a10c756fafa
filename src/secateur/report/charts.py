"""The charts of the report page, drawn by Bokeh in the browser; each brings its data along to be downloaded.

Colours that must change with the theme (text, axes, grids) are set by the page's script. Those of the data are chosen
to stand out by 3 : 1 or more from a white page and from a dark one alike.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d, SingleIntervalTicker
from bokeh.models.annotations import BoxAnnotation, Label, Span
from bokeh.plotting import figure

from secateur.report.facts import Epoch, Error, Run
from secateur.report.literature import Published, published, reference
from secateur.report.weights import LayerLook

COLOURS = ("#0b7ac8", "#d55e00", "#00936b", "#a663cc", "#b07d00", "#c2477f", "#0e8f9e", "#7d8590")
_DASHES = ("solid", "dashed", "dotted", "dotdash")
_MOST_POINTS = 400  # of a history that are drawn
_MOST_NAMES = 8  # that a legend or a tooltip lists
_FONT = "system-ui, sans-serif"

Size = Literal["kept", "bytes"]
SIZES: tuple[Size, ...] = ("kept", "bytes")
Column = Sequence[float | int | str | None]


@dataclass(frozen=True)
class Key:
    """A line of a legend, which the page writes: it wraps on a phone, and Bokeh's does not."""

    name: str
    colour: str
    mark: str  # solid, dashed, dotted or dotdash line; box, dot, ring or diamond


@dataclass(frozen=True)
class Chart:
    """A chart: what the browser draws, what a person who cannot see it is told, and the numbers."""

    name: str
    title: str
    alternative: str
    item: Mapping[str, Any]
    columns: Mapping[str, Column]
    legend: tuple[Key, ...] = ()
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


def values_chart(run: Run) -> Chart | None:
    """Draw the error while the few values of the newest file were trained, and what the file would have had."""
    history = run.files[0].history if run.files else ()
    if not any(math.isfinite(epoch.error) for epoch in history):
        return None
    epochs, errors = [epoch.epoch for epoch in history], [epoch.error for epoch in history]
    coded = [epoch.coded_bytes for epoch in history]
    plot = _figure("epoch", "error on validation images, %")
    plot.xaxis.ticker = SingleIntervalTicker(interval=math.ceil(len(epochs) / 10), num_minor_ticks=0)
    source = ColumnDataSource({"x": epochs, "y": errors, "bytes": coded})
    line = plot.line("x", "y", source=source, color=COLOURS[0], line_width=2)
    plot.scatter("x", "y", source=source, color=COLOURS[0], size=6)
    _hover(plot, [("epoch", "@x"), ("error %", "@y{0.00}"), ("bytes, estimated", "@bytes{0,0}")], [line], mode="vline")
    title = "Shared values"
    columns: dict[str, Column] = {"epoch": epochs, "error %": errors, "bytes, estimated": coded}
    words = _in_words(f"{title}, after the cut,", {"error %": errors, "bytes, estimated": coded})
    note = f"After the cut, for the file {run.files[0].name}: the values that weights share are trained."
    return Chart("values", title, words, _item(plot), columns, note=note)


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
    plot.x_range = Range1d(start=0, end=1.02 * max(_places(run, run.history)))
    plot.y_range.update(range_padding=0.15)  # room for the words below
    source = ColumnDataSource(
        {
            "x": [x[index] for index in drawn],
            "phase": [epochs[index].phase for index in drawn],
            "epoch": [epochs[index].epoch for index in drawn],
            **{f"y{number}": [each[index] for index in drawn] for number, each in enumerate(series.values())},
        }
    )
    lines, legend = [], []
    for number, key in enumerate(series):
        colour, dash = _style(number)
        # The sibling's error mostly is the cut network's: dotted, so that both are seen.
        dash = "dotted" if "sibling" in key else dash
        lines.append(plot.line("x", f"y{number}", source=source, color=colour, line_dash=dash, line_width=2, name=key))
        legend.append(Key(key, colour, dash))
        if len(drawn) == 1:
            plot.scatter("x", f"y{number}", source=source, color=colour, size=7)
    _mark_phases(plot, run)
    place = [("phase", "@phase, epoch @epoch")] + ([("step", "@x{0,0}")] if run.counts_steps else [])
    if len(series) <= _MOST_NAMES:
        tips = place + [(key, f"@y{number}{{%.5g}}") for number, key in enumerate(series)]
        _hover(plot, tips, [lines[0]], mode="vline", formatters={f"@y{each}": "printf" for each in range(len(series))})
    else:
        _hover(plot, [("", "$name"), *place, (label, "$y{%.5g}")], lines, formatters={"$y": "printf"})
    return Chart(name, title, _in_words(title, series), _item(plot), columns, _shortened(legend), note)


def _style(number: int) -> tuple[str, str]:
    """Return colour and dash of a line: each pair once before any comes again."""
    return COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]


def _shortened(legend: Sequence[Key]) -> tuple[Key, ...]:
    """Leave out the legend of a single line, and of so many that nobody tells them apart: hovering names them."""
    return tuple(legend) if 1 < len(legend) <= len(COLOURS) * len(_DASHES) else ()


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
        plot.add_layout(
            Span(location=trained[-1], dimension="height", line_dash="dashed", line_width=1.5, tags=["ink"])
        )
        _note(plot, trained[-1], "cut ", align="right")
    if trained and len(trained) < len(x):
        plot.add_layout(BoxAnnotation(left=trained[-1], fill_alpha=0.12, fill_color=COLOURS[-1], line_color=None))
        _note(plot, trained[-1], " fine-tune", align="left")


def _mark(plot: figure, x: float, dash: str = "dashed") -> None:
    plot.add_layout(Span(location=x, dimension="height", line_dash=dash, line_width=1.5, tags=["ink"]))


def _note(plot: figure, x: float, text: str, *, align: Literal["left", "right"]) -> None:
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
    bars, legend = [], []
    forms = (("before the cut", look.before, COLOURS[-1], 0.55), ("after", look.after, COLOURS[1], 0.85))
    shown = [(name, counts, colour, alpha) for name, counts, colour, alpha in forms if counts is not None]
    top = max(int(counts.max()) for _, counts, _, _ in shown)
    source = ColumnDataSource({"left": edges[:-1], "right": edges[1:]})
    for name, counts, colour, alpha in shown:
        columns[name] = counts.tolist()
        source.data[name] = counts
        source.data[f"{name} top"] = [max(float(count), 0.5) for count in counts]
        quads = plot.quad(
            left="left",
            right="right",
            bottom=0.5,
            top=f"{name} top",
            source=source,
            fill_color=colour,
            fill_alpha=alpha,
            line_color=None,
        )
        bars.append(quads)
        legend.append(Key(name, colour, "box"))
    plot.y_range = Range1d(start=0.5, end=3 * max(top, 1))
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
    if layer.thresholds:
        for sign in (-1, 1):
            _mark_threshold(plot, sign, layer.thresholds)
        columns["threshold"] = [layer.threshold] + [None] * (len(edges) - 2)
    tips = [("weight", "@left{0.000} … @right{0.000}")] + [(name, f"@{{{name}}}{{0,0}}") for name, *_ in shown]
    _hover(plot, tips, [bars[0]], mode="vline")
    words = f"Histogram of the {layer.weights:,} weights of {layer.name}, from {edges[0]:.3g} to {edges[-1]:.3g}"
    if layer.thresholds:
        several = f", {len(layer.thresholds)} thresholds of mean" if len(layer.thresholds) > 1 else ", threshold"
        words += f"{several} {layer.threshold:.4f}"
    if look.after is not None:
        words += f"; {layer.kept:,} are left"
    return Chart(f"histogram-{number}", layer.name, words + ".", _item(plot), columns, tuple(legend))


def _mark_threshold(plot: figure, sign: int, thresholds: Sequence[float]) -> None:
    mean = sign * sum(thresholds) / len(thresholds)
    _mark(plot, mean)
    if len(thresholds) > 1:
        ends = sorted((sign * min(thresholds), sign * max(thresholds)))
        plot.add_layout(
            BoxAnnotation(left=ends[0], right=ends[1], fill_alpha=0.15, fill_color=COLOURS[0], line_color=None)
        )


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
    lines, legend = [], []
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
        colour, dash = _style(number)
        key = letter(runs.index(run))
        lines.append(plot.line("x", "y", source=source, color=colour, line_dash=dash, line_width=2, name=f"run {key}"))
        legend.append(Key(key, colour, dash))
        for index in chosen:
            columns["run"].append(key)
            columns["phase"].append(run.history[index].phase)
            columns["epoch"].append(run.history[index].epoch)
            columns["step"].append(run.history[index].step or None)
            columns[title].append(values[id(run)][index])
    _hover(plot, [("", "$name"), ("phase", "@phase, epoch @epoch"), (title, "@y{0,0.00}")], lines)
    ends = "; ".join(f"run {letter(runs.index(run))} ends at {values[id(run)][-1]:.4g}" for run in drawn)
    words = f"{title} of {len(drawn)} runs against steps: {ends}."
    return Chart(f"compare-{name}", title, words, _item(plot), columns, _shortened(legend))


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
    _space_ticks(plot, [*(point.size for point in points), *(getattr(mark, size) for mark in marks)])
    legend = []
    if marks:
        _draw_marks(plot, marks, size)
        legend.append(Key("published", COLOURS[1], "diamond"))
    paper = reference(network, data)
    if size == "kept" and paper is not None:
        _mark(plot, paper.kept, "dotted")
        others = [*(point.size for point in points), *(mark.kept for mark in marks)]
        change = f"{paper.change:+.1f} points" if paper.change else "no loss"
        _note(
            plot,
            paper.kept,
            f" the paper: {change} ",
            align="left" if paper.kept**2 < min(others) * max(others) else "right",
        )
    front = _pareto(points)
    if len(front) > 1:
        sizes, errors = [point.size for point in front], [point.error for point in front]
        plot.step(sizes, errors, mode="after", line_width=2, color=COLOURS[0])
        legend.append(Key(f"Pareto curve, {front[0].images} images", COLOURS[0], "solid"))
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
            dot = plot.scatter("x", "y", source=source, size=11, fill_alpha=fill, color=COLOURS[0], line_width=2)
            dots.append(dot)
            whose = "this run" if len(runs) == 1 else "runs"
            legend.append(Key(f"{whose}, {images} images", COLOURS[0], "dot" if fill else "ring"))
    unit = {"kept": "weights kept", "bytes": "bytes"}[size]
    tips = [("run", "@run"), (unit, "@x{0,0}"), ("error", "@y{0.00} % on @images images"), ("", "@what")]
    _hover(plot, tips, dots)
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
    if marks:
        note += f" Published: {'; '.join(dict.fromkeys(mark.source for mark in marks))}."
    return Chart(
        f"pareto-{size}-{network}-{data}", f"{title}, {network}", words, _item(plot), columns, tuple(legend), note
    )


def _space_ticks(plot: figure, sizes: Sequence[float]) -> None:
    """Label a logarithmic axis at 1, 2, 5 and 10, or at tens only where it is long: a phone has room for few."""
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    steps = (1, 2, 5) if high - low < 2 else (1,) if high - low > 4 else (1, 3)
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ticks = [step * 10.0**power for power in powers for step in steps]
    # Bokeh would draw scraps of those beyond the axis.
    near = [tick for tick in ticks if 0.9 * min(sizes) <= tick <= 1.1 * max(sizes)]
    plot.xaxis.ticker = FixedTicker(ticks=near or [min(sizes)])
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")


def _points(runs: Sequence[Run], size: str) -> list[_Point]:
    points = []
    for number, run in enumerate(runs):
        found: list[tuple[float, Error, str]] = []
        if size == "bytes":
            found = [(file.bytes, file.error, file.name) for file in run.files if file.bytes]
        elif run.error is not None and run.kept and run.is_pruned:
            found = [(run.kept, run.error, f"{run.ratio:.1f}× fewer")]
        points += [
            _Point(letter(number), run.network, run.data, amount, error.percent, error.images, what)
            for amount, error, what in found
            if math.isfinite(error.percent)
        ]
    return points


def _pareto(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other beats in both, from the smallest on: of those on test images if there are any."""
    on_test = [point for point in points if point.images == "test"]
    front: list[_Point] = []
    for point in sorted(on_test or points, key=lambda point: (point.size, point.error)):
        if not front or point.error < front[-1].error:
            front.append(point)
    return front


def _draw_marks(plot: figure, marks: Sequence[Published], size: Size) -> None:
    source = ColumnDataSource(
        {
            "x": [getattr(mark, size) for mark in marks],
            "y": [mark.error for mark in marks],
            "method": [mark.method for mark in marks],
            "source": [mark.source for mark in marks],
        }
    )
    drawn = plot.scatter("x", "y", source=source, size=9, marker="diamond", fill_alpha=0.4, color=COLOURS[1])
    unit = {"kept": "weights kept", "bytes": "bytes"}[size]
    tips = [("", "@method"), (unit, "@x{0,0}"), ("error", "@y{0.00} %"), ("source", "@source")]
    _hover(plot, tips, [drawn])


def letter(number: int) -> str:
    """Name a run of a comparison: A to Z, then A2 and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26 + 1) if number >= 26 else "")


def _hover(plot: figure, rows: Sequence[tuple[str, str]], renderers: Sequence[Any], **options: Any) -> None:
    """Show rows of a name and a value at the pointer, in the page's colours: Bokeh's own are too pale to read."""
    names = [html.escape(name).replace("@", "&#64;").replace("$", "&#36;") for name, _ in rows]
    cells = "".join(
        f'<span style="color: var(--muted)">{name}</span><span>{value}</span>'
        for name, (_, value) in zip(names, rows, strict=True)
    )
    tips = f'<div style="display: grid; grid-template-columns: auto auto; gap: 0 0.8em">{cells}</div>'
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=tips, **options))


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
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[00000000]")
    plot.xgrid.grid_line_color = None
    return plot


def _scale(values: Iterable[float]) -> str:
    """Choose a logarithmic axis for positive values that span more than a factor of eight."""
    finite = [value for value in values if math.isfinite(value)]
    return "log" if finite and min(finite) > 0 and max(finite) > 8 * min(finite) else "linear"


def _in_words(title: str, series: Mapping[str, Sequence[float]]) -> str:
    parts = []
    for name, values in list(series.items())[:_MOST_NAMES]:
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            continue
        parts.append(f"{name} from {finite[0]:.4g} to {finite[-1]:.4g}, lowest {min(finite):.4g}")
    more = f"; and {len(series) - _MOST_NAMES} more" if len(series) > _MOST_NAMES else ""
    return f"{title} against steps: {'; '.join(parts)}{more}."


def _item(plot: figure) -> dict[str, Any]:
    return dict(json_item(plot))
