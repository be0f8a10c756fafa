"""A chart of the report page, drawn by Bokeh in the browser, with its data to download.

Colours that change with the theme (text, axes, grids) are set by the page's script. Those of the data are chosen to
have a contrast of at least 3 : 1 with a white and with a dark page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bokeh.embed import json_item
from bokeh.models import FixedTicker, HoverTool, NumeralTickFormatter
from bokeh.models.annotations import Label, Span
from bokeh.plotting import figure

COLOURS = ("#0b7ac8", "#d55e00", "#00936b", "#a663cc", "#b07d00", "#c2477f", "#0e8f9e", "#7d8590")
_DASHES = ("solid", "dashed", "dotted", "dotdash")
MOST_NAMES = 8  # that a legend or a tooltip lists
FONT = "system-ui, sans-serif"

Column: TypeAlias = Sequence[float | int | str | None]


@dataclass(frozen=True)
class Key:
    """A line of a legend. The page writes it, because Bokeh's legend does not wrap on a phone."""

    name: str
    colour: str
    mark: str  # solid, dashed, dotted or dotdash line; box, dot, ring or diamond


@dataclass(frozen=True)
class Chart:
    """A chart: what the browser draws, the same in words for screen readers, and the numbers."""

    name: str
    title: str
    alternative: str
    item: Mapping[str, Any]
    columns: Mapping[str, Column]
    legend: tuple[Key, ...] = ()
    note: str = ""


def style(number: int) -> tuple[str, str]:
    """Return colour and dash of a line; every pair is used once before any is repeated."""
    return COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]


def shortened(legend: Sequence[Key]) -> tuple[Key, ...]:
    """Leave out the legend of a single line, and of more lines than can be told apart: hovering names them."""
    return tuple(legend) if 1 < len(legend) <= len(COLOURS) * len(_DASHES) else ()


def mark(plot: figure, x: float, dash: str = "dashed", colour: str | None = None) -> None:
    """Draw a vertical line, in the page's own colour unless another is given."""
    line = Span(location=x, dimension="height", line_dash=dash, line_width=1.5, tags=[] if colour else ["ink"])
    if colour:
        line.line_color = colour
    plot.add_layout(line)


def write_note(plot: figure, x: float, text: str, *, align: Literal["left", "right"]) -> None:
    """Write a few words at the bottom of a chart."""
    plot.add_layout(
        Label(
            x=x,
            y=4,
            y_units="screen",
            text=text,
            text_align=align,
            text_baseline="bottom",
            text_font=FONT,
            text_font_size="12px",
            tags=["ink"],
        )
    )


def hover(plot: figure, rows: Sequence[tuple[str, str]], renderers: Sequence[Any], **options: Any) -> None:
    """Show rows of a name and a value at the pointer, in the page's colours: Bokeh's own have too little contrast."""
    names = [html.escape(name).replace("@", "&#64;").replace("$", "&#36;") for name, _ in rows]
    cells = "".join(
        f'<span style="color: var(--muted)">{name}</span><span>{value}</span>'
        for name, (_, value) in zip(names, rows, strict=True)
    )
    tips = f'<div style="display: grid; grid-template-columns: auto auto; gap: 0 0.8em">{cells}</div>'
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=tips, **options))


def new_figure(x: str, y: str, *, height: int = 280, **options: Any) -> figure:
    """Return an empty chart in the style of the page."""
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
            axis_label_text_font=FONT,
            axis_label_text_font_style="normal",
            axis_label_text_font_size="13px",
            major_label_text_font=FONT,
            major_label_text_font_size="12px",
            minor_tick_line_color=None,
        )
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[00000000]")
    plot.xgrid.grid_line_color = None
    return plot


def scaled_figure(x: str, y: str, values: Iterable[float]) -> figure:
    """Return an empty chart whose vertical axis is logarithmic if `values` are positive and span a factor of eight."""
    finite = [value for value in values if math.isfinite(value)]
    is_log = bool(finite) and min(finite) > 0 and max(finite) > 8 * min(finite)
    plot = new_figure(x, y, y_axis_type="log" if is_log else "linear")
    if is_log:
        plot.yaxis.ticker = FixedTicker(ticks=log_ticks(min(finite), max(finite)))
    return plot


def set_log_ticks(plot: figure, low: float, high: float) -> None:
    """Label a logarithmic x axis between two values with short numbers, such as 300, 20 k and 3 M."""
    ticks = log_ticks(low, high)
    plot.xaxis.ticker = FixedTicker(ticks=ticks)
    plot.xaxis.major_label_overrides = {tick: short_number(tick) for tick in ticks}


def short_number(value: float) -> str:
    """Write a number with the prefix k, M or G of its thousands."""
    for size, prefix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{prefix}"
    return f"{value:g}"


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis between two values, few enough for a phone and never a single one.

    Powers of ten, or these with one, two or four steps between them; round numbers where the axis is too short.
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            return inside
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = next(step * factor for factor in (5, 2, 1, 0.5) if high - low >= 3 * step * factor)
    multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [number * step for number in multiples if low <= number * step <= high]


def in_words(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """Describe lines by where they begin, end and are lowest."""
    parts = []
    for name, values in list(series.items())[:MOST_NAMES]:
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            continue
        parts.append(f"{name} from {finite[0]:.4g} to {finite[-1]:.4g}, lowest {min(finite):.4g}")
    more = f"; and {len(series) - MOST_NAMES} more" if len(series) > MOST_NAMES else ""
    return f"{title} against steps: {'; '.join(parts)}{more}."


def to_item(plot: figure) -> dict[str, Any]:
    """Return a chart as Bokeh's script reads it."""
    return dict(json_item(plot))
