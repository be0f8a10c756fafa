"""What weights look like: histograms before and after the cut, the weights kept as an image, the first filters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from secateur import networks
from secateur.report.page.gather import first_line
from secateur.report.page.pictures import Picture, as_picture
from secateur.report.page.run import Layer, Run
from secateur.report.page.stored import StoredTensors, largest, open_stored

_BINS = 121  # odd: zero lies in the middle of one
_MOST_LAYERS = 8  # shown, the largest ones
_MOST_FILTERS = 48
_LARGEST_FILTER = 1 << 16  # elements
_KEPT, _NEGATIVE, _POSITIVE = (11, 122, 200), (11, 122, 200), (213, 94, 0)


@dataclass(frozen=True)
class LayerLook:
    """Histograms of a layer's weights, before the cut (all) and after it (those not zero), and which are kept."""

    layer: Layer
    edges: npt.NDArray[np.float64]
    before: npt.NDArray[np.int64] | None
    after: npt.NDArray[np.int64] | None
    pattern: Picture | None


@dataclass(frozen=True)
class Look:
    """What is shown of a run's weights, and what could not be read."""

    layers: tuple[LayerLook, ...]
    left_out: int
    filters: tuple[Picture, ...]
    problems: tuple[str, ...]


def look_at(run: Run, *, most_layers: int = _MOST_LAYERS) -> Look:
    """Read the weights of a run: before the cut from a checkpoint, after it from the finished model."""
    problems: list[str] = []
    chosen = sorted(run.layers, key=lambda layer: -layer.weights)[:most_layers]
    # On a page of many layers each image is smaller.
    size = (320, 800) if len(chosen) <= 4 else (200, 400)
    looks, filters = [], []
    with ExitStack() as files:
        before = open_stored(run.directory.journal(_stage_before_cut(run)).checkpoint, files, problems)
        after = open_stored(run.directory.model, files, problems)
        try:
            for layer in (layer for layer in run.layers if layer in chosen and layer.weights):
                look = _look_at_layer(layer, before, after, size)
                if look is not None:
                    looks.append(look)
            filters = _filters(run, before, after)
        except (RuntimeError, ValueError, OSError) as error:
            problems.append(f"weights could not be read: {first_line(error)}")
    return Look(tuple(looks), len(run.layers) - len(chosen), tuple(filters), tuple(problems))


def _stage_before_cut(run: Run) -> str:
    """Return the name of the last stage before a cut; if a run has none, of its first stage."""
    trained = [epoch.stage for epoch in run.history if epoch.phase == "train"]
    stages = [epoch.stage for epoch in run.history]
    return trained[-1] if trained else stages[0] if stages else "train"


def _look_at_layer(
    layer: Layer, before: StoredTensors | None, after: StoredTensors | None, size: tuple[int, int]
) -> LayerLook | None:
    sources = [source if source is not None and source.has(layer) else None for source in (before, after)]
    most = max((largest(piece) for source in sources if source for piece in source.pieces(layer)), default=0.0)
    if not most:
        return None
    return LayerLook(
        layer,
        np.linspace(-most, most, _BINS + 1),
        _histogram(sources[0].pieces(layer), most) if sources[0] else None,
        _histogram((piece[piece != 0] for piece in sources[1].pieces(layer)), most) if sources[1] else None,
        _pattern(sources[1], layer, size) if sources[1] else None,
    )


def _histogram(pieces: Iterable[Tensor], most: float) -> npt.NDArray[np.int64]:
    total = torch.zeros(_BINS, dtype=torch.float64)
    for piece in pieces:
        total += torch.histc(piece, _BINS, -most, most)
    return total.to(torch.int64).numpy()


def _pattern(source: StoredTensors, layer: Layer, size: tuple[int, int]) -> Picture:
    """Draw which weights are kept, a pixel for a block of them, more opaque where more are kept."""
    rows, columns = layer.shape[0], layer.weights // layer.shape[0]
    block = (math.ceil(rows / size[0]), math.ceil(columns / size[1]))
    parts = [
        functional.avg_pool2d((piece != 0).to(torch.float32)[None], block, ceil_mode=True)[0]
        for piece in source.pieces(layer, block[0])
    ]
    share = torch.cat(parts)
    # The square root makes nearly empty blocks visible; sixteen steps keep the image small.
    opacity = ((share.sqrt() * 15).ceil() * 17).to(torch.uint8).numpy()
    pixel = "one weight" if block == (1, 1) else f"a block of {block[0]} × {block[1]} weights"
    return as_picture(
        _tinted(opacity, _KEPT),
        caption=f"{layer.name}: {rows:,} rows × {columns:,} columns",
        alternative=f"Weights kept in {layer.name}: {layer.kept:,} of {layer.weights:,}; a pixel is {pixel}, "
        "more opaque where more are kept.",
    )


