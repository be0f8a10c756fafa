"""The width of every layer before and after pruning, and the diagram of it."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from secateur.report.page.run import Layer, Run
from secateur.report.page.stored import StoredTensors, open_stored

_MOST_ROWS = 40
_MOST_LARGE_ROWS = 12
_LONGEST_NAME = 24  # that fits next to the numbers on a phone


@dataclass(frozen=True)
class Width:
    """The outputs of a layer, or the inputs of the network: how many there are, and how many are still used.

    An output is used if any weight that leads to it is kept, an input if any weight reads it.
    """

    name: str
    before: int
    after: int | None  # None: not known before the cut
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A row of the diagram: two bars around the middle, in percent of the drawing's width."""

    width: Width
    top: int  # pixels
    before: float
    after: float


@dataclass(frozen=True)
class Diagram:
    """The layers of a network from top to bottom, as bars as wide as their widths."""

    bars: tuple[Bar, ...]
    step: int  # pixels from a row to the next
    alternative: str
    note: str

    @property
    def height(self) -> int:
        """The height of the drawing in pixels."""
        return self.step * len(self.bars)

    @property
    def flow(self) -> str:
        """The outline of what joins the bars of the dense network, in a drawing 100 wide."""
        left = [(50 - bar.before / 2, bar.top) for bar in self.bars]
        right = [(50 + bar.before / 2, bar.top) for bar in reversed(self.bars)]
        return " ".join(f"{x:.2f},{y}" for x, y in (*left, *right))


def diagram(run: Run) -> Diagram | None:
    """Return the diagram of a run's network; None if no layer has a matrix."""
    found = widths(run)
    if not found:
        return None
    shown = found[:_MOST_ROWS]
    step = 46 if len(shown) <= _MOST_LARGE_ROWS else 34
    # The square root: a layer of 10 outputs stays visible next to one of 4096.
    most = math.sqrt(max(width.before for width in shown))
    bars = [
        Bar(
            width,
            number * step + 24,
            max(1.5, 100 * math.sqrt(width.before) / most),
            0.0 if not width.after else max(1.0, 100 * math.sqrt(width.after) / most),
        )
        for number, width in enumerate(shown)
    ]
    words = "; ".join(f"{width.name}: {in_numbers(width)}" for width in shown)
    left_out = f" The first {len(shown)} of {len(found)} layers." if len(found) > len(shown) else ""
    return Diagram(tuple(bars), step, f"Widths of the layers, from input to output. {words}.", left_out.strip())


def in_numbers(width: Width) -> str:
    """Write a width before and after."""
    return f"{width.before:,}" if width.after is None else f"{width.before:,} → {width.after:,}"


def widths(run: Run) -> list[Width]:
    """Return the inputs of the first layer, and the outputs of every layer that has a matrix of weights."""
    layers = [layer for layer in run.layers if len(layer.shape) >= 2 and layer.weights]
    with ExitStack() as files:
        tensors = open_stored(run.directory.model, files, [])
        try:
            return _widths(layers, tensors)
        except (RuntimeError, OSError):  # the file is being replaced, or damaged: `look_at` says so
            return _widths(layers, None)


def _widths(layers: list[Layer], tensors: StoredTensors | None) -> list[Width]:
    found: list[Width] = []
    for layer in layers:
        readable = tensors if tensors is not None and tensors.has(layer) else None
        if not found:
            found.append(_inputs(layer, readable))
        found.append(_outputs(layer, readable))
    return found


def _inputs(layer: Layer, tensors: StoredTensors | None) -> Width:
    channels = layer.shape[1]
    if tensors is None:
        return Width("input", channels, None)
    used = torch.zeros(channels, dtype=torch.bool)
    for piece in tensors.pieces(layer):
        used |= (piece != 0).reshape(len(piece), channels, -1).any(dim=2).any(dim=0)
    return Width("input", channels, int(used.sum()))


def _outputs(layer: Layer, tensors: StoredTensors | None) -> Width:
    name = layer.name.removesuffix(".weight")
    name = name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
    kept = f"{100 * layer.kept / layer.weights:.3g} % kept"
    if tensors is None:
        return Width(name, layer.shape[0], None, kept)
    used = sum(int((piece != 0).any(dim=1).sum()) for piece in tensors.pieces(layer))
    return Width(name, layer.shape[0], used, kept)
