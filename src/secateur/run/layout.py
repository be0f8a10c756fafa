"""How sparse layers are laid out for the kernels: in which blocks, bands and tiles, and in which order of weights."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from secateur.run import kernels
from secateur.run.layers import Layer
from secateur.run.weights import Array, Packed, pack_columns, pack_offsets

_L1_BYTES = 24 << 10  # what a block of the input may take of the first level of the cache
# What a slab should take of the second level, with room for what is read and written beside it, and what it may take;
# from which size on only some channels stand in it, and how much of them then at most, because sums that wait for the
# next slab take room, too. Of 1.25 MB larger shares gain nothing: convolutions at 5 % take up to 10 % longer.
_BAND_BYTES, _MOST_BAND_BYTES = 192 << 10, 512 << 10
_MOST_SLAB_BYTES, _SLAB_BYTES = 256 << 10, 152 << 10
# That a row should have, on average: with fewer, its waiting sums cost more than they. In a panel by its vectors.
_WEIGHTS_IN_BLOCK = {0: 16, 1: 40, 2: 40, 4: 20, 8: 12}
# What a row of weights takes beside them, each of them with a vector of eight pixels, packing a pixel, and moving sums
# by one pixel: for each vector of them, and for the loop that ends there.
_ROW_CYCLES, _SUM_CYCLES, _PACK_CYCLES, _TURN_CYCLES, _LOOP_CYCLES = 24, 0.8, 0.6, 0.5, 12
# Of pixels, that a kernel sums side by side: along rows, in a tile, and at most in one row of a tile.
_VECTORS, _TILE_VECTORS, _LONGEST_TILE = 12, 14, 7
_MOST_TURNS = 6  # filters that look farther aside are not worth it
_WASTE = 1.12  # how many times as many vectors of pixels tiles may take, beside runs along the rows
# Of a block, and of weights: from which size on, and up to which density, rows are ordered by what they read.
_LEAST_REUSED_BYTES, _MOST_REUSED = 20 << 10, 0.2
_SEGMENT, _FILTERS = 512, 256  # rows, and filters, whose sums fit the second level
_LEAST_FILTERS = 32  # that a thread should make of a run of pixels


@dataclass(frozen=True)
class Kernel:
    """How a chain runs: sample by sample, or in panels of so many vector registers; and how large its blocks are.

    `spread` multiplies the number of columns or channels that a block would have by the size of the cache alone. With
    `shared`, layers of at most 255 distinct values read them from a table. With `aligned`, convolutions read pixels by
    whole lines of the cache: images are copied for it, and sums move instead of loads.
    """

    vectors: int = 0
    spread: int = 1
    shared: bool = False
    aligned: bool = False

    def __post_init__(self) -> None:
        if self.vectors not in (0, 1, 2, 4, 8):
            raise ValueError(f"a panel has 1, 2, 4 or 8 vectors, or there is none (0): got {self.vectors}")
        if not 1 <= self.spread <= 1 << 20:
            raise ValueError(f"spread must be between 1 and {1 << 20}, got {self.spread}")

    @property
    def name(self) -> str:
        """What it is called in tables."""
        way = f"panel {self.vectors * kernels.lanes()}" if self.vectors else "sample"
        marks = (f"×{self.spread}" if self.spread > 1 else "", "aligned" * self.aligned, "shared" * self.shared)
        return " ".join((way, *filter(None, marks)))


@dataclass(frozen=True)
class LaidOut:
    """A chain laid out for samples of one shape: addresses, what they point to, and the shape of the result."""

    address: int
    keep: tuple[object, ...]
    out: tuple[int, ...]
    nbytes: int


def lay_out(layers: Sequence[Layer], sample: tuple[int, ...], kernel: Kernel, lanes: int, threads: int) -> LaidOut:
    """Lay a chain out for samples of one shape, vectors of so many lanes, and so many threads for each sample."""
    steps, keep, nbytes = [], [], 0
    for layer in layers:
        phases = None
        if layer.window is None:
            packed, step = _linear_step(layer, kernel, lanes)
        elif kernel.vectors:
            packed, step = _panel_convolution(layer, layer.image(sample), kernel)
        else:
            packed, step, phases = _convolution(layer, layer.image(sample), kernel, lanes, threads)
        steps.append(step)
        keep += [packed, layer.bias, phases]
        nbytes += packed.nbytes + layer.bias.nbytes
        sample = layer.out_shape(sample)
    chain, memory = kernels.chain(steps, kernel.vectors)
    return LaidOut(ctypes.addressof(chain), (chain, memory, *keep), sample, nbytes)


def _linear_step(layer: Layer, kernel: Kernel, lanes: int) -> tuple[Packed, kernels.Step]:
    rows, columns = layer.weight.shape
    # The input is read in random order: what does not fit the first level of the cache is taken in parts.
    block = max(math.ceil(columns / max(math.ceil(columns * 4 / _L1_BYTES), 1)), 1)
    if kernel.vectors:
        fitting = _L1_BYTES // (4 * kernel.vectors * lanes)
        wanted = max(fitting, math.ceil(_WEIGHTS_IN_BLOCK[kernel.vectors] / max(layer.weight.density, 1e-6)))
        block = max(math.ceil(columns / math.ceil(columns / (wanted * kernel.spread))), 1) if columns else 1
    side = 1 if kernel.vectors else lanes
    packed = pack_columns(layer.weight, block, min(max(rows, 1), _SEGMENT), side, shared=kernel.shared)
    return packed, kernels.step(kernels.LINEAR, layer.activation, rows, columns, packed, layer.bias)


def _taps(layer: Layer) -> tuple[Array, Array, Array]:
    """Return the channel of each weight of a convolution, and how far down and right of the corner it looks."""
    assert layer.window is not None
    row, within = layer.weight.rows_and_columns()
    high, wide = layer.kernel
    filters = max(layer.weight.shape[0] // layer.window.groups, 1)
    channel = within // (high * wide) + row // filters * layer.weight.shape[1]
    down = within // wide % high * layer.window.dilation[0]
    right = within % wide * layer.window.dilation[1]
    return channel, down, right


def _convolution_step(layer: Layer, sample: tuple[int, ...], packed: Packed, **plane: int) -> kernels.Step:
    assert layer.window is not None
    window = layer.window
    out = window.out((sample[1], sample[2]), layer.kernel)
    pooled = layer.pool.out(out) if layer.pool else out
    geometry = {
        **dict(zip(("height", "width"), sample[1:], strict=True)),
        **dict(zip(("out_height", "out_width"), out, strict=True)),
        **dict(zip(("stride_y", "stride_x"), window.stride, strict=True)),
        **dict(zip(("pad_y", "pad_x"), window.padding, strict=True)),
        **dict(zip(("pooled_height", "pooled_width"), pooled, strict=True)),
        "pool": layer.pool.size if layer.pool else 0,
        "pool_stride": layer.pool.stride if layer.pool else 1,
    }
    rows = layer.weight.shape[0]
    kind = kernels.CONVOLUTION
    return kernels.step(kind, layer.activation, rows, layer.inputs, packed, layer.bias, **geometry, **plane)


def _convolution(
    layer: Layer, sample: tuple[int, ...], kernel: Kernel, lanes: int, threads: int
) -> tuple[Packed, kernels.Step, Array]:
    """Lay a convolution out for pixels side by side: weights are offsets into the phases of the padded image."""
    image = _Image.of(layer, sample)
    frame = _frame(image, kernel, lanes, threads)
    assert not frame.turns or (frame.tall <= frame.band and frame.pitch == frame.tile * lanes)  # or sums go wrong
    packs, block = frame.packs, image.block(frame, kernel, lanes)
    phases = np.ascontiguousarray(np.stack([*image.phases.T, frame.columns(image)], 1).astype(np.int32))
    plane_rows = frame.band + image.halo if packs else sample[1]
    plane = _plane(plane_rows * frame.pitch + frame.spill, lanes) if packs else plane_rows * frame.pitch
    # A slab that would fill the second level of the cache is made of some blocks at a time: 3×3 filters with a stride
    # of two take 10 to 13 % less, 512 × 14 × 14 9 %.
    slab_blocks = max(math.ceil(layer.inputs / block), 1)
    slab_bytes = len(phases) * layer.inputs * plane * 4
    if packs and slab_bytes > _MOST_SLAB_BYTES:
        slab_blocks = max(slab_blocks * _SLAB_BYTES // slab_bytes, 1)
    held = max(min(slab_blocks * block, layer.inputs), 1)
    aside = 0 if frame.turns else image.aside
    offset = (image.phase * held + image.channel % held) * plane + image.below * frame.pitch + aside
    # What does not fit the first level of the cache, beside results, is to be read again soon: 1×1 filters of 5 % take
    # 3 to 12 % less. The more weights there are, the longer it takes to order rows, and the less is gained; panels gain
    # nothing.
    large = block * image.run_bytes(frame, lanes) > _LEAST_REUSED_BYTES
    by_reuse = large and layer.weight.density <= _MOST_REUSED
    packed = pack_offsets(
        layer.weight,
        offset,
        image.channel,
        layer.inputs,
        block,
        _segment(layer.weight.shape[0], frame.areas(image.out, lanes), threads),
        shared=kernel.shared,
        parts=image.phase * block + image.channel % block if by_reuse else None,
        turns=frame.turns,
        group=frame.turns - image.aside if frame.turns else None,
    )
    step = _convolution_step(
        layer,
        sample,
        packed,
        plane_rows=plane_rows,
        pitch=frame.pitch,
        plane=plane,
        band=frame.band,
        packs=packs,
        tile=frame.tile,
        tile_rows=frame.tall,
        span=frame.span,
        turns=frame.turns,
        slab_blocks=slab_blocks,
        phase_count=len(phases),
        phases=phases.ctypes.data,
    )
    return packed, step, phases


def _segment(filters: int, areas: int, threads: int) -> int:
    """Return how many filters are made of a run of pixels before the next is read.

    The fewer, the more often it is read: with 256 instead of 32, 1×1 with 1,024 channels takes 18 % less, 3×3 with
    stride 2 5 to 9 %. Threads share areas and segments: there are two pieces for each, if filters are not too few.
    """
    shares = math.ceil(2 * threads / areas) if threads > 1 else 1
    return max(min(math.ceil(filters / shares), _FILTERS), min(_LEAST_FILTERS, filters), 1)


def _plane(floats: int, lanes: int) -> int:
    """Return how far apart planes stand: as vectors do, but not so that few places in the cache have to hold all."""
    floats = math.ceil(floats / lanes) * lanes
    return floats if floats % 128 else floats + 16


@dataclass(frozen=True)
class _Frame:
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

    def columns(self, image: _Image) -> Array:
        """Return how many columns of each phase are read: in a tile none behind the last window."""
        if self.tile:
            return self.span + image.reach
        # Zeros behind a row may serve the next one.
        return np.full(len(image.phases), self.pitch)

    def for_threads(self, out: tuple[int, int], threads: int, lanes: int) -> _Frame:
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
class _Image:
    """What a convolution reads: the phases of its padded image, and where in them each weight looks.

    With a stride s the padded image is split into s × s phases, in each of which neighbours were s apart.
    """

    layer: Layer
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
    def of(cls, layer: Layer, sample: tuple[int, ...]) -> _Image:
        """Split what a layer reads of a sample."""
        assert layer.window is not None
        stride_y, stride_x = layer.window.stride
        channel, down, right = _taps(layer)
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
        return (*self.layer.window.stride, *self.layer.window.padding) == (1, 1, 0, 0)

    def run_bytes(self, frame: _Frame, lanes: int) -> int:
        """Return a channel's part of what is summed side by side.

        That is a run of pixels as often as weights look at other rows or phases. Of a tile they look at rows that it
        has itself.
        """
        rows = self.rows + (frame.tall - 1) * len(self.phases)
        return ((frame.tile or _VECTORS) * lanes + self.farthest) * max(rows, 1) * 4

    def block(self, frame: _Frame, kernel: Kernel, lanes: int) -> int:
        """Return how many channels are read before sums wait: those that fit the first level of the cache."""
        layer = self.layer
        fitting = _L1_BYTES // self.run_bytes(frame, lanes)
        wanted = math.ceil(_WEIGHTS_IN_BLOCK[0] / max(layer.weight.density * math.prod(layer.kernel), 1e-6))
        blocks = math.ceil(layer.inputs / (max(fitting, wanted, 1) * kernel.spread))
        return max(math.ceil(layer.inputs / max(blocks, 1)), 1)


def _frame(image: _Image, kernel: Kernel, lanes: int, threads: int) -> _Frame:
    """Return how to make the result of a convolution for it to take the fewest cycles."""
    frames = list(_turned(image, lanes)) if kernel.aligned else []
    if not frames and image.is_whole:
        in_place = _Frame(False, image.out[0], image.out[1], image.size[1])
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


def aligns(layer: Layer, sample: tuple[int, ...], lanes: int) -> bool:
    """Tell whether a kernel that is `aligned` reads such samples in another way than one that is not."""
    if layer.window is None:
        return False
    image = _Image.of(layer, layer.image(sample))
    return next(_turned(image, lanes), None) is not None or (image.is_whole and math.prod(image.size) % lanes > 0)


def _bands(image: _Image, frame: _Frame) -> range:
    """Return how many rows of the result may be made at once: what they read must fit the second level of the cache."""
    planes = len(image.phases) * image.layer.inputs
    fitting = _MOST_BAND_BYTES // (max(planes * frame.pitch, 1) * 4) - image.halo
    least = frame.tall if frame.turns else 1
    return range(least, max(min(fitting, image.out[0]), least) + 1)


def _straight(image: _Image, lanes: int) -> Iterator[_Frame]:
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
        yield _Frame(True, height, width, pitch, max(width + image.farthest - pitch, 0))
        return
    for columns in (4, 2) if tile == 4 else (tile,):
        for tall in _tile_rows(columns, lanes):
            tiles = _Frame(True, height, width, math.ceil((width + image.farthest) / lanes) * lanes, 0, columns, tall)
            yield tiles
            if columns == _LONGEST_TILE < vectors and stride == (1, 1):
                span = columns * lanes
                yield replace(tiles, span=span, pitch=math.ceil((span + image.farthest) / lanes) * lanes)


def _tile_rows(columns: int, lanes: int) -> tuple[int, ...]:
    """Return how many rows a tile of so many vectors each can have: with 16 lanes go twice as many registers."""
    vectors = (_TILE_VECTORS, 2 * _TILE_VECTORS) if lanes == 16 else (_TILE_VECTORS,)
    return tuple(most // max(columns, 2) for most in vectors)


def _turned(image: _Image, lanes: int) -> Iterator[_Frame]:
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
                yield _Frame(True, height, span, columns * lanes, 0, columns, tall, turns)


def _cycles(image: _Image, frame: _Frame, kernel: Kernel, lanes: int) -> float:
    """Estimate what all of a result takes.

    A slab should fit the second level of the cache, beside what is read and written. What `halo` rows of it have in
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


def _panel_convolution(layer: Layer, sample: tuple[int, ...], kernel: Kernel) -> tuple[Packed, kernels.Step]:
    """Lay a convolution out for samples side by side: weights are features of the padded image."""
    assert layer.window is not None
    plane_rows, pitch = (size + 2 * pad for size, pad in zip(sample[1:], layer.window.padding, strict=True))
    channel, down, right = _taps(layer)
    offset = (channel * plane_rows + down) * pitch + right
    block, segment = max(layer.inputs, 1), max(layer.weight.shape[0], 1)
    packed = pack_offsets(layer.weight, offset, channel, layer.inputs, block, segment, shared=kernel.shared)
    plane = {"plane_rows": plane_rows, "pitch": pitch, "plane": plane_rows * pitch}
    return packed, _convolution_step(layer, sample, packed, **plane)