def _filters(run: Run, before: StoredTensors | None, after: StoredTensors | None) -> list[Picture]:
    """Draw the first layer's units as images, and which input pixels they still read."""
    layer = next((layer for layer in run.layers if len(layer.shape) >= 2), None)
    source = after or before
    if layer is None or source is None or not source.has(layer):
        return []
    shape = _filter_shape(run, layer, source.metadata)
    if shape is None:
        return []
    kept = torch.cat([piece.count_nonzero(dim=1) for piece in source.pieces(layer)])
    rows = kept.argsort(descending=True, stable=True)[:_MOST_FILTERS].tolist()
    what = f"the {len(rows)} fullest of {layer.shape[0]:,}" if len(rows) < layer.shape[0] else f"all {layer.shape[0]}"
    found = []
    for name, tensors in (("before the cut", before), ("after", after)):
        if tensors is not None and tensors.has(layer):
            images = torch.cat([tensors.rows(layer, row, row + 1) for row in rows]).reshape(len(rows), *shape)
            found.append(
                as_picture(
                    _tiles(images.numpy()),
                    caption=f"Filters of {layer.name} {name}, {what}",
                    alternative=f"Filters of {layer.name} {name}, {what}: "
                    + ("colours as in the image." if shape[0] == 3 else "positive weights orange, negative blue."),
                )
            )
    if after is not None and after.has(layer) and len(layer.shape) == 2:
        used = sum((piece != 0).sum(dim=0) for piece in after.pieces(layer))
        assert isinstance(used, Tensor)
        used = used.reshape(shape).sum(dim=0)
        opacity = (used / max(1, int(used.max())) * 255).to(torch.uint8).numpy()
        found.append(
            as_picture(
                _tinted(opacity, _KEPT),
                caption=f"Pixels that {layer.name} still reads",
                alternative=f"Weights kept per input pixel: at most {int(used.max()):,}; "
                f"{int((used == 0).sum()):,} of {used.numel():,} pixels are not read at all.",
            )
        )
    return found


def _filter_shape(run: Run, layer: Layer, header: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return channels, height and width of what a unit of the first layer reads; None if that is not an image."""
    if layer.weights // max(1, layer.shape[0]) > _LARGEST_FILTER:
        return None
    if len(layer.shape) == 4:
        return layer.shape[1], layer.shape[2], layer.shape[3]
    usual = getattr(networks.NETWORKS.get(run.network), "input_shape", ())
    said = header.get("input_shape", "").split()
    shape = [int(side) for side in said] if all(side.isdecimal() for side in said) and said else list(usual)
    if len(layer.shape) == 2 and len(shape) == 3 and math.prod(shape) == layer.shape[1]:
        return shape[0], shape[1], shape[2]
    return None


def _tiles(images: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Arrange filters (filters, channels, height, width) in rows, with a transparent pixel between them."""
    number, channels, height, width = images.shape
    across = min(number, max(4, min(12, 360 // (width + 1))))
    down = math.ceil(number / across)
    sheet = np.zeros((down * (height + 1) - 1, across * (width + 1) - 1, 4), np.uint8)
    most = max(float(np.abs(images).max()), 1e-12)
    for index, image in enumerate(images):
        top, left = index // across * (height + 1), index % across * (width + 1)
        if channels == 3:
            tile = np.concatenate([127.5 + 127.5 * image / most, np.full((1, height, width), 255)])
            tile = tile.transpose(1, 2, 0)
        else:
            mean = image.mean(axis=0)
            tile = np.where(mean[..., None] > 0, (*_POSITIVE, 0), (*_NEGATIVE, 0)).astype(np.float32)
            tile[..., 3] = 255 * np.sqrt(np.abs(mean) / most)
        sheet[top : top + height, left : left + width] = tile
    return sheet


def _tinted(opacity: npt.NDArray[np.uint8], colour: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    pixels = np.zeros((*opacity.shape, 4), np.uint8)
    pixels[..., 3] = opacity
    pixels[opacity > 0, :3] = colour
    return pixels
