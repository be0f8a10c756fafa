"""How a convolution is divided for the kernels: into slabs of its image, bands and tiles of its result.

The sizes are chosen by an estimate of cycles and by what fits the caches; native/sparse_sums.h has the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from secateur.run.kernels.kernel import Kernel
from secateur.run.sparse_layer import SparseLayer
from secateur.run.sparse_weight import Array

L1_BYTES = 24 << 10  # what a block of the input may take of the first level of the cache
# What a slab should take of the second level of the cache, with room for what is read and written at the same time, and
# what it may take. Of 1.25 MB larger shares gain nothing: convolutions at 5 % take up to 10 % longer.
_BAND_BYTES, _MOST_BAND_BYTES = 192 << 10, 512 << 10
# From which size on only some channels stand in a slab, and how much of them then at most, because sums that wait for
# the next slab take room, too.
_MOST_SLAB_BYTES, _SLAB_BYTES = 256 << 10, 152 << 10
# Weights that a row should have on average: with fewer, loading its sums costs more. By the vectors of a panel.
WEIGHTS_IN_BLOCK = {0: 16, 1: 40, 2: 40, 4: 20, 8: 12}
# What a row of weights takes in addition to them, each weight with a vector of eight pixels, packing a pixel, and
# moving sums by one pixel: for each vector of them, and for the loop that ends there.
_ROW_CYCLES, _SUM_CYCLES, _PACK_CYCLES, _TURN_CYCLES, _LOOP_CYCLES = 24, 0.8, 0.6, 0.5, 12
# Of pixels, that a kernel sums side by side: along rows, in a tile, and at most in one row of a tile.
_VECTORS, _TILE_VECTORS, _LONGEST_TILE = 12, 14, 7
_MOST_TURNS = 6  # wider filters gain nothing
_WASTE = 1.12  # how many times as many vectors of pixels tiles may take, compared with runs along the rows
_FILTERS = 256  # whose sums fit the second level of the cache
_LEAST_FILTERS = 32  # that a thread should make of a run of pixels


def taps(layer: SparseLayer) -> tuple[Array, Array, Array]:
    """Return the channel of each weight of a convolution, and how far down and right of the corner it looks."""
    assert layer.window is not None
    row, within = layer.weight.rows_and_columns()
    high, wide = layer.kernel
    filters = max(layer.weight.shape[0] // layer.window.groups, 1)
    channel = within // (high * wide) + row // filters * layer.weight.shape[1]
    down = within // wide % high * layer.window.dilation[0]
    right = within % wide * layer.window.dilation[1]
    return channel, down, right


def filters_in_segment(filters: int, areas: int, threads: int) -> int:
    """Return how many filters are made of a run of pixels before the next is read.

    The fewer, the more often it is read: with 256 instead of 32, 1×1 with 1,024 channels takes 18 % less, 3×3 with
    stride 2 5 to 9 %. Threads share areas and segments: there are two pieces for each, if filters are not too few.
    """
    shares = math.ceil(2 * threads / areas) if threads > 1 else 1
    return max(min(math.ceil(filters / shares), _FILTERS), min(_LEAST_FILTERS, filters), 1)


def blocks_in_slab(blocks: int, slab_bytes: int) -> int:
    """Return how many of a slab's blocks of channels are made at a time.

    A slab that would fill the second level of the cache is made in parts: 3×3 filters with a stride of two take 10 to
    13 % less, 512 × 14 × 14 9 %.
    """
    return max(blocks * _SLAB_BYTES // slab_bytes, 1) if slab_bytes > _MOST_SLAB_BYTES else blocks


def plane_floats(floats: int, lanes: int) -> int:
    """Return how far apart planes stand: as vectors do, but not so that few places in the cache have to hold all."""
    floats = math.ceil(floats / lanes) * lanes
    return floats if floats % 128 else floats + 16


@dataclass(frozen=True)
class Frame:
    """How the result of a convolution is made: `band` rows and `span` columns of it from one slab.

    Vectors of pixels are summed side by side in tiles, `tile` of them in each of `tall` rows, or along the rows if that
    is 0. `pitch` is how far apart rows of the slab stand, `spill` how far windows look past the end of the last, and
    `turns` how often sums are moved by one pixel. If it does not pack, the image is read where it stands.
    """

    packs: bool
    band: int
    span: int
    pitch: int
    spill: int = 0
    tile: int = 0
    tall: int = 1
    turns: int = 0

    def areas(self, out: tuple[int, int], lanes: int) -> int:
        """Return how many slabs there are; what is read where it stands is cut into eight bands if it is large."""
        if not self.packs:
            return 8 if out[0] * self.pitch >= 8 * _VECTORS * lanes else 1
        return math.ceil(out[0] / self.band) * math.ceil(out[1] / self.span)

    def columns(self, image: Image) -> Array:
        """Return how many columns of each phase are read: in a tile none behind the last window."""
        if self.tile:
            return self.span + image.reach
        # Zeros behind a row may serve the next one.
        return np.full(len(image.phases), self.pitch)

    def for_threads(self, out: tuple[int, int], threads: int, lanes: int) -> Frame:
        """Return lower bands, if there are fewer slabs than threads: those that share one would each pack it.

        They are halves, of whole tiles, so that every sum is taken in the same order.
        """
        frame = self
        while frame.tile and frame.areas(out, lanes) < threads and frame.band % (2 * frame.tall) == 0:
            half = frame.band // 2
            if 0 < out[0] % half < frame.tall <= out[0] % frame.band:
                break  # the last band would be lower than a tile
            frame = replace(frame, band=half)
        return frame


@dataclass(frozen=True)
class Image:
    """What a convolution reads: the phases of its padded image, and where in them each weight looks.

    With a stride s the padded image is split into s × s phases, in each of which neighbours were s apart.
    """

    layer: SparseLayer
    size: tuple[int, int]
    out: tuple[int, int]
    phases: Array  # (y, x) of those that a weight reads: a stride of two over single pixels needs one of four
    phase: Array  # of each weight, its number
    channel: Array
    below: Array  # and how many rows and columns from the corner of a window it looks there
    aside: Array
    rows: int  # of phases, that the windows of one pixel look at
    reach: Array  # how far aside weights look, in each phase

    @classmethod
    def of(cls, layer: SparseLayer, sample: tuple[int, ...]) -> Image:
        """Split what a layer reads of a sample."""
        assert layer.window is not None
        stride_y, stride_x = layer.window.stride
        channel, down, right = taps(layer)
        key = down % stride_y * stride_x + right % stride_x
        used = np.flatnonzero(np.bincount(key, minlength=stride_y * stride_x))
        number = np.zeros(stride_y * stride_x, np.int64)
        number[used] = np.arange(len(used))
        aside = right // stride_x
        return cls(
            layer,
            (sample[1], sample[2]),
            layer.window.out((sample[1], sample[2]), layer.kernel),
            np.stack([used // stride_x, used % stride_x], 1),
            number[key],
            channel,
            down // stride_y,
            aside,
            len(np.unique(down * stride_x + right % stride_x)),
            np.array([int(aside[key == one].max()) for one in used], np.int64),
        )

    @cached_property
    def halo(self) -> int:
        """How many rows a band has in common with the next."""
        return int(self.below.max(initial=0))

    @cached_property
    def farthest(self) -> int:
        """How far aside any weight looks."""
        return int(self.aside.max(initial=0))

    @property
    def is_whole(self) -> bool:
        """Whether it can be read where it stands: nothing is to be padded or split."""
        assert self.layer.window is not None
        return self.layer.window.stride == (1, 1) and self.layer.window.padded(self.size) == self.size

    def run_bytes(self, frame: Frame, lanes: int) -> int:
        """Return a channel's part of what is summed side by side.

        That is a run of pixels as often as weights look at other rows or phases. Of a tile they look at rows that it
        has itself.
        """
        rows = self.rows + (frame.tall - 1) * len(self.phases)
        return ((frame.tile or _VECTORS) * lanes + self.farthest) * max(rows, 1) * 4

    def block(self, frame: Frame, kernel: Kernel, lanes: int) -> int:
        """Return how many channels are read before sums wait: those that fit the first level of the cache."""
        layer = self.layer
        fitting = L1_BYTES // self.run_bytes(frame, lanes)
        wanted = math.ceil(WEIGHTS_IN_BLOCK[0] / max(layer.weight.density * math.prod(layer.kernel), 1e-6))
        blocks = math.ceil(layer.inputs / (max(fitting, wanted, 1) * kernel.spread))
        return max(math.ceil(layer.inputs / max(blocks, 1)), 1)


def choose_frame(image: Image, kernel: Kernel, lanes: int, threads: int) -> Frame:
    """Return how to make the result of a convolution for it to take the fewest cycles."""
    frames = list(_turned(image, lanes)) if kernel.aligned else []
    if not frames and image.is_whole:
        in_place = Frame(False, image.out[0], image.out[1], image.size[1])
        length = (image.out[0] - 1) * image.size[1] + image.out[1]
        # Planes of 14 × 14 pixels begin anywhere; and a vector of few pixels would be read past their end.
        moves = kernel.aligned and math.prod(image.size) % lanes
        if length >= lanes and not moves:
            return in_place
        frames = [replace(in_place, packs=True)]
    frames = frames or list(_straight(image, lanes))
    ways = [replace(frame, band=band) for frame in frames for band in _bands(image, frame)]
    found = min(ways, key=lambda frame: _cycles(image, frame, kernel, lanes))
    return found.for_threads(image.out, threads, lanes)


def aligns(layer: SparseLayer, sample: tuple[int, ...], lanes: int) -> bool:
    """Return whether an `aligned` kernel reads such samples in another way than others."""
    if layer.window is None:
        return False
    image = Image.of(layer, layer.image(sample))
    return next(_turned(image, lanes), None) is not None or (image.is_whole and math.prod(image.size) % lanes > 0)


def _bands(image: Image, frame: Frame) -> range:
    """Return how many rows of the result may be made at once: what they read must fit the second level of the cache."""
    planes = len(image.phases) * image.layer.inputs
    fitting = _MOST_BAND_BYTES // (max(planes * frame.pitch, 1) * 4) - image.halo
    least = frame.tall if frame.turns else 1
    return range(least, max(min(fitting, image.out[0]), least) + 1)


def _straight(image: Image, lanes: int) -> Iterator[Frame]:
    """Yield the ways in which weights look aside themselves.

    Rows of tiles begin as vectors do: most loads then keep to one line of the cache, and results go straight to their
    places. But the last vector of 20 pixels repeats four. Where that is too much there are no tiles, and pixels are
    counted along the rows. Windows then look at the zeros on the left of the next row instead of zeros on the right: of
    12 × 12 pixels with a border of one, 13 columns are computed for each row instead of 14.

    A tile of four vectors and three rows may become two, of two vectors and seven rows. Where rows are so long that a
    few of them fill the cache, slabs may be for strips, as wide as a tile.
    """
    assert image.layer.window is not None
    (height, width), stride, pad = image.out, image.layer.window.stride, image.layer.window.padding[1]
    pitch = width
    for (_, phase), reach in zip(image.phases, image.reach, strict=True):
        before = math.ceil(max(pad - int(phase), 0) / stride[1])
        pixels = math.ceil((image.size[1] + pad - int(phase)) / stride[1])
        pitch = max(pitch, width + int(reach) - before, min(pixels, width + int(reach)))
    vectors = math.ceil(width / lanes)
    across = math.ceil(vectors / _LONGEST_TILE)
    tile = math.ceil(vectors / across)
    if tile == 1 or pitch == width or tile * across * lanes > _WASTE * pitch:
        yield Frame(True, height, width, pitch, max(width + image.farthest - pitch, 0))
        return
    for columns in (4, 2) if tile == 4 else (tile,):
        for tall in _tile_rows(columns, lanes):
            tiles = Frame(True, height, width, math.ceil((width + image.farthest) / lanes) * lanes, 0, columns, tall)
            yield tiles
            if columns == _LONGEST_TILE < vectors and stride == (1, 1):
                span = columns * lanes
                yield replace(tiles, span=span, pitch=math.ceil((span + image.farthest) / lanes) * lanes)


def _tile_rows(columns: int, lanes: int) -> tuple[int, ...]:
    """Return how many rows a tile of so many vectors each can have: with 16 lanes go twice as many registers."""
    vectors = (_TILE_VECTORS, 2 * _TILE_VECTORS) if lanes == 16 else (_TILE_VECTORS,)
    return tuple(most // max(columns, 2) for most in vectors)


def _turned(image: Image, lanes: int) -> Iterator[Frame]:
    """Yield the ways in which sums move instead of loads: in strips of one tile each, whose last pixels are lost."""
    (height, width), turns = image.out, image.farthest
    if not 1 <= turns <= _MOST_TURNS:
        return
    for columns in range(turns // lanes + 1, _LONGEST_TILE + 1):
        strips = math.ceil(width / (columns * lanes - turns))
        span = math.ceil(width / strips)
        # As many vectors as the pixels need that are kept and lost; and all but the last are kept as a whole.
        if math.ceil((span + turns) / lanes) != columns or span < (columns - 1) * lanes:
            continue
        for tall in _tile_rows(columns, lanes):
            if tall <= height:
                yield Frame(True, height, span, columns * lanes, 0, columns, tall, turns)


def _cycles(image: Image, frame: Frame, kernel: Kernel, lanes: int) -> float:
    """Estimate what all of a result takes.

    A slab should fit the second level of the cache with what is read and written. What `halo` rows of it have in
    common with the next are packed twice; and the pixels of a band should fill tiles, or runs of vectors, the last
    band's too.
    """
    layer = image.layer
    planes = len(image.phases) * layer.inputs
    rows = layer.weight.shape[0] * math.ceil(layer.inputs / image.block(frame, kernel, lanes))
    weights = layer.weight.count / max(rows, 1)  # of each row, in each block

    def of_band(band: int) -> float:
        if frame.tile:
            band = max(band, frame.tall) if frame.turns else band
            tall = frame.tall if band >= frame.tall else 1
            runs = math.ceil(band / tall) * math.ceil((frame.span + frame.turns) / (lanes * frame.tile))
            vectors = runs * tall * frame.tile
        else:
            vectors = math.ceil(((band - 1) * frame.pitch + image.out[1]) / lanes)
            runs = math.ceil(vectors / _VECTORS)
        turning = frame.turns * (_TURN_CYCLES * vectors + _LOOP_CYCLES * runs)
        summing = runs * (_ROW_CYCLES + weights) + _SUM_CYCLES * lanes / 8 * weights * vectors + turning
        packed = planes * (band + image.halo) * frame.pitch
        crowded = 1.05 if packed * 4 > _BAND_BYTES else 1.0
        return crowded * rows * summing + _PACK_CYCLES * packed

    bands, rest = divmod(image.out[0], frame.band)
    column = bands * of_band(frame.band) + (of_band(rest) if rest else 0)
    return column * math.ceil(image.out[1] / frame.span)
