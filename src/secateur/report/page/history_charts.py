"""Charts of how training went: error, ratio, thresholds, loss and size against steps, whatever the stages are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.annotations import BoxAnnotation
from bokeh.plotting import figure

from secateur.report.page.chart import (
    COLOURS,
    MOST_NAMES,
    Chart,
    Column,
    Key,
    hover,
    in_words,
    mark,
    scaled_figure,
    shortened,
    style,
    to_item,
    write_note,
)
from secateur.report.page.names import identifier, letter
from secateur.report.page.run import Epoch, Run
from secateur.report.wording import Wording
from secateur.results import ERROR

_MOST_POINTS = 400  # of a history that are drawn
_TERMS = {"task": "task, L₀", "thresholds": "thresholds, L_t", "decay": "weight decay, L_wd"}


def error_chart(run: Run) -> Chart | None:
    """Draw the validation error, or the loss, against steps; of a sibling, that of the cut network and its own."""
    words = run.wording
    columns = {words.measure: [epoch.error for epoch in run.history]}
    sibling = [epoch.sibling_error for epoch in run.history]
    if any(map(math.isfinite, sibling)):
        columns[f"{words.name} of the sibling{words.unit}"] = sibling
    note = f"Validation {words.samples}."
    if len(columns) > 1:
        note += f" The {words.name} is that of the network cut after this epoch; the sibling is what is trained."
    return _history_chart(run, "error", words.title, _error_label(words), columns, note=note)


def _error_label(words: Wording) -> str:
    return words.axis(f"{words.name} on validation {words.samples}")


def ratio_chart(run: Run) -> Chart | None:
    """Draw the ratio of all weights to those kept against steps."""
    columns = {"times fewer weights": [epoch.ratio for epoch in run.history], "target": _targets(run.history, "ratio")}
    return _history_chart(run, "ratio", "Ratio", "all weights ÷ weights kept", columns)


def threshold_chart(run: Run) -> Chart | None:
    """Draw the mean threshold of every layer against steps."""
    history = [epoch for epoch in run.history if epoch.thresholds]
    names = list(history[-1].thresholds) if history else []
    columns = {name: [epoch.thresholds.get(name, math.nan) for epoch in history] for name in names}
    note = "The mean where a layer has several. The network has no thresholds after the cut."
    return _history_chart(run, "thresholds", "Thresholds", "threshold t", columns, history=history, note=note)


def loss_chart(run: Run) -> Chart | None:
    """Draw the terms of the loss against steps; only their sum where an older log has no more."""
    names = dict.fromkeys(name for epoch in run.history for name in epoch.loss_terms)
    columns = {
        _TERMS.get(name, name): [epoch.loss_terms.get(name, math.nan) for epoch in run.history] for name in names
    }
    note = "Means over an epoch; weight decay at its end."
    if not columns:
        columns = {"sum of the terms": [epoch.loss for epoch in run.history]}
        note = "The log of this run, of an older version, has only the sum of the terms; the mean over an epoch."
    return _history_chart(run, "loss", "Loss terms", "loss", columns, note=note)


def size_chart(run: Run) -> Chart | None:
    """Draw the estimated size of the file against steps, for the stages that train few values per layer."""
    history = [epoch for epoch in run.history if math.isfinite(epoch.coded_bytes)]
    columns = {"bytes, estimated": [epoch.coded_bytes for epoch in history], "target": _targets(history, "bytes")}
    note = "Estimated from the entropy of the levels, while the values that weights share are trained."
    return _history_chart(run, "size", "Size", "bytes of the file, estimated", columns, history=history, note=note)


def _targets(history: Sequence[Epoch], quantity: str) -> list[float]:
    return [epoch.target.get(quantity, math.nan) for epoch in history]


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
        "stage": [epoch.stage for epoch in epochs],
        "epoch": [epoch.epoch for epoch in epochs],
        "step" if run.counts_steps else "epoch of the run": x,
        **series,
    }
    values = [value for each in series.values() for value in each]
    plot = scaled_figure("step" if run.counts_steps else "epoch", label, values)
    plot.x_range = Range1d(start=0, end=1.02 * max(_places(run, run.history)))
    plot.y_range.update(range_padding=0.15)  # room for the words at the bottom
    legend = _draw_lines(plot, run, epochs, x, series, label)
    _mark_stages(plot, run)
    return Chart(name, title, in_words(title, series), to_item(plot), columns, shortened(legend), note)


def _draw_lines(
    plot: figure, run: Run, epochs: Sequence[Epoch], x: Sequence[int], series: Mapping[str, Sequence[float]], label: str
) -> list[Key]:
    """Draw a line for each series, with its values at the pointer."""
    drawn = _thinned(len(epochs), _MOST_POINTS)
    source = ColumnDataSource(
        {
            "x": [x[index] for index in drawn],
            "stage": [epochs[index].stage for index in drawn],
            "epoch": [epochs[index].epoch for index in drawn],
            **{f"y{number}": [each[index] for index in drawn] for number, each in enumerate(series.values())},
        }
    )
    lines, legend = [], []
    for number, key in enumerate(series):
        colour, dash = style(number)
        # The sibling's error is mostly equal to the cut network's: dotted, so that both are visible.
        dash = "dotted" if "sibling" in key else dash
        lines.append(plot.line("x", f"y{number}", source=source, color=colour, line_dash=dash, line_width=2, name=key))
        legend.append(Key(key, colour, dash))
        if len(drawn) == 1:
            plot.scatter("x", f"y{number}", source=source, color=colour, size=7)
    place = [("stage", "@stage, epoch @epoch")] + ([("step", "@x{0,0}")] if run.counts_steps else [])
    if len(series) <= MOST_NAMES:
        tips = place + [(key, f"@y{number}{{%.5g}}") for number, key in enumerate(series)]
        hover(plot, tips, [lines[0]], mode="vline", formatters={f"@y{each}": "printf" for each in range(len(series))})
    else:
        hover(plot, [("", "$name"), *place, (label, "$y{%.5g}")], lines, formatters={"$y": "printf"})
    return legend


def _thinned(number: int, most: int) -> list[int]:
    """Return the places of at most so many points, the last one always among them."""
    return sorted({*range(0, number, math.ceil(number / most)), number - 1})


def _places(run: Run, epochs: Iterable[Epoch]) -> list[int]:
    """Return where epochs lie on the axis: at their step, or in their order where steps are not known."""
    if run.counts_steps:
        return [epoch.step for epoch in epochs]
    places = {id(epoch): number for number, epoch in enumerate(run.history, start=1)}
    return [places[id(epoch)] for epoch in epochs]


def _mark_stages(plot: figure, run: Run) -> None:
    """Mark where a stage ends and the next one begins; what comes after the first cut is shaded."""
    x = _places(run, run.history)
    later = [number for number, epoch in enumerate(run.history) if epoch.phase != "train"]
    is_cut = run.is_pruned and run.history and (later or run.is_finished)
    cut = later[0] - 1 if later else len(x) - 1
    if is_cut and cut >= 0:
        mark(plot, x[cut])
        _write_at_mark(plot, x[cut], x[-1], f"cut, then {run.history[later[0]].phase}" if later else "cut")
    if later and cut >= 0:
        plot.add_layout(BoxAnnotation(left=x[cut], fill_alpha=0.12, fill_color=COLOURS[-1], line_color=None))
    for number, (before, after) in enumerate(itertools.pairwise(run.history)):
        if before.stage != after.stage:
            if number != cut:
                mark(plot, x[number], "dotted")
            if before.phase != after.phase and not (is_cut and number == cut):
                _write_at_mark(plot, x[number], x[-1], after.phase)


def _write_at_mark(plot: figure, x: int, end: int, text: str) -> None:
    """Write what a mark means on the side where the axis is longer: a phone has no room on the other."""
    write_note(plot, x, f" {text} ", align="left" if 2 * x < end else "right")


def error_comparison_chart(runs: Sequence[Run], measure: str = ERROR) -> Chart | None:
    """Draw the errors of those runs that have this measure against steps: an error and a loss share no axis."""
    chosen = {number: run for number, run in enumerate(runs) if run.measure == measure}
    words = next(iter(chosen.values())).wording
    if any(run.wording != words for run in chosen.values()):  # some on images, some on other samples
        words = Wording(measure, "samples")
    others = [f"{letter(number)} ({run.wording.name})" for number, run in enumerate(runs) if number not in chosen]
    note = f"Runs with another measure are not drawn here: {', '.join(others)}." if others else ""
    return _comparison_chart(chosen, "error", words.title, _error_label(words), measure=measure, note=note)


def ratio_comparison_chart(runs: Sequence[Run]) -> Chart | None:
    """Draw the ratio of several runs against steps."""
    return _comparison_chart(dict(enumerate(runs)), "ratio", "Ratio", "all weights ÷ weights kept")


def _comparison_chart(
    runs: Mapping[int, Run],
    quantity: Literal["error", "ratio"],
    title: str,
    label: str,
    *,
    measure: str = ERROR,
    note: str = "",
) -> Chart | None:
    """Draw the error or the ratio of runs, by their number in the comparison, against steps."""
    values = {id(run): [getattr(epoch, quantity) for epoch in run.history] for run in runs.values()}
    drawn = {number: run for number, run in runs.items() if any(map(math.isfinite, values[id(run)]))}
    if not drawn:
        return None
    in_steps = all(run.counts_steps for run in drawn.values())
    everything = [value for run in drawn.values() for value in values[id(run)]]
    plot = scaled_figure("step" if in_steps else "epoch", label, everything)
    columns: dict[str, list[float | int | str | None]] = {"run": [], "stage": [], "epoch": [], "step": [], title: []}
    lines, legend = [], []
    for number, run in drawn.items():
        x = [epoch.step for epoch in run.history] if in_steps else list(range(1, len(run.history) + 1))
        chosen = _thinned(len(x), max(1, 4 * _MOST_POINTS // len(drawn)))
        shown = {
            "x": [x[index] for index in chosen],
            "y": [values[id(run)][index] for index in chosen],
            "stage": [run.history[index].stage for index in chosen],
            "epoch": [run.history[index].epoch for index in chosen],
        }
        source, (colour, dash), key = ColumnDataSource(shown), style(number), letter(number)
        lines.append(plot.line("x", "y", source=source, color=colour, line_dash=dash, line_width=2, name=f"run {key}"))
        legend.append(Key(f"run {key}", colour, dash))
        columns["run"] += [key] * len(chosen)
        columns["stage"] += shown["stage"]
        columns["epoch"] += shown["epoch"]
        columns["step"] += [run.history[index].step or None for index in chosen]
        columns[title] += shown["y"]
    value, formats = ("@y{0,0.00}", {}) if measure == ERROR else ("@y{%.5g}", {"formatters": {"@y": "printf"}})
    hover(plot, [("", "$name"), ("stage", "@stage, epoch @epoch"), (title, value)], lines, **formats)
    ends = "; ".join(f"run {letter(number)} ends at {values[id(run)][-1]:.4g}" for number, run in drawn.items())
    words = f"{title} of {len(drawn)} runs against steps: {ends}."
    name = f"compare-{quantity}" if measure == ERROR else identifier(f"compare-{measure}")
    return Chart(name, title, words, to_item(plot), columns, shortened(legend), note)
