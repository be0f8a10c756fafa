"""Calls into native/sparse.cpp: a chain of sparse layers, laid out as the kernels read it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, get_args

import numpy as np

from secateur import native
from secateur.run.kernels.packing import Packed
from secateur.run.sparse_layer import Activation
from secateur.run.sparse_weight import Array

_INT64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_GEOMETRY = (
    *("height", "width", "out_height", "out_width", "stride_y", "stride_x", "pad_y", "pad_x"),
    *("plane_rows", "pitch", "plane", "band", "packs", "tile", "tile_rows", "span", "turns"),
    *("slab_blocks", "phase_count"),
)


class Step(ctypes.Structure):
    """One layer, field by field as native/sparse_step.h has it."""

    _fields_ = (
        ("kind", _INT64),
        ("activation", _INT64),
        ("rows", _INT64),
        ("inputs", _INT64),
        ("blocks", _INT64),
        ("block", _INT64),
        ("segment", _INT64),
        ("side", _INT64),
        ("order", _POINTER),
        ("starts", _POINTER),
        ("places", _POINTER),
        ("wide", _INT64),
        ("values", _POINTER),
        ("codes", _POINTER),
        ("table", _POINTER),
        ("bias", _POINTER),
        *((name, _INT64) for name in _GEOMETRY),
        ("phases", _POINTER),
        *((name, _INT64) for name in ("pool", "pool_stride", "pooled_height", "pooled_width")),
        *((name, _INT64) for name in ("filter_height", "filter_width")),
    )


LINEAR, CONVOLUTION, DEPTHWISE = 0, 1, 2
ACTIVATIONS = {name: number for number, name in enumerate(get_args(Activation))}  # as native/sparse_step.h counts

# A chain, samples, how many, results, threads, and what is added before the last activation.
Call: TypeAlias = Callable[[int, int, int, int, int, "int | None"], int]


@cache
def chain_routine() -> Call | None:
    """Return the native chain, or None where the library is missing or was built from another source."""
    measure = native.routine("secateur_step_bytes", _INT64) if native.is_available() else None
    if measure is None or measure() != ctypes.sizeof(Step):
        return None
    return native.routine(
        "secateur_chain",
        ctypes.c_int,
        *(_POINTER, _POINTER, _INT64, _POINTER, ctypes.c_int, _POINTER),
    )


@cache
def lanes() -> int:
    """Return how many numbers a vector register of the native library holds."""
    measure = native.routine("secateur_lanes", _INT64)
    return measure() if measure is not None else 8


def step(kind: int, activation: str, rows: int, inputs: int, packed: Packed, bias: Array, **geometry: int) -> Step:
    """Describe a layer to the kernels. It holds addresses only: the caller keeps the arrays alive."""
    assert bias.dtype == np.float32
    made = Step(
        kind=kind,
        activation=ACTIVATIONS[activation],
        rows=rows,
        inputs=inputs,
        blocks=packed.blocks,
        block=packed.block,
        segment=packed.segment,
        side=packed.side,
        order=packed.order.ctypes.data,
        starts=packed.starts.ctypes.data,
        places=packed.places.ctypes.data,
        wide=packed.places.dtype == np.int32,
        bias=bias.ctypes.data,
        **geometry,
    )
    if packed.codes is None:
        made.values = packed.values.ctypes.data
    else:
        made.codes, made.table = packed.codes.ctypes.data, packed.values.ctypes.data
    return made


class Chain(ctypes.Structure):
    """Steps side by side and the way they run, as native/sparse.cpp has them."""

    _fields_ = (("steps", _POINTER), ("count", _INT64), ("vectors", _INT64))


def chain(steps: Sequence[Step], vectors: int) -> tuple[Chain, object]:
    """Put steps side by side; the second result is the memory that the first points to."""
    array = (Step * len(steps))(*steps)
    return Chain(ctypes.addressof(array), len(steps), vectors), array
