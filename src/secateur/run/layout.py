"""How sparse layers are laid out for the kernels: in which blocks, bands and tiles, and in which order of weights."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from secateur.run import kernels
from secateur.run.layers import Layer
from secateur.run.weights import Array, Packed, pack_columns, pack_offsets

_L1_BYTES = 24 << 10  # what a block of the input may take of the first level of the cache
# That a row should have, on average: with fewer, its waiting sums cost more than they. In a panel by its vectors.
_WEIGHTS_IN_BLOCK = {0: 16, 1: 40, 2: 40, 4: 20, 8: 12}
_BAND_BYTES, _MOST_BAND_BYTES = 192 << 10, 512 << 10  # of a padded image, which must fit the second level, with room
# Of all channels: from which size on only some of them stand in a slab, and how much of them at most, because sums that
# wait for the next slab take room, too. 3×3 filters with a stride of two take 10 to 13 % less, 512 × 14 × 14 9 %.
_MOST_SLAB_BYTES, _SLAB_BYTES = 256 << 10, 152 << 10
# What a row of weights takes beside them, each of them with a vector of pixels, and packing a pixel.
_ROW_CYCLES, _SUM_CYCLES, _PACK_CYCLES = 24, 0.8, 0.6
_VECTORS, _TILE_VECTORS = 12, 14  # of pixels, that a kernel sums side by side along rows, and in a tile
_STRIP_TILE = 7  # vectors of a tile along a row, where results are made in strips
_WASTE = 1.12  # how many times as many vectors of pixels tiles may take, beside runs along the rows
# Of a block, and of weights: from which size on, and up to which density, rows are ordered by what they read.
_LEAST_REUSED_BYTES, _MOST_REUSED = 20 << 10, 0.2
_SEGMENT, _FILTERS = 512, 256  # rows, and filters, whose sums fit the second level
_LEAST_FILTERS = 32  # that a thread should make of a run of pixels


@dataclass(frozen=True)
class Kernel:
    """How a chain runs: sample by sample, or in panels of so many vector registers; and how large its blocks are.

    `spread` multiplies the number of columns or channels that a block would have by the size of the cache alone. With
    `shared`, layers of at most 256 distinct values read them from a table.
    """

    vectors: int = 0
    spread: int = 1
    shared: bool = False

    def __post_init__(self) -> None:
        if self.vectors not in (0, 1, 2, 4, 8):
            raise ValueError(f"a panel has 1, 2, 4 or 8 vectors, or there is none (0): got {self.vectors}")
        if not 1 <= self.spread <= 1 << 20:
            raise ValueError(f"spread must be between 1 and {1 << 20}, got {self.spread}")

    @property
    def name(self) -> str:
        """What it is called in tables."""
        way = f"panel {self.vectors * kernels.lanes()}" if self.vectors else "sample"
        return way + (f" ×{self.spread}" if self.spread > 1 else "") + (" shared" if self.shared else "")


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
    assert layer.window is not None
    (stride_y, stride_x), (pad_y, pad_x) = layer.window.stride, layer.window.padding
    is_whole = (stride_y, stride_x, pad_y, pad_x) == (1, 1, 0, 0)  # then it is read where it stands
    channel, down, right = _taps(layer)
    out = layer.window.out((sample[1], sample[2]), layer.kernel)
    pitch, spill, tile = (sample[2], 0, 0) if is_whole else _pitch(sample[2], out[1], stride_x, pad_x, right, lanes)
    # Phases that no weight reads are not made: a stride of two over single pixels needs one of four.
    key = down % stride_y * stride_x + right % stride_x
    used = np.flatnonzero(np.bincount(key, minlength=stride_y * stride_x))
    number = np.zeros(stride_y * stride_x, np.int64)
    number[used] = np.arange(len(used))
    # In a tile nothing is read behind the last window; along the rows zeros there may serve the next row.
    last = [int(right[right % stride_x == phase].max()) // stride_x for phase in used % stride_x]
    columns = out[1] + np.array(last, np.int64) if tile else np.full(len(used), pitch)
    # A channel's part of a run of pixels: the run, and as often as weights look at other rows or phases. Of a tile they
    # look at rows that it has itself.
    tall = _TILE_VECTORS // tile if tile else 1
    rows = len(np.unique(down * stride_x + right % stride_x)) + (tall - 1) * len(used)
    run = ((tile or _VECTORS) * lanes + layer.kernel[1] // stride_x) * max(rows, 1) * 4
    wanted = math.ceil(_WEIGHTS_IN_BLOCK[0] / max(layer.weight.density * math.prod(layer.kernel), 1e-6))
    blocks = math.ceil(layer.inputs / (max(_L1_BYTES // run, wanted, 1) * kernel.spread))
    block = max(math.ceil(layer.inputs / max(blocks, 1)), 1)
    # An image that must be padded or split is so in bands, which stay in the cache until they are read.
    halo = int(down.max(initial=0)) // stride_y
    filter_rows = layer.weight.shape[0] * math.ceil(layer.inputs / block)
    weights = len(channel) / max(filter_rows, 1)
    slab = _Slab(out[0], pitch, tile)
    if not is_whole:
        reach = int(columns.max(initial=out[1])) - out[1]
        is_wide = tile == _STRIP_TILE and (stride_y, stride_x) == (1, 1)
        planes = len(used) * layer.inputs
        slab = _slab(out, slab, reach if is_wide else None, halo, planes, filter_rows, weights, lanes)
        columns += slab.strip * lanes - out[1] if slab.strip else 0
        slab = _for_threads(slab, out, threads, lanes)
    phases = np.ascontiguousarray(np.stack([used // stride_x, used % stride_x, columns], 1).astype(np.int32))
    plane_rows = sample[1] if is_whole else slab.band + halo
    plane = plane_rows * pitch if is_whole else _plane(plane_rows * slab.pitch + spill, lanes)
    # A slab that would fill the second level of the cache is made of some blocks at a time.
    slab_blocks = max(math.ceil(layer.inputs / block), 1)
    slab_bytes = len(used) * layer.inputs * plane * 4
    if not is_whole and slab_bytes > _MOST_SLAB_BYTES:
        slab_blocks = max(slab_blocks * _SLAB_BYTES // slab_bytes, 1)
    held = max(min(slab_blocks * block, layer.inputs), 1)
    offset = (number[key] * held + channel % held) * plane + down // stride_y * slab.pitch + right // stride_x
    is_large = out[0] * pitch >= 8 * _VECTORS * lanes  # then it is cut into eight bands where it stands
    areas = 8 if is_whole and is_large else math.ceil(out[0] / slab.band) * slab.strips(out[1], lanes)
    segment = _segment(layer.weight.shape[0], areas, threads)
    # What does not fit the first level of the cache, beside results, is to be read again soon: 1×1 filters of 5 % take
    # 3 to 12 % less. The more weights there are, the longer it takes to order rows, and the less is gained; panels gain
    # nothing.
    by_reuse = block * run > _LEAST_REUSED_BYTES and layer.weight.density <= _MOST_REUSED
    parts = number[key] * block + channel % block if by_reuse else None
    packed = pack_offsets(
        layer.weight, offset, channel, layer.inputs, block, segment, shared=kernel.shared, parts=parts
    )
    step = _convolution_step(
        layer,
        sample,
        packed,
        plane_rows=plane_rows,
        pitch=slab.pitch,
        plane=plane,
        band=slab.band,
        tile=slab.tile,
        strip=slab.strip,
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


def _pitch(width: int, out_width: int, stride: int, pad: int, right: Array, lanes: int) -> tuple[int, int, int]:
    """Return how far apart the rows of a packed image stand, how far windows look past the end of one, and its tiles.

    A tile has so many vectors of each of its rows side by side, and rows begin as vectors do: most loads then keep to
    one line of the cache, and results go straight to their places. But the last vector of 20 pixels repeats four.

    Where that is too much there are none (0), and pixels are counted along the rows. Windows then look at the zeros on
    the left of the next row instead of zeros on the right: of 12 × 12 pixels with a border of one, 13 columns are
    computed for each row instead of 14.
    """
    taps = np.unique(right)
    reach = {int(phase): out_width + int(taps[taps % stride == phase].max()) // stride for phase in taps % stride}
    longest = max(reach.values(), default=out_width)
    pitch = out_width
    for phase, columns in reach.items():
        before = math.ceil(max(pad - phase, 0) / stride)
        pitch = max(pitch, columns - before, min(math.ceil((width + pad - phase) / stride), columns))
    vectors = math.ceil(out_width / lanes)
    across = math.ceil(vectors * 2 / _TILE_VECTORS)  # tiles of two rows or more
    tile = math.ceil(vectors / across)
    if tile > 1 and pitch != out_width and tile * across * lanes <= _WASTE * pitch:
        return math.ceil(longest / lanes) * lanes, 0, tile
    return pitch, max(longest - pitch, 0), 0


def _plane(floats: int, lanes: int) -> int:
    """Return how far apart planes stand: as vectors do, but not so that few places in the cache have to hold all."""
    floats = math.ceil(floats / lanes) * lanes
    return floats if floats % 128 else floats + 16


@dataclass(frozen=True)
class _Slab:
    """How much of a result is made from one slab: `band` rows, of `strip` vectors each or of all (0), tile by tile.

    `pitch` is how far apart rows of the slab stand.
    """

    band: int
    pitch: int
    tile: int
    strip: int = 0

    def strips(self, out_width: int, lanes: int) -> int:
        """Return how many slabs there are side by side."""
        return math.ceil(math.ceil(out_width / lanes) / self.strip) if self.strip else 1


def _slab(
    out: tuple[int, int],
    whole: _Slab,
    reach: int | None,
    halo: int,
    planes: int,
    rows: int,
    weights: float,
    lanes: int,
) -> _Slab:
    """Return how much of a result to make from one slab, for all of it to take the fewest cycles.

    A slab should fit the second level of the cache, beside what is read and written. What `halo` rows of it have in
    common with the next are packed twice; and the pixels of a band should fill tiles, or runs of vectors, the last
    band's too: a tile of four vectors and three rows may become two, of two vectors and seven rows. Where rows are so
    long that a few of them fill the cache, slabs may be for strips, as wide as a tile: they have `reach` columns in
    common, if that is a number. `whole` has the pitch and the tiles of whole rows. `rows` is how many rows of the
    weight there are, in all blocks, and `weights` how many each has on average.
    """

    def cycles(slab: _Slab) -> float:
        bands, rest = divmod(out[0], slab.band)
        column = bands * of_band(slab, slab.band) + (of_band(slab, rest) if rest else 0)
        return column * slab.strips(out[1], lanes)

    def of_band(slab: _Slab, band: int) -> float:
        if slab.tile:
            tall = _TILE_VECTORS // slab.tile if band >= _TILE_VECTORS // slab.tile else 1
            runs = math.ceil(band / tall) * math.ceil((slab.strip or across) / slab.tile)
            vectors = runs * tall * slab.tile
        else:
            vectors = math.ceil(((band - 1) * slab.pitch + out[1]) / lanes)
            runs = math.ceil(vectors / _VECTORS)
        summing = rows * (runs * (_ROW_CYCLES + weights) + _SUM_CYCLES * weights * vectors)
        packed = planes * (band + halo) * slab.pitch
        crowded = 1.05 if packed * 4 > _BAND_BYTES else 1.0
        return crowded * summing + _PACK_CYCLES * packed

    def heights(pitch: int) -> range:
        fitting = _MOST_BAND_BYTES // (max(planes * pitch, 1) * 4) - halo
        return range(1, max(min(fitting, out[0]), 1) + 1)

    across = math.ceil(out[1] / lanes)
    tiles = (4, 2) if whole.tile == 4 else (whole.tile,)
    ways = [_Slab(band, whole.pitch, tile) for band in heights(whole.pitch) for tile in tiles]
    if reach is not None and across > whole.tile:
        pitch = math.ceil((whole.tile * lanes + reach) / lanes) * lanes
        ways += [_Slab(band, pitch, whole.tile, whole.tile) for band in heights(pitch)]
    return min(ways, key=cycles)


def _for_threads(slab: _Slab, out: tuple[int, int], threads: int, lanes: int) -> _Slab:
    """Return lower bands, if there are fewer slabs than threads: those that share one would pack it each for itself.

    They are halves, of whole tiles, so that every sum is taken in the same order.
    """
    tall = _TILE_VECTORS // slab.tile if slab.tile else 0
    while tall and math.ceil(out[0] / slab.band) * slab.strips(out[1], lanes) < threads and slab.band % (2 * tall) == 0:
        slab = replace(slab, band=slab.band // 2)
    return slab


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
