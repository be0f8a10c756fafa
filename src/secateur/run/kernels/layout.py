"""How sparse layers are laid out in memory for the kernels: in which blocks, and in which order of weights."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secateur.run.kernels import bindings
from secateur.run.kernels.kernel import Kernel
from secateur.run.kernels.packing import Packed, pack_columns, pack_offsets
from secateur.run.kernels.tiling import (
    L1_BYTES,
    WEIGHTS_IN_BLOCK,
    Image,
    blocks_in_slab,
    choose_frame,
    filters_in_segment,
    plane_floats,
    taps,
)
from secateur.run.sparse_layer import SparseLayer
from secateur.run.sparse_weight import Array

# Of a block, and of weights: from which size on, and up to which density, rows are ordered by what they read.
_LEAST_REUSED_BYTES, _MOST_REUSED = 20 << 10, 0.2
_SEGMENT = 512  # rows whose sums fit the second level of the cache


@dataclass(frozen=True)
class LaidOut:
    """A chain laid out for samples of one shape: addresses, what they point to, and the shape of the result."""

    address: int
    keep: tuple[object, ...]
    out: tuple[int, ...]
    nbytes: int


def lay_out(
    layers: Sequence[SparseLayer], sample: tuple[int, ...], kernel: Kernel, lanes: int, threads: int
) -> LaidOut:
    """Lay a chain out for samples of one shape, vectors of so many lanes, and so many threads for each sample."""
    steps, keep, nbytes = [], [], 0
    for layer in layers:
        phases = None
        if layer.window is None:
            packed, step = _linear_step(layer, kernel, lanes)
        elif layer.is_depthwise and not kernel.vectors:
            packed, step = _depthwise(layer, layer.image(sample))
        elif kernel.vectors:
            packed, step = _panel_convolution(layer, layer.image(sample), kernel)
        else:
            packed, step, phases = _convolution(layer, layer.image(sample), kernel, lanes, threads)
        steps.append(step)
        keep += [packed, layer.bias, phases]
        nbytes += packed.nbytes + layer.bias.nbytes
        sample = layer.out_shape(sample)
    chain, memory = bindings.chain(steps, kernel.vectors)
    return LaidOut(ctypes.addressof(chain), (chain, memory, *keep), sample, nbytes)


def _linear_step(layer: SparseLayer, kernel: Kernel, lanes: int) -> tuple[Packed, bindings.Step]:
    rows, columns = layer.weight.shape
    # The input is read in random order: what does not fit the first level of the cache is taken in parts.
    block = max(math.ceil(columns / max(math.ceil(columns * 4 / L1_BYTES), 1)), 1)
    if kernel.vectors:
        fitting = L1_BYTES // (4 * kernel.vectors * lanes)
        wanted = max(fitting, math.ceil(WEIGHTS_IN_BLOCK[kernel.vectors] / max(layer.weight.density, 1e-6)))
        block = max(math.ceil(columns / math.ceil(columns / (wanted * kernel.spread))), 1) if columns else 1
    side = 1 if kernel.vectors else lanes
    packed = pack_columns(layer.weight, block, min(max(rows, 1), _SEGMENT), side, shared=kernel.shared)
    return packed, bindings.step(bindings.LINEAR, layer.activation, rows, columns, packed, layer.bias)


def _convolution_step(layer: SparseLayer, sample: tuple[int, ...], packed: Packed, **plane: int) -> bindings.Step:
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
    kind = bindings.DEPTHWISE if "filter_height" in plane else bindings.CONVOLUTION
    return bindings.step(kind, layer.activation, rows, layer.inputs, packed, layer.bias, **geometry, **plane)


def _convolution(
    layer: SparseLayer, sample: tuple[int, ...], kernel: Kernel, lanes: int, threads: int
) -> tuple[Packed, bindings.Step, Array]:
    """Lay a convolution out for pixels side by side: weights are offsets into the phases of the padded image."""
    image = Image.of(layer, sample)
    frame = choose_frame(image, kernel, lanes, threads)
    assert not frame.turns or (frame.tall <= frame.band and frame.pitch == frame.tile * lanes)  # or sums go wrong
    packs, block = frame.packs, image.block(frame, kernel, lanes)
    phases = np.ascontiguousarray(np.stack([*image.phases.T, frame.columns(image)], 1).astype(np.int32))
    plane_rows = frame.band + image.halo if packs else sample[1]
    plane = plane_floats(plane_rows * frame.pitch + frame.spill, lanes) if packs else plane_rows * frame.pitch
    slab_blocks = max(math.ceil(layer.inputs / block), 1)
    if packs:
        slab_blocks = blocks_in_slab(slab_blocks, len(phases) * layer.inputs * plane * 4)
    held = max(min(slab_blocks * block, layer.inputs), 1)
    aside = 0 if frame.turns else image.aside
    offset = (image.phase * held + image.channel % held) * plane + image.below * frame.pitch + aside
    # What does not fit the first level of the cache with the results should be read again soon: 1×1 filters of 5 % take
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
        filters_in_segment(layer.weight.shape[0], frame.areas(image.out, lanes), threads),
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


def _depthwise(layer: SparseLayer, sample: tuple[int, ...]) -> tuple[Packed, bindings.Step]:
    """Lay a depthwise convolution out with its zeros: the kernel has nothing to gain from skipping so few weights."""
    none = np.zeros(0, np.int32)
    packed = Packed(none, none, none, layer.weight.dense().flatten().numpy(), None, 1, 1, 1)
    high, wide = layer.kernel
    return packed, _convolution_step(layer, sample, packed, filter_height=high, filter_width=wide)


def _panel_convolution(layer: SparseLayer, sample: tuple[int, ...], kernel: Kernel) -> tuple[Packed, bindings.Step]:
    """Lay a convolution out for samples side by side: weights are features of the padded image."""
    assert layer.window is not None
    plane_rows, pitch = layer.window.padded((sample[1], sample[2]))
    channel, down, right = taps(layer)
    offset = (channel * plane_rows + down) * pitch + right
    block, segment = max(layer.inputs, 1), max(layer.weight.shape[0], 1)
    packed = pack_offsets(layer.weight, offset, channel, layer.inputs, block, segment, shared=kernel.shared)
    plane = {"plane_rows": plane_rows, "pitch": pitch, "plane": plane_rows * pitch}
    return packed, _convolution_step(layer, sample, packed, **plane)
