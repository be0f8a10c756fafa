"""The orders in which the kernels read sparse weights."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from secateur import native
from secateur.run.sparse_weight import Array, SparseWeight

_HUGE_PAGE = 2 << 20


@dataclass(frozen=True)
class Packed:
    """Weights in the order of a kernel: by segments of rows, in each by blocks of columns or channels, in each by rows.

    The rows of a segment are sorted by how many weights they have in the block, or by what they read of it. The i-th
    row of segment s in block b is number k = (s·blocks + b)·segment + i: it is order[k], and its weights are numbers
    starts[k] to starts[k + 1] of `places`, and of `values` or `codes`. With `turns`, the weights of a row are in
    turns + 1 groups, and its starts are those of the groups.

    Or rows stand `side` by side, in slices of so many: then starts[k] is that of a slice, in which the first weights of
    all its rows come first, then the second ones. Shorter rows have zeros at their end, at place 0.
    """

    order: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    places: Array  # uint16 or int32
    values: npt.NDArray[np.float32]
    codes: npt.NDArray[np.uint8] | None
    blocks: int
    block: int
    segment: int
    side: int = 1

    @property
    def nbytes(self) -> int:
        """What the kernel reads."""
        worth = self.values.nbytes + (0 if self.codes is None else self.codes.nbytes)
        return self.order.nbytes + self.starts.nbytes + self.places.nbytes + worth


def pack_columns(weight: SparseWeight, block: int, segment: int, side: int = 1, *, shared: bool = False) -> Packed:
    """Order a linear layer: in blocks of columns, each counted from its first one, with rows `side` by side."""
    row, column = weight.rows_and_columns()
    number = column // block
    blocks = math.ceil(weight.shape[1] / block)
    packed = _pack(weight, row, number, blocks, column - number * block, block, block, segment)
    packed = packed if side == 1 else _side_by_side(packed, side)
    return _with_codes(packed) if shared else packed


def pack_offsets(
    weight: SparseWeight,
    offset: Array,
    channel: Array,
    channels: int,
    block: int,
    segment: int,
    *,
    shared: bool = False,
    parts: Array | None = None,
    turns: int = 0,
    group: Array | None = None,
) -> Packed:
    """Order a convolution: in blocks of channels, and for each weight its offset into an image.

    With `parts`, those of the image that each weight reads, rows that read the same come after each other. With
    `group`, below or equal to `turns`, the weights of a row stand in the order of their groups.
    """
    row, _ = weight.rows_and_columns()
    extent = int(offset.max(initial=0)) + 1
    blocks = math.ceil(channels / block)
    packed = _pack(weight, row, channel // block, blocks, offset, extent, block, segment, parts, turns, group)
    return _with_codes(packed) if shared else packed


def _pack(
    weight: SparseWeight,
    row: Array,
    number: Array,
    blocks: int,
    places: Array,
    extent: int,
    block: int,
    segment: int,
    parts: Array | None = None,
    turns: int = 0,
    group: Array | None = None,
) -> Packed:
    rows, blocks = weight.shape[0], max(blocks, 1)
    segments = math.ceil(rows / segment)
    # Every place that a row can have, (segment, block, row of the segment), and the weights there. Rows that the last
    # segment lacks come last in it, and have none.
    cell = (row // segment * blocks + number).astype(np.int64) * segment + row % segment
    counts = np.bincount(cell, minlength=segments * blocks * segment).reshape(-1, segment)
    groups = turns + 1
    fine = cell if group is None else cell * groups + group
    by_cell = np.argsort(fine, kind="stable")
    order = None if parts is None else _by_reuse(counts, parts[by_cell], rows, blocks)
    if order is None:
        rank = counts + np.zeros_like(counts)
        if rows % segment:
            rank[-blocks:, rows % segment :] = np.iinfo(np.int64).max
        order = np.argsort(rank, axis=1, kind="stable")
    # Of each group of each row: how many weights it has, and where it starts.
    each = np.bincount(fine, minlength=counts.size * groups).reshape(*counts.shape, groups)
    starts = np.zeros(each.size + 1, np.int32)
    np.cumsum(np.take_along_axis(each, order[:, :, None], 1).reshape(-1), out=starts[1:])
    # Where each weight goes: to the start of its group there, and on by how many of the group came before it.
    start = np.empty_like(each)
    np.put_along_axis(start, order[:, :, None], starts[:-1].reshape(each.shape), 1)
    ordered = fine[by_cell]
    before = np.arange(len(cell)) - (np.cumsum(each.reshape(-1)) - each.reshape(-1))[ordered]
    target = start.reshape(-1)[ordered] + before
    # Two bytes for a place instead of four, where they are enough: the kernels wait for memory.
    packed = _empty(len(cell), np.uint16 if extent <= 1 << 16 else np.int32)
    packed[target] = places[by_cell]
    values = _empty(len(cell), np.float32)
    values[target] = weight.values[by_cell]
    order += (np.arange(segments * blocks) // blocks * segment)[:, None]
    row_order = np.ascontiguousarray(order.reshape(-1), np.int32)
    return Packed(row_order, starts, packed, values, None, blocks, block, segment)


def _by_reuse(counts: Array, parts: Array, rows: int, blocks: int) -> Array | None:
    """Order the rows of each cell by what they read, or return None where the library is missing.

    `counts` are the weights of each row of each cell, `parts` what they read, cell by cell and in each row by row.
    """
    order_rows = _order_rows()
    if order_rows is None:
        return None
    cells, segment = counts.shape
    lengths = np.minimum(segment, rows - np.arange(cells) // blocks * segment).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts.reshape(-1))]).astype(np.int64)
    parts = np.ascontiguousarray(parts, np.int32)
    most = int(parts.max(initial=-1)) + 1
    order = np.tile(np.arange(segment, dtype=np.int32), (cells, 1))
    arrays = (array.ctypes.data for array in (lengths, starts, parts))
    if order_rows(cells, segment, *arrays, most, order.ctypes.data):
        raise MemoryError(f"no memory to order {rows:,} rows of weights")
    return order.astype(np.int64)


@cache
def _order_rows() -> native.Routine | None:
    size, address = ctypes.c_int64, ctypes.c_void_p
    return native.routine("secateur_order_rows", ctypes.c_int, size, size, address, address, address, size, address)


def _side_by_side(packed: Packed, side: int) -> Packed:
    """Put the rows of a segment into slices; neighbours there are nearly of a length, so that few zeros are added."""
    counts = np.diff(packed.starts).reshape(-1, packed.segment)
    slices = math.ceil(packed.segment / side)
    lengths = np.zeros((len(counts), slices * side), np.int64)
    lengths[:, : packed.segment] = counts
    starts = np.zeros(len(counts) * slices + 1, np.int32)
    np.cumsum(lengths.reshape(-1, side).max(axis=1) * side, out=starts[1:])
    cell = np.repeat(np.arange(counts.size), counts.reshape(-1))
    within, row = np.arange(len(cell)) - packed.starts[cell], cell % packed.segment
    target = starts[cell // packed.segment * slices + row // side] + within * side + row % side
    places, values = (_empty(int(starts[-1]), array.dtype.type) for array in (packed.places, packed.values))
    for array, source in ((places, packed.places), (values, packed.values)):
        array.fill(0)
        array[target] = source
    return replace(packed, starts=starts, places=places, values=values, side=side)


def _with_codes(packed: Packed) -> Packed:
    """Replace values by codes and a table of at most 256 of them, if there are no more."""
    table, codes = np.unique(packed.values, return_inverse=True)
    if len(table) > 256:
        return packed
    worth = np.zeros(256, np.float32)
    worth[: len(table)] = table
    return replace(packed, values=worth, codes=codes.astype(np.uint8).ravel())


def _empty(size: int, dtype: type) -> Array:
    """Return an array, in huge pages if it is large: with small ones a product waits for address translation, too."""
    nbytes = size * np.dtype(dtype).itemsize
    if nbytes < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, dtype)
    memory = mmap.mmap(-1, (nbytes // _HUGE_PAGE + 2) * _HUGE_PAGE)
    with contextlib.suppress(OSError):  # advice only
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE
    return np.frombuffer(memory, dtype, size, start)
