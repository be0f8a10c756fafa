"""One tensor as a stream and back: what its levels are worth, then the levels by a codec, or else plain bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from secateur.encode.bounds import Bounds, FormatError, Matrix
from secateur.encode.codecs import CODECS, RAW, Codec, by_number, smallest
from secateur.encode.levels import (
    Array,
    Levels,
    Values,
    check_table,
    find_levels,
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


@dataclass(frozen=True)
class Coding:
    """How a tensor is coded: with a stream, all that a decoder has to know."""

    kind: Values
    codec: int = RAW
    nonzero: int = 0  # not known of raw bytes
    negatives: int = 0
    positives: int = 0

    def bounds(self, shape: tuple[int, ...]) -> Bounds:
        """Return what a codec is told of the levels."""
        return Bounds(*view_2d(shape), self.nonzero, -self.negatives, self.positives)


ZEROS = Coding(Values.CODEBOOK)  # a tensor without values needs no stream


def encode_tensor(tensor: Tensor, codecs: tuple[Codec, ...]) -> tuple[Coding, bytes]:
    """Return the smallest coding of a tensor, and its stream."""
    bits, dtype, shape = to_bits(tensor), tensor.dtype, tuple(tensor.shape)
    nonzero = int(np.count_nonzero(bits))
    if not nonzero:
        return ZEROS, b""
    found: list[tuple[Coding, bytes]] = []
    if codecs and bits.size == math.prod(shape):
        distinct = 0
        for levels in find_levels(bits, dtype, shape):
            distinct = levels.negatives + levels.positives
            found.append(_code_levels(levels, nonzero, codecs))
        if distinct == 0 or 4 * distinct > nonzero:  # no levels, or the codebook is a good part of the whole
            found.append(_code_bits(bits, nonzero, shape, codecs))
    best = min(found, key=lambda entry: len(entry[1]), default=None)
    if best is None or bits.nbytes <= len(best[1]):
        return Coding(Values.RAW), bits.tobytes()
    return best


def decode_tensor(stream: memoryview, coding: Coding, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Give a tensor back; offsets of errors count from the start of the stream."""
    if coding.kind == Values.RAW:
        return from_bits(np.frombuffer(stream, unsigned(dtype)), dtype, shape)
    if coding.nonzero == 0:
        return torch.zeros(shape, dtype=dtype)
    if coding.kind == Values.BITS:
        return from_bits(_decode_bits(stream, coding, dtype, shape), dtype, shape)
    cursor = Cursor(stream)
    size = table_bytes(coding.kind, dtype, coding.negatives, coding.positives)
    table = check_table(bytes(cursor.take(size)), coding.kind, dtype, coding.negatives, coding.positives)
    matrix = _decode_levels(cursor.take(cursor.left), size, coding.codec, coding.bounds(shape))
    return from_bits(look_up(table, matrix), dtype, shape)


def _code_levels(levels: Levels, nonzero: int, codecs: tuple[Codec, ...]) -> tuple[Coding, bytes]:
    coding = Coding(levels.kind, RAW, nonzero, levels.negatives, levels.positives)
    codec, stream = smallest(levels.matrix, coding.bounds(levels.matrix.shape), codecs)
    return replace(coding, codec=codec), levels.table + stream


def _decode_levels(stream: memoryview, start: int, codec: int, bounds: Bounds) -> Matrix:
    try:
        return by_number(codec).decode(stream, bounds)
    except FormatError as error:
        raise FormatError(error.message, offset=start + (error.offset or 0)) from error


def _code_bits(bits: Array, nonzero: int, shape: tuple[int, ...], codecs: tuple[Codec, ...]) -> tuple[Coding, bytes]:
    """Code where the values are, unless they are everywhere, and then the values, most significant bytes first."""
    out = bytearray()
    codec = RAW
    if nonzero < bits.size:
        places = (bits != 0).astype(np.int32).reshape(view_2d(shape))
        codec, stream = smallest(places, Bounds(*view_2d(shape), nonzero, 0, 1), codecs)
        put_varint(out, len(stream))
        out += stream
    values = bits[bits != 0]
    # One row of bytes has no neighbours above: the slow codec has nothing to add, not even where it was asked for.
    quick = [codec for codec in codecs if codec.name != "context"] or [c for c in CODECS if c.name != "context"]
    for plane in reversed(values.view("u1").reshape(nonzero, -1).T):
        _put_plane(out, plane, tuple(quick))
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


def _decode_bits(stream: memoryview, coding: Coding, dtype: torch.dtype, shape: tuple[int, ...]) -> Array:
    cursor = Cursor(stream)
    size, width = math.prod(shape), dtype.itemsize
    places: Array | None = None
    if coding.nonzero < size:
        length, start = cursor.varint(), cursor.position
        bounds = Bounds(*view_2d(shape), coding.nonzero, 0, 1)
        places = np.flatnonzero(_decode_levels(cursor.take(length), start, coding.codec, bounds))
    planes = np.empty((coding.nonzero, width), "u1")
    for plane in reversed(range(width)):
        planes[:, plane] = _take_plane(cursor, coding.nonzero)
    cursor.end()
    values = planes.view(unsigned(dtype)).reshape(-1)
    if not values.all():
        raise cursor.wrong("a value that is announced as none is zero")
    if places is None:
        return values
    bits = np.zeros(size, values.dtype)
    bits[places] = values
    return bits


def _take_plane(cursor: Cursor, count: int) -> Array:
    codec = cursor.byte()
    if codec == RAW:
        return np.frombuffer(cursor.take(count), "u1")
    nonzero = cursor.varint()
    if nonzero > count:
        raise cursor.wrong(f"{nonzero:,} of {count:,} bytes are announced")
    length = cursor.varint()
    start = cursor.position
    levels = _decode_levels(cursor.take(length), start, codec, Bounds(1, count, nonzero, 0, 255))
    return levels.reshape(-1)
