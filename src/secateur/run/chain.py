"""A chain of sparse layers that runs as one call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from secateur.run import kernels
from secateur.run.layers import Activation, Layer, Pool, Window
from secateur.run.weights import Array, Packed, SparseWeight, pack_columns, pack_offsets

_L1_BYTES = 24 << 10  # what a block of the input may take of the first level of the cache
# That a row should have, on average: with fewer, its waiting sums cost more than they. In a panel by its vectors.
_WEIGHTS_IN_BLOCK = {0: 16, 1: 40, 2: 40, 4: 20, 8: 12}
_BAND_BYTES, _MOST_BAND_BYTES = 192 << 10, 512 << 10  # of a padded image, which must fit the second level, with room
# What a row of weights takes beside them, each of them with a vector of pixels, and packing a pixel.
_ROW_CYCLES, _SUM_CYCLES, _PACK_CYCLES = 24, 0.8, 0.6
_VECTORS, _TILE_VECTORS = 12, 14  # of pixels, that a kernel sums side by side along rows, and in a tile
_WASTE = 1.12  # how many times as many vectors of pixels tiles may take, beside runs along the rows
_LEAST_REUSED_BYTES, _MOST_REUSED = 20 << 10, 0.2
_SEGMENT, _FILTERS = 512, 256  # rows, and filters, whose sums fit the second level
_LEAST_FILTERS = 32  # that a thread should make of a run of pixels
_SIZES_KEPT = 32  # shapes of samples that a chain stays laid out for


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
class _Spec:
    shape: tuple[int, ...]
    activation: Activation
    window: Window | None
    pool: Pool | None


@dataclass(frozen=True)
class _Prepared:
    """A chain laid out for samples of one shape: addresses, what they point to, and the shape of the result."""

    address: int
    keep: tuple[object, ...]
    out: tuple[int, ...]
    nbytes: int


class SparseChain(nn.Module):
    """Sparse layers, one after the other, as one call into the native library; for inference.

    With `flattens`, samples of any shape are read as vectors. `residual` is added before the last activation. `names`
    are those of the layers in the network that they come from.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        kernel: Kernel | None = None,
        *,
        flattens: bool = False,
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a chain needs at least one layer, got none")
        self.kernel, self.flattens, self.names = kernel or Kernel(), flattens, names
        self._specs = [_Spec(one.weight.shape, one.activation, one.window, one.pool) for one in layers]
        for index, layer in enumerate(layers):
            for name, value in (("places", layer.weight.places), ("values", layer.weight.values), ("bias", layer.bias)):
                self.register_buffer(f"{name}{index}", torch.from_numpy(value))
        self._reset()

    def _reset(self) -> None:
        self._prepared: dict[tuple[int, tuple[int, ...]], _Prepared] = {}  # by threads and the shape of a sample
        # By the shape of an input: what to call, with what (which lives as long as someone may call it), how many
        # samples, the shape of the result, and on how many threads.
        self._known: dict[tuple[int, ...], tuple[kernels.Call, _Prepared, int, tuple[int, ...], int]] = {}
        self._layers: list[Layer] | None = None
        self._call, self._lanes = kernels.chain_routine(), kernels.lanes()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.update(_prepared={}, _known={}, _layers=None, _call=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._reset()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._reset()

    def _apply(self, fn: Any, recurse: bool = True) -> SparseChain:
        return self  # float32 on the CPU is what the kernels read, wherever the rest of the network goes

    def layers(self) -> list[Layer]:
        """Return the layers, checked: what was loaded may be anything."""
        found = self._layers
        if found is None:
            found = self._layers = [self._layer(index, spec) for index, spec in enumerate(self._specs)]
        return found

    def _layer(self, index: int, spec: _Spec) -> Layer:
        places, values, bias = (
            getattr(self, f"{name}{index}").detach().contiguous().numpy() for name in ("places", "values", "bias")
        )
        _require_sound(f"layer {index} of the chain", places, values, bias, spec.shape)
        return Layer(SparseWeight(places, values, spec.shape), bias, spec.activation, spec.window, spec.pool)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run the chain on a batch of samples."""
        known, threads = self._known.get(x.shape), torch.get_num_threads()
        if (
            known is None
            or known[4] != threads
            or x.dtype is not torch.float32
            or not x.is_contiguous()
            or not x.is_cpu
            or x.requires_grad
            or (residual is not None and not self._can_add(residual, known[3]))
        ):
            return self._forward(x, residual)
        # A microsecond counts here: a small network takes ten.
        call, prepared, batch, out, _ = known
        y = x.new_empty(*out)
        added = None if residual is None else residual.data_ptr()
        if call(prepared.address, x.data_ptr(), batch, y.data_ptr(), threads, added):
            raise MemoryError(f"a chain of {len(self._specs)} sparse layers found no memory to work in")
        return y

    def _forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """Do the same with everything checked."""
        if isinstance(x, fx.Proxy):  # a compiled network that was pickled is traced anew
            own = x.tracer.create_proxy("get_attr", x.tracer.path_of_module(self), (), {})
            given = (x,) if residual is None else (x, residual)
            traced: Tensor = x.tracer.create_proxy("call_method", "forward", (own, *given), {})
            return traced
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a compiled network has no gradients: call it under torch.no_grad()")
        first = self._specs[0]
        if not x.is_cpu or x.dtype is not torch.float32:
            raise TypeError(f"a compiled network takes float32 on the CPU, got {x.dtype} on {x.device}")
        x = x.detach().contiguous()
        lead, sample = self._split(x.shape, first)
        out = sample
        for layer in self.layers():
            out = layer.out_shape(out)
        if residual is not None:
            # Of one sample there may have been less than is added to it.
            full = torch.broadcast_shapes((*lead, *out), residual.shape)
            lead = tuple(full[: len(full) - len(out)])
            x = x.expand(*lead, *sample).contiguous()
            residual = self._checked(residual).expand(*lead, *out).contiguous()
        batch = math.prod(lead)
        y = x.new_empty((*lead, *out))
        if y.numel() == 0:
            return y
        if self._call is None:
            added_to = None if residual is None else residual.view(batch, *out)
            return self._twin(x.view(batch, *sample), added_to).view(y.shape)
        threads = torch.get_num_threads()
        prepared = self._prepare(sample, 1 if batch >= threads else threads)  # which share samples if they can
        if len(self._known) >= _SIZES_KEPT:
            self._known = {}  # not cleared: another thread may be reading it
        self._known[tuple(x.shape)] = (self._call, prepared, batch, (*lead, *out), threads)
        if residual is not None and self.kernel.vectors:
            raise ValueError("a residual is added sample by sample: this chain runs in panels")
        added = None if residual is None else residual.data_ptr()
        if self._call(prepared.address, x.data_ptr(), batch, y.data_ptr(), threads, added):
            raise MemoryError(f"a chain of {len(self._specs)} sparse layers found no memory to work in")
        return y

    def _can_add(self, residual: Tensor, out: tuple[int, ...]) -> bool:
        """Tell whether a residual can be read as it is, and where it stands."""
        return (
            residual.shape == out
            and residual.dtype is torch.float32
            and residual.is_contiguous()
            and residual.is_cpu
            and not residual.requires_grad
            and not self.kernel.vectors
            and self._specs[-1].pool is None
        )

    def _checked(self, residual: Tensor) -> Tensor:
        """Refuse a residual that the kernels would not read as what it is."""
        if not residual.is_cpu or residual.dtype is not torch.float32:
            raise TypeError(f"a residual is float32 on the CPU, got {residual.dtype} on {residual.device}")
        if self._specs[-1].pool is not None:
            raise ValueError("a residual is added before the activation: this chain ends with a pool")
        return residual.detach()

    def _split(self, shape: torch.Size, first: _Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Part the shape of an input into that of the batch and that of a sample."""
        if first.window is None:
            lead, sample = (shape[:1], shape[1:]) if self.flattens else (shape[:-1], shape[-1:])
            if len(shape) < 1 or math.prod(sample) != first.shape[1]:
                raise ValueError(f"the layer takes {first.shape[1]:,} features, got an input of shape {tuple(shape)}")
            return tuple(lead), tuple(sample)
        channels, dimensions = first.shape[1] * first.window.groups, 2 if first.window.lines else 3
        if len(shape) not in (dimensions, dimensions + 1) or shape[-dimensions] != channels:
            what = "lines" if first.window.lines else "images"
            raise ValueError(f"the layer takes {what} of {channels} channels, got an input of shape {tuple(shape)}")
        return tuple(shape[:-dimensions]), tuple(shape[-dimensions:])

    def _twin(self, x: Tensor, residual: Tensor | None) -> Tensor:
        layers = self.layers()
        for index, layer in enumerate(layers):
            x = layer.twin(x.flatten(1) if layer.window is None else x, residual if index + 1 == len(layers) else None)
        return x

    def _prepare(self, sample: tuple[int, ...], threads: int) -> _Prepared:
        found = self._prepared.get((threads, sample))
        if found is None:
            self._layers = None  # whose weights someone may have changed in place: they are looked at again
            if len(self._prepared) >= _SIZES_KEPT:
                self._prepared, self._known = {}, {}
            found = _lay_out(self.layers(), sample, self.kernel, self._lanes, threads)
            self._prepared[threads, sample] = found
        return found

    def nbytes(self) -> int:
        """Return what the kernels read of the layers' weights, for the shapes the chain has seen."""
        return max((one.nbytes for one in self._prepared.values()), default=0)

    def extra_repr(self) -> str:
        """Say what is in the chain."""
        kinds = [f"{spec.shape[0]}×{math.prod(spec.shape[1:])} {spec.activation}" for spec in self._specs]
        return f"{', '.join(kinds)}; {self.kernel.name}"


def _require_sound(what: str, places: Array, values: Array, bias: Array, shape: tuple[int, ...]) -> None:
    """Refuse weights that would make a kernel read outside of its input."""
    extent = math.prod(shape)
    if places.dtype not in (np.int32, np.int64) or values.dtype != np.float32 or bias.dtype != np.float32:
        raise ValueError(f"{what} has places, values or biases of the wrong type")
    if places.ndim != 1 or values.shape != places.shape or bias.shape != shape[:1]:
        raise ValueError(f"{what} has {places.shape} places, {values.shape} values and {bias.shape} biases for {shape}")
    if len(places) and (places[0] < 0 or places[-1] >= extent or (np.diff(places) <= 0).any()):
        raise ValueError(f"{what} has places out of order, or outside of its {extent:,} weights")


def _lay_out(layers: Sequence[Layer], sample: tuple[int, ...], kernel: Kernel, lanes: int, threads: int) -> _Prepared:
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
    return _Prepared(ctypes.addressof(chain), (chain, memory, *keep), sample, nbytes)


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
    phases = np.ascontiguousarray(np.stack([used // stride_x, used % stride_x], 1).astype(np.int32))
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
    band = out[0] if is_whole else _band(out, pitch, tile, halo, len(used) * layer.inputs, filter_rows, weights, lanes)
    plane_rows = sample[1] if is_whole else band + halo
    plane = plane_rows * pitch if is_whole else _plane(plane_rows * pitch + spill, lanes)
    offset = (number[key] * layer.inputs + channel) * plane + down // stride_y * pitch + right // stride_x
    is_large = out[0] * pitch >= 8 * _VECTORS * lanes  # then it is cut into eight bands where it stands
    bands = 8 if is_whole and is_large else math.ceil(out[0] / band)
    segment = _segment(layer.weight.shape[0], bands, threads)
    # What does not fit the first level of the cache, beside results, is to be read again soon: 1×1 filters of 5 % take
    # 3 to 12 % less. The more weights there are, the longer it takes to order rows, and the less is gained; panels, whose
    # rows are longer, gain nothing.
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
        pitch=pitch,
        plane=plane,
        band=band,
        tile=tile,
        phase_count=len(phases),
        phases=phases.ctypes.data,
    )
    return packed, step, phases


def _segment(filters: int, bands: int, threads: int) -> int:
    """Return how many filters are made of a run of pixels before the next is read.

    The fewer, the more often it is read: with 256 instead of 32, 1×1 with 1,024 channels takes 18 % less, 3×3 with
    stride 2 5 to 9 %. Threads share bands and segments: there are two pieces for each, if filters are not too few.
    """
    shares = math.ceil(2 * threads / bands) if threads > 1 else 1
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


def _band(
    out: tuple[int, int], pitch: int, tile: int, halo: int, planes: int, rows: int, weights: float, lanes: int
) -> int:
    """Return how many rows of the result are made from one slab, such that all of them take the fewest cycles.

    A slab should fit the second level of the cache, beside what is read and written. What `halo` rows of it have in
    common with the next are packed twice; and the pixels of a band should fill tiles, or runs of vectors, the last
    band's too. `rows` is how many rows of the weight there are, in all blocks, and `weights` how many each has on
    average.
    """

    def cycles(band: int) -> float:
        whole, rest = divmod(out[0], band)
        return whole * of_band(band) + (of_band(rest) if rest else 0)

    def of_band(band: int) -> float:
        if tile:
            tall = _TILE_VECTORS // tile if band >= _TILE_VECTORS // tile else 1
            runs = math.ceil(band / tall) * math.ceil(out[1] / (lanes * tile))
            vectors = runs * tall * tile
        else:
            vectors = math.ceil(((band - 1) * pitch + out[1]) / lanes)
            runs = math.ceil(vectors / _VECTORS)
        summing = rows * (runs * (_ROW_CYCLES + weights) + _SUM_CYCLES * weights * vectors)
        crowded = 1.05 if (band + halo) * row_bytes > _BAND_BYTES else 1.0
        return crowded * summing + _PACK_CYCLES * planes * (band + halo) * pitch

    row_bytes = max(planes * pitch, 1) * 4
    fitting = _MOST_BAND_BYTES // row_bytes - halo
    return min(range(1, max(min(fitting, out[0]), 1) + 1), key=cycles)


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
