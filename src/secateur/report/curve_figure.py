"""The picture of networks that are pruned to several ratios: error against size, next to published results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from secateur import literature
from secateur.experiments.studies.curve_summary import CURVES, Point, curve
from secateur.literature import Published
from secateur.report.figures import BLACK, BLUE, GREY, ORANGE, draw_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "curve"
_MARKS = "osD^vP*X"  # of publications, all in grey


def draw_curves(results: Path, folder: Path) -> list[Path]:
    """Draw the published points of every network that has literature, as SVG and PNG; nothing if there are none."""
    found = [(points, _known(network)) for network in CURVES if (points := curve(results, network))]
    shown = [(points, known) for points, known in found if known]
    if not shown:
        return []

    def paint(drawing: Figure) -> None:
        rows = drawing.subplots(len(shown), 2, squeeze=False, sharey="row")
        for (by_weights, by_bytes), (points, known) in zip(rows, shown, strict=True):
            _paint_weights(by_weights, points, known)
            _paint_bytes(by_bytes, points, known)

    return draw_by(paint, NAME, folder, size=(8.0, 3.2 * len(shown)))


def _known(network: str) -> tuple[Published, ...]:
    return literature.published(CURVES[network].full_width or network, CURVES[network].data)


def _paint_weights(axes: Axes, points: Sequence[Point], known: Sequence[Published]) -> None:
    first = points[0]
    error, spread = first.dense_error
    axes.errorbar([first.weights], [error], yerr=[_bar(spread)], fmt="s", color=BLACK, label="dense")
    rows = [(point.kept[0], *point.pruned_error) for point in points]
    kept, errors, bars = ([*column] for column in zip(*rows, strict=True))
    label = f"pruned, {_seeds(points)}"
    axes.errorbar(kept, errors, yerr=[*map(_bar, bars)], fmt="o-", color=BLUE, label=label)
    _paint_published(axes, [(each.method, each.kept, each.error) for each in known])
    axes.set_title(f"{first.network}, {CURVES[first.network].data}", loc="left", fontsize=9)
    axes.set_ylabel("error on test images, %")
    _finish(axes, "weights kept")


def _paint_bytes(axes: Axes, points: Sequence[Point], known: Sequence[Published]) -> None:
    sizes, errors, bars = (
        [*column] for column in zip(*((p.file_bytes[0], *p.file_error) for p in points), strict=True)
    )
    label = f"file, {_seeds(points)}"
    axes.errorbar(sizes, errors, yerr=[*map(_bar, bars)], fmt="o-", color=ORANGE, label=label)
    _paint_published(axes, [(each.method, each.bytes, each.error) for each in known])
    _finish(axes, "bytes of the whole file")


def _paint_published(axes: Axes, found: Sequence[tuple[str, float, float]]) -> None:
    shown = [each for each in found if math.isfinite(each[1]) and math.isfinite(each[2])]
    methods = list(dict.fromkeys(method for method, *_ in shown))
    for method, mark in zip(methods, _MARKS, strict=False):
        sizes, errors = zip(*((size, error) for name, size, error in shown if name == method), strict=True)
        axes.plot(sizes, errors, mark, color=GREY, fillstyle="none", label=f"{method}, published")


def _finish(axes: Axes, size: str) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{size}, log scale")
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    axes.legend(frameon=False, fontsize=7.5)


def _seeds(points: Sequence[Point]) -> str:
    most = max(point.seeds for point in points)
    return f"{most} seed{'s' if most > 1 else ''}"


def _bar(spread: float) -> float:
    return spread if math.isfinite(spread) else 0.0
