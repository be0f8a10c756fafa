"""Encode one tensor as a stream, and back: the values of its levels, then the levels by a codec; or plain bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from secateur.encode.codecs import CODECS, RAW, Codec, by_number, context, rans, smallest
from secateur.encode.codecs.bounds import Bounds, Matrix, Places, SparseLevels, empty_places
from secateur.encode.errors import FormatError
from secateur.encode.levels import (
    Array,
    Levels,
    Values,
    check_table,
    find_levels,
    find_values,
    from_bits,
    look_up,
    table_bytes,
    to_bits,
    unsigned,
    view_2d,
)
from secateur.encode.varint import Cursor, put_varint

# A byte plane whose entropy is above this share of its bits is stored as it is: no codec would gain anything.
_INCOMPRESSIBLE = 0.99
_MUCH_MEMORY = 80 << 20  # what "context" takes for a vector of 2²⁰ elements


@dataclass(frozen=True)
class Coding:
    """How a tensor is coded: all that a decoder needs in addition to the stream."""

    kind: Values
    codec: int = RAW
    nonzero: int = 0  # unknown for raw bytes
    negatives: int = 0
    positives: int = 0

    def bounds(self, shape: tuple[int, ...]) -> Bounds:
        """Return what a codec knows about the levels beforehand."""
        return Bounds(*view_2d(shape), self.nonzero, -self.negatives, self.positives)


ZEROS = Coding(Values.CODEBOOK)  # a tensor without values needs no stream


def encode_tensor(tensor: Tensor, codecs: tuple[Codec, ...]) -> tuple[Coding, bytes]:
    """Return the smallest coding of a tensor, and its stream."""
    bits, dtype, shape = to_bits(tensor), tensor.dtype, tuple(tensor.shape)
    places, values = find_values(bits)
    nonzero = len(places)
    if not nonzero:
        return ZEROS, b""
    found: list[tuple[Coding, bytes]] = []
    if codecs and bits.size == math.prod(shape):
        few_levels = False
        for levels in find_levels(places, values, dtype, shape):
            coding, stream = _code_levels(levels, codecs)
            found.append((coding, stream))
            # Where one value is very frequent, distinct values are few, but their table may be much of the stream.
            distinct = levels.negatives + levels.positives
            few_levels = 4 * distinct <= nonzero and 4 * len(levels.table) <= len(stream)
        if not few_levels:
            found.append(_code_bits(places, values, shape, codecs))
    best = min(found, key=lambda entry: len(entry[1]), default=None)
    if best is None or bits.nbytes <= len(best[1]):
        return Coding(Values.RAW), bits.tobytes()
    return best


def decode_tensor(stream: memoryview, coding: Coding, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor; offsets of errors count from the start of the stream."""
    if coding.kind == Values.RAW:
        return from_bits(np.frombuffer(stream, unsigned(dtype)), dtype, shape)
    if coding.nonzero == 0:
        return torch.zeros(shape, dtype=dtype)
    if coding.kind == Values.BITS:
        places, values = _decode_bits(stream, coding, dtype, shape)
        if places is None:
            return from_bits(values, dtype, shape)
        bits = np.zeros(math.prod(shape), values.dtype)
        bits[places] = values
        return from_bits(bits, dtype, shape)
    table, stream, start = _take_table(stream, coding, dtype)
    bounds = coding.bounds(shape)
    if by_number(coding.codec).decode is rans.decode:  # it needs no matrix in between
        with _offsets_from(start):
            return from_bits(rans.decode_values(stream, bounds, table), dtype, shape)
    return from_bits(look_up(table, _decode_levels(stream, start, coding.codec, bounds)), dtype, shape)


def decode_sparse(
    stream: memoryview, coding: Coding, dtype: torch.dtype, shape: tuple[int, ...]
) -> tuple[Places, Array]:
    """Return the places of a tensor's non-zeros, in rising order, and their bit patterns, without a dense tensor.

    This does not decode raw elements: use `find_raw`.
    """
    size = math.prod(shape)
    if coding.nonzero == 0:
        return empty_places(0, size), np.empty(0, unsigned(dtype))
    if coding.kind == Values.BITS:
        places, values = _decode_bits(stream, coding, dtype, shape)
        if places is None:
            places = empty_places(size, size)
            places[:] = np.arange(size, dtype=places.dtype)
        return places, values
    table, stream, start = _take_table(stream, coding, dtype)
    places, levels = _decode_sparse_levels(stream, start, coding.codec, coding.bounds(shape))
    values = look_up(table, levels)
    if not values.all():  # a level below half of the smallest float, which our encoder never writes
        places, values = places[values != 0], values[values != 0]
    return places, values


def _take_table(stream: memoryview, coding: Coding, dtype: torch.dtype) -> tuple[Array, memoryview, int]:
    """Return the value of every level, the stream of levels, and where it begins in the whole stream."""
    cursor = Cursor(stream)
    size = table_bytes(coding.kind, dtype, coding.negatives, coding.positives)
    table = check_table(bytes(cursor.take(size)), coding.kind, dtype, coding.negatives, coding.positives)
    return table, cursor.take(cursor.left), size


