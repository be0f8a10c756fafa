"""Pictures of the paper's figures, drawn from their published numbers; the same numbers give the same bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.atomic import write_atomically
from secateur.experiments.studies.gathering import GatheringStudy, Views, gathering

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart without colour vision too, and in grey.
BLUE, ORANGE, GREY, BLACK = "#0b5394", "#c55a11", "#8c8c8c", "#333333"

_WIDEST_WEIGHT = 0.6  # what figure 3 shows; without decay a few weights are larger

# Without a fixed salt matplotlib names the parts of a drawing at random. Text stays text, not outlines.
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "secateur",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify_threshold": 0.1,
}


def draw(figure: str, content: Views | GatheringStudy, folder: Path) -> list[Path]:
    """Draw a figure from its numbers as SVG and PNG into `folder` and return their paths."""

    def paint(drawing: Figure) -> None:
        if isinstance(content, Views):
            _paint_views(drawing, content)
        else:
            _paint_weights(drawing, content)

    return draw_by(paint, figure, folder)


def draw_by(
    paint: Callable[[Figure], None], name: str, folder: Path, *, size: tuple[float, float] = (6.4, 5.2)
) -> list[Path]:
    """Let a function paint an empty figure, `size` inches large, and write it as SVG and PNG."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'secateur[report]'") from error

    with matplotlib.rc_context(_SETTINGS):
        drawing = Figure(figsize=size, layout="constrained")
        paint(drawing)
        return [
            _save(drawing, folder / f"{name}.svg", {"Date": None, "Creator": None}),
            _save(drawing, folder / f"{name}.png", {"Software": None}),
        ]


def _save(drawing: Figure, path: Path, metadata: dict[str, Any]) -> Path:
    picture = io.BytesIO()
    drawing.savefig(picture, format=path.suffix[1:], metadata=metadata, dpi=150)
    write_atomically(path, picture.getvalue())
    return path


def _paint_views(drawing: Figure, content: Views) -> None:
    symbol = "θ̄" if content.alpha is None else f"θ^{content.alpha:g}"
    fixed = f"{content.fixed:g}"
    for axes, view in zip(drawing.subplots(2, 1), content.views, strict=True):
        name = f"{symbol}(x; {fixed})" if view.of == "x" else f"{symbol}({fixed}; t)"
        _line(axes, view.at, view.value, color=BLUE, label=name)
        slope = f"its derivative in {view.of}{' almost everywhere' if content.alpha is None else ''}"
        _line(axes, view.at, view.slope, color=ORANGE, linestyle="--", label=slope)
        axes.set_xlabel(view.of)
        axes.axhline(0, color=GREY, linewidth=0.6)
        _legend_above(axes)


def _legend_above(axes: Axes) -> None:
    axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


def _line(axes: Axes, at: Sequence[float], value: Sequence[float], **style: Any) -> None:
    """Draw a line that is interrupted where the function jumps."""
    xs, ys = [at[0]], [value[0]]
    for x, y in zip(at[1:], value[1:], strict=True):
        if abs(y - ys[-1]) > 0.5:  # no slope of these functions is that steep between two points
            xs.append(x)
            ys.append(math.nan)
        xs.append(x)
        ys.append(y)
    axes.plot(xs, ys, linewidth=1.4, **style)


def _paint_weights(drawing: Figure, content: GatheringStudy) -> None:
    width, networks = content.bin, content.networks
    gathering(content)  # raises an error if there is no pair to show
    seed = networks[0].seed
    shown = [entry for entry in networks if entry.seed == seed]
    bins, seen = len(shown[0].survivors), round(_WIDEST_WEIGHT / width)
    middle = slice(bins // 2 - seen, bins // 2 + seen)
    edges = [width * i for i in range(-seen, seen + 1)]
    for axes, entry in zip(drawing.subplots(len(shown), 1, sharex=True), shown, strict=True):
        t, kept = entry.threshold, entry.kept
        [cut_at] = content.job.methods[0].cut_magnitudes((t,))
        decay = f"λ_wd = {entry.lambda_wd:g}" if entry.lambda_wd else "without weight decay"
        cut = entry.weights - kept
        axes.stairs(entry.cut[middle], edges, fill=True, color="#d9d9d9", label=f"{cut:,} cut")
        axes.stairs(entry.survivors[middle], edges, fill=True, color=BLUE, label=f"{kept:,} kept")
        for place in (-t, t):
            axes.axvline(place, color=ORANGE, linewidth=1.4, label=f"threshold ±{t:.3f}" if place > 0 else None)
        for place in (-cut_at, cut_at):
            axes.axvline(
                place, color=BLACK, linewidth=1.2, linestyle=":", label="cut, |θ(w)| < γ" if place > 0 else None
            )
        axes.set_ylim(0, 1.15 * max(entry.survivors))  # cuts off the bars of the many cut weights near zero
        axes.set_ylabel("weights")
        near = f"{100 * entry.near:.0f} % of the weights kept within 10 % of the threshold"
        axes.set_title(f"{decay}: {near}", loc="left", fontsize=9, pad=20)
        _legend_above(axes)
    axes.set_xlim(-_WIDEST_WEIGHT, _WIDEST_WEIGHT)
    axes.set_xlabel(f"raw weight of {content.layer.removesuffix('.weight')}, seed {seed}")
