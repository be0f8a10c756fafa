"""Charts of a layer's weights before and after the cut."""

from __future__ import annotations

from collections.abc import Sequence

from bokeh.models import ColumnDataSource, NumeralTickFormatter, Range1d
from bokeh.models.annotations import BoxAnnotation
from bokeh.plotting import figure

from secateur.job import Job
from secateur.report.page.chart import COLOURS, Chart, Column, Key, hover, mark, new_figure, to_item
from secateur.report.page.weights import LayerLook


def histogram_chart(look: LayerLook, number: int, job: Job | None) -> Chart:
    """Draw the histogram of a layer's weights before and after the cut, with its thresholds and where the cut falls."""
    layer, edges = look.layer, look.edges
    plot = new_figure("weight", "weights, log scale", y_axis_type="log", height=240)
    columns: dict[str, Column] = {"from": edges[:-1].tolist(), "to": edges[1:].tolist()}
    bars, legend = [], []
    forms = (("before the cut", look.before, COLOURS[-1], 0.55), ("after", look.after, COLOURS[0], 0.85))
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
        legend.append(Key(f"threshold ±{layer.threshold:.3g}", COLOURS[-1], "dashed"))
    cut = job.methods[0].cut_magnitudes(layer.thresholds) if job and layer.thresholds else ()
    if cut:
        mean = sum(cut) / len(cut)
        for sign in (-1, 1):
            mark(plot, sign * mean, "dotted", COLOURS[1])
        columns["cut"] = [mean] + [None] * (len(edges) - 2)
        legend.append(Key(f"cut below ±{mean:.3g}", COLOURS[1], "dotted"))
    tips = [("weight", "@left{0.000} … @right{0.000}")] + [(name, f"@{{{name}}}{{0,0}}") for name, *_ in shown]
    hover(plot, tips, [bars[0]], mode="vline")
    words = f"Histogram of the {layer.weights:,} weights of {layer.name}, from {edges[0]:.3g} to {edges[-1]:.3g}"
    if layer.thresholds:
        several = f", {len(layer.thresholds)} thresholds of mean" if len(layer.thresholds) > 1 else ", threshold"
        words += f"{several} {layer.threshold:.4f}"
    if cut:
        words += f", cut below {mean:.4f}"
    if look.after is not None:
        words += f"; {layer.kept:,} are left"
    return Chart(f"histogram-{number}", layer.name, words + ".", to_item(plot), columns, tuple(legend))


def _mark_threshold(plot: figure, sign: int, thresholds: Sequence[float]) -> None:
    mean = sign * sum(thresholds) / len(thresholds)
    mark(plot, mean)
    if len(thresholds) > 1:
        ends = sorted((sign * min(thresholds), sign * max(thresholds)))
        plot.add_layout(
            BoxAnnotation(left=ends[0], right=ends[1], fill_alpha=0.15, fill_color=COLOURS[0], line_color=None)
        )
