"""Charts of a study of transfer: score against weights kept, and similarity by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.plotting import figure

from secateur.report.page.chart import (
    COLOURS,
    FONT,
    Chart,
    Column,
    Key,
    hover,
    new_figure,
    set_log_ticks,
    style,
    to_item,
)
from secateur.report.page.names import identifier
from secateur.transfer.neighbours import Disagreement
from secateur.transfer.outcome import TaskResult, TransferStudy


def curve_charts(study: TransferStudy) -> tuple[Chart, ...]:
    """Draw the scores of all networks against their weights kept, a chart for each task."""
    return tuple(_curve(study, task, number) for number, task in enumerate(study.tasks))


def _curve(study: TransferStudy, task: TaskResult, number: int) -> Chart:
    """Draw scores with the intervals of their changes; the line is the best score with at most as many weights."""
    dense = study.dense.name
    names = [network.name for network in study.networks]
    kept = [max(network.kept, 1) for network in study.networks]
    scores = [100 * task.main.scores[name] for name in names]
    changes = [task.main.difference((name, dense)) for name in names[1:]]
    low = [scores[0], *(scores[0] + 100 * each.low for each in changes)]
    high = [scores[0], *(scores[0] + 100 * each.high for each in changes)]
    plot = new_figure("weights kept, log scale", f"{task.measure}, %", x_axis_type="log", height=320)
    _set_axes(plot, kept, low, high)
    front = sorted(zip(kept, scores, strict=True))
    plot.step(
        [size for size, _ in front],
        np.maximum.accumulate([score for _, score in front]).tolist(),
        mode="after",
        line_width=2,
        color=COLOURS[-1],
    )
    columns: dict[str, Column] = {"kept": kept, "score": scores, "low": low, "high": high, "name": names}
    source = ColumnDataSource({**columns, "colour": [style(index)[0] for index in range(len(names))]})
    plot.segment("kept", "low", "kept", "high", source=source, line_width=2, color="colour")
    dots = plot.scatter("kept", "score", source=source, size=10, color="colour")
    plot.text(
        "kept",
        "score",
        text="name",
        source=source,
        text_color="colour",
        x_offset=9,
        y_offset=-4,
        text_font=value(FONT),
        text_font_size="12px",
    )
    hover(plot, [("", "@name"), ("weights kept", "@kept{0,0}"), (task.measure, "@score{0.00} %")], [dots])
    best = names[int(np.argmax(scores))]
    return Chart(
        identifier(f"curve-{number}-{task.task}"),
        f"{task.task}, {task.measure}",
        f"{task.measure} against weights kept on {task.task}: {dense} has {scores[0]:.2f} %; the highest is that of "
        f"{best}, {max(scores):.2f} %.",
        to_item(plot),
        columns,
        (Key("the best with at most as many weights", COLOURS[-1], "solid"),),
        f"Vertical lines: the interval of 95 % of the difference from {dense}.",
    )


def _set_axes(plot: figure, kept: list[int], low: list[float], high: list[float]) -> None:
    factor = max((max(kept) / min(kept)) ** 0.15, 1.15)
    room = max(0.1 * (max(high) - min(low)), 0.1)
    plot.x_range = Range1d(start=min(kept) / factor, end=max(kept) * factor)
    plot.y_range = Range1d(start=min(low) - room, end=max(high) + room)
    set_log_ticks(plot, min(kept) / factor, max(kept) * factor)


def attribute_charts(disagreements: Sequence[Disagreement]) -> tuple[Chart, ...]:
    """Draw the score of every attribute with two networks, a chart for each task of attributes."""
    return tuple(_attributes(each, number) for number, each in enumerate(disagreements) if each.by_attribute)


def _attributes(found: Disagreement, number: int) -> Chart:
    """Draw a dot for each attribute: above the diagonal, the second network is better."""
    first, second = found.networks
    names = list(found.by_attribute)
    x, y = ([100 * scores[place] for scores in found.by_attribute.values()] for place in (0, 1))
    low, high = min(*x, *y) - 2, max(*x, *y) + 2
    plot = new_figure(f"{found.measure} with {first}, %", f"{found.measure} with {second}, %", height=320)
    plot.x_range, plot.y_range = Range1d(start=low, end=high), Range1d(start=low, end=high)
    plot.line([low, high], [low, high], line_width=2, color=COLOURS[-1])
    columns: dict[str, Column] = {"attribute": names, first: x, second: y}
    source = ColumnDataSource({"x": x, "y": y, "name": names})
    dots = plot.scatter("x", "y", source=source, size=8, color=style(1)[0], fill_alpha=0.8)
    hover(plot, [("", "@name"), (first, "@x{0.0} %"), (second, "@y{0.0} %")], [dots])
    return Chart(
        identifier(f"attributes-{number}-{found.task}"),
        f"{found.task}, every attribute",
        f"{found.measure} of {len(names)} attributes of {found.task}: {found.second} are higher with {second}, "
        f"{found.first} with {first}.",
        to_item(plot),
        columns,
        (Key("an attribute", style(1)[0], "dot"), Key("equal", COLOURS[-1], "solid")),
        f"Above the line: {second} is better.",
    )


def similarity_chart(study: TransferStudy) -> Chart | None:
    """Draw the similarity of every layer with that of the dense network, in the mean over tasks."""
    found: dict[str, dict[str, list[float]]] = {network.name: {} for network in study.pruned}
    for task in study.tasks:
        for name, layers in task.similarity.items():
            for each in layers:
                if not math.isnan(each.cka):
                    found[name].setdefault(each.layer, []).append(each.cka)
    names = list(dict.fromkeys(layer for by_layer in found.values() for layer in by_layer))
    if not names:
        return None
    plot = new_figure("", "linear CKA", y_range=Range1d(start=0, end=1.03))
    plot.xaxis.ticker = FixedTicker(ticks=list(range(len(names))))
    plot.xaxis.major_label_overrides = dict(enumerate(names))
    plot.xaxis.major_label_orientation = 0.9
    columns: dict[str, Column] = {"layer": names}
    legend, drawn = [], []
    for number, (name, by_layer) in enumerate(found.items(), start=1):
        colour, dash = style(number)  # as in the other charts, where the dense network comes first
        values = [float(np.mean(by_layer[layer])) if layer in by_layer else math.nan for layer in names]
        columns[name] = values
        data = {"x": range(len(names)), "y": values, "layer": names, "name": [name] * len(names)}
        source = ColumnDataSource({key: list(column) for key, column in data.items()})
        plot.line("x", "y", source=source, line_width=2, color=colour, line_dash=dash)
        drawn.append(plot.scatter("x", "y", source=source, size=7, color=colour))
        legend.append(Key(name, colour, dash))
    hover(plot, [("", "@name"), ("layer", "@layer"), ("CKA", "@y{0.000}")], drawn)
    least, layer, network = min(
        (float(np.mean(values)), layer, name) for name in found for layer, values in found[name].items()
    )
    return Chart(
        "similarity",
        f"Linear CKA with {study.dense.name}, by layer",
        f"Linear CKA of every layer with {study.dense.name}: the lowest is {least:.3f}, at {layer} of {network}.",
        to_item(plot),
        columns,
        tuple(legend),
        "In the mean over tasks. 1: outputs differ by rotation and scale only.",
    )