def _code_levels(levels: Levels, codecs: tuple[Codec, ...]) -> tuple[Coding, bytes]:
    coding = Coding(levels.kind, RAW, len(levels.places), levels.negatives, levels.positives)
    codec, stream = _smallest(levels, coding.bounds(levels.shape), codecs)
    return replace(coding, codec=codec), levels.table + stream


def _smallest(levels: Levels, bounds: Bounds, codecs: tuple[Codec, ...]) -> tuple[int, bytes]:
    if _is_long(bounds):
        codecs = _quick(codecs)
    if [codec.encode for codec in codecs] == [rans.encode]:  # it needs no matrix
        return codecs[0].number, rans.encode_sparse(levels.places, levels.kept, bounds)
    return smallest(levels.matrix, bounds, codecs)


def _is_long(bounds: Bounds) -> bool:
    """Return whether "context" would need much memory, and more than the matrix itself."""
    return context.working_bytes(bounds.rows, bounds.columns) > max(4 * bounds.size, _MUCH_MEMORY)


def _quick(codecs: tuple[Codec, ...]) -> tuple[Codec, ...]:
    """Return `codecs` without the slow one, or all quick ones where it was the only one."""
    return tuple(c for c in codecs if c.name != "context") or tuple(c for c in CODECS if c.name != "context")


def _decode_levels(stream: memoryview, start: int, codec: int, bounds: Bounds) -> Matrix:
    with _offsets_from(start):
        return by_number(codec).decode(stream, bounds)


def _decode_sparse_levels(stream: memoryview, start: int, codec: int, bounds: Bounds) -> SparseLevels:
    with _offsets_from(start):
        return by_number(codec).decode_sparse(stream, bounds)


@contextmanager
def _offsets_from(start: int) -> Iterator[None]:
    """Make the offsets of errors inside count from `start` bytes before."""
    try:
        yield
    except FormatError as error:
        raise FormatError(error.message, offset=start + (error.offset or 0)) from error


def _code_bits(
    places: Places, values: Array, shape: tuple[int, ...], codecs: tuple[Codec, ...]
) -> tuple[Coding, bytes]:
    """Code the places of the values, unless there are no zeros, then the values, most significant bytes first."""
    out = bytearray()
    codec, nonzero = RAW, len(places)
    if nonzero < math.prod(shape):
        marks = Levels(places, np.ones(nonzero, np.int32), shape, Values.BITS, b"", 0, 1)
        codec, stream = _smallest(marks, Bounds(*view_2d(shape), nonzero, 0, 1), codecs)
        put_varint(out, len(stream))
        out += stream
    # One row of bytes has no neighbours above: the slow codec gains nothing, even if the user asked for it.
    quick = _quick(codecs)
    for plane in reversed(values.view("u1").reshape(nonzero, -1).T):
        _put_plane(out, plane, quick)
    return Coding(Values.BITS, codec, nonzero, 0, 1), bytes(out)


def _put_plane(out: bytearray, plane: Array, codecs: tuple[Codec, ...]) -> None:
    counts = np.bincount(plane, minlength=256)
    share = counts[counts > 0] / len(plane)
    number, stream = RAW, plane.tobytes()
    if -(share * np.log2(share)).sum() < 8 * _INCOMPRESSIBLE:
        bounds = Bounds(1, len(plane), len(plane) - int(counts[0]), 0, 255)
        coded = bytearray()
        tried, levels = smallest(plane.astype(np.int32).reshape(1, -1), bounds, codecs)
        put_varint(coded, bounds.nonzero)
        put_varint(coded, len(levels))
        if len(coded) + len(levels) < len(plane):
            number, stream = tried, bytes(coded) + levels
    out.append(number)
    out += stream


def _decode_bits(
    stream: memoryview, coding: Coding, dtype: torch.dtype, shape: tuple[int, ...]
) -> tuple[Places | None, Array]:
    """Return the non-zero bit patterns, and their places unless there are no zeros."""
    cursor = Cursor(stream)
    width = dtype.itemsize
    places: Places | None = None
    if coding.nonzero < math.prod(shape):
        length, start = cursor.varint(), cursor.position
        bounds = Bounds(*view_2d(shape), coding.nonzero, 0, 1)
        places, _ = _decode_sparse_levels(cursor.take(length), start, coding.codec, bounds)
    planes = np.empty((coding.nonzero, width), "u1")
    for plane in reversed(range(width)):
        planes[:, plane] = _take_plane(cursor, coding.nonzero)
    cursor.end()
    values = planes.view(unsigned(dtype)).reshape(-1)
    if not values.all():
        raise cursor.wrong("a value that is announced as none is zero")
    return places, values


def _take_plane(cursor: Cursor, count: int) -> Array:
    codec = cursor.byte()
    if codec == RAW:
        return np.frombuffer(cursor.take(count), "u1")
    if by_number(codec).name == "context":  # its memory was not budgeted, and our encoder never uses it for planes
        raise cursor.wrong("a plane of bytes is coded by a codec for matrices")
    nonzero = cursor.varint()
    if nonzero > count:
        raise cursor.wrong(f"{nonzero:,} of {count:,} bytes are announced")
    length = cursor.varint()
    start = cursor.position
    levels = _decode_levels(cursor.take(length), start, codec, Bounds(1, count, nonzero, 0, 255))
    return levels.reshape(-1)
