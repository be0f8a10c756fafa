"""A tensor as a matrix of integer levels, 0 where a weight was pruned, and the value of each level.

Bits count, not numbers: a tensor comes back with the same bit patterns, −0.0 and NaN payloads included. "Zero" is the
pattern without a bit; −0.0 is a value like any other. Levels follow the order of the values: −k … −1 for those with
the sign bit, 1 … m for the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.encode.codecs.bounds import MOST_LEVELS, Matrix, Places, empty_places
from secateur.encode.errors import FormatError

Array = npt.NDArray[Any]

_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 17  # elements worked on at a time
_FLOATS = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7, torch.float64: 52}  # bits of the mantissa


class Values(IntEnum):
    """How a record gives the values of its levels; the numbers are those in files."""

    RAW = 0  # no levels: the tensor's bytes
    STEP = 1  # level · step, step in float32
    HALF_STEP = 2  # level · step, step in float16
    CODEBOOK = 3  # one value of the tensor's dtype per level
    HALF_CODEBOOK = 4  # one float16 per level
    BITS = 5  # levels 0 and 1 say where values are; the values follow, byte plane by byte plane
    INTEGERS = 6  # the level is the value
    ALIAS = 7  # the values of an earlier tensor


class Levels(NamedTuple):
    """Levels of a tensor and their values: `table` holds a step, a codebook or nothing, as bytes.

    Most weights are zero: the others are listed, with their places in the flat tensor.
    """

    places: Places
    kept: npt.NDArray[np.int32]
    shape: tuple[int, ...]
    kind: Values
    table: bytes
    negatives: int
    positives: int

    @property
    def matrix(self) -> Matrix:
        """All levels, zeros included."""
        flat = np.zeros(math.prod(self.shape), np.int32)
        flat[self.places] = self.kept
        return flat.reshape(view_2d(self.shape))


def view_2d(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of a tensor's level matrix: the first dimension by the rest; a vector is one row."""
    if len(shape) < 2:
        return 1, int(np.prod(shape, dtype=np.int64))
    return shape[0], int(np.prod(shape[1:], dtype=np.int64))


def to_bits(tensor: Tensor) -> Array:
    """Return the bit patterns of a tensor, flat, as unsigned integers of its width."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.dtype.itemsize > 8:
        flat = torch.view_as_real(flat).reshape(-1)
    bits: Array = flat.view(_SAME_WIDTH[flat.dtype.itemsize]).numpy().view(_UNSIGNED[flat.dtype.itemsize])
    return bits


def from_bits(bits: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor with these bit patterns, in memory of its own."""
    if dtype == torch.bool and bits.size and bits.max() > 1:
        raise FormatError("a truth value is neither 0 nor 1", offset=0)
    width = bits.dtype.itemsize
    signed = bits.view(f"<i{width}" if width > 1 else "u1")
    if not signed.flags.writeable:
        signed = signed.copy()
    return torch.from_numpy(signed).view(dtype).reshape(shape)


def unsigned(dtype: torch.dtype) -> str:
    """Name NumPy's unsigned integer of a dtype's width."""
    return _UNSIGNED[min(dtype.itemsize, 8)]


def find_values(bits: Array) -> tuple[Places, Array]:
    """Return where flat bit patterns are not zero, and those patterns; piece by piece, to save memory."""
    count = int(np.count_nonzero(bits))
    places = empty_places(count, bits.size)
    values = np.empty(count, bits.dtype)
    done = 0
    for start in range(0, bits.size, _CHUNK):
        piece = bits[start : start + _CHUNK]
        found = np.flatnonzero(piece)
        values[done : done + len(found)] = piece[found]
        places[done : done + len(found)] = found + start
        done += len(found)
    return places, values


def find_levels(places: Places, values: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Iterator[Levels]:
    """Yield the levels a tensor can be coded as, none when it has too many distinct values for that.

    `places` and `values` are what `find_values` returns; there must be some.
    """
    if dtype in _FLOATS:
        yield from _levels_of_floats(places, values, dtype, shape)
    elif not (dtype.is_floating_point or dtype.is_complex):
        numbers = values if dtype == torch.bool else values.view(_numpy_integer(dtype))
        lowest, highest = min(int(numbers.min()), 0), max(int(numbers.max()), 0)
        if highest - lowest < MOST_LEVELS:
            yield Levels(places, numbers.astype(np.int32), shape, Values.INTEGERS, b"", -lowest, highest)


def look_up(table: Array, matrix: Matrix) -> Array:
    """Replace levels by their values, in place if they have the same width: touching new memory is the slowest part.

    The order of `table` is that of `check_table`.
    """
    levels = matrix.reshape(-1)
    in_place = table.itemsize == levels.itemsize and levels.flags.writeable
    values = levels.view(table.dtype) if in_place else np.empty(len(levels), table.dtype)
    for start in range(0, len(levels), _CHUNK):
        values[start : start + _CHUNK] = table.take(levels[start : start + _CHUNK])
    return values


def check_table(table: bytes, kind: Values, dtype: torch.dtype, negatives: int, positives: int) -> Array:
    """Return the bit pattern of every level, in the order 0, 1 … m, −k … −1, which Python's indices understand."""
    if kind == Values.INTEGERS:
        return _integer_table(dtype, negatives, positives)
    if kind in (Values.STEP, Values.HALF_STEP):
        return _step_table(table, kind, dtype, negatives, positives)
    stored = torch.float16 if kind == Values.HALF_CODEBOOK else dtype
    bits = np.frombuffer(table, unsigned(stored))
    sign = 1 << 8 * bits.dtype.itemsize - 1
    magnitudes = (bits & (sign - 1)).astype(np.uint64)
    falls = (magnitudes[:negatives][1:] < magnitudes[:negatives][:-1]).all()
    rises = (magnitudes[negatives:][1:] > magnitudes[negatives:][:-1]).all()
    signs = ((bits >= sign) == (np.arange(len(bits)) < negatives)).all()
    if not (falls and rises and signs) or (positives and magnitudes[negatives] == 0):
        raise FormatError("the codebook is not in the order of its values", offset=0)
    values = _to_float64(bits, stored)
    if not np.isfinite(values).all():
        raise FormatError("the codebook holds a value that is not finite", offset=0)
    if kind == Values.HALF_CODEBOOK:
        bits = values.astype(np.float64 if dtype == torch.float64 else np.float32).view(unsigned(dtype))
    return np.concatenate([np.zeros(1, bits.dtype), bits[negatives:], bits[:negatives]])


def table_bytes(kind: Values, dtype: torch.dtype, negatives: int, positives: int) -> int:
    """Return how many bytes of a stream are its step or codebook."""
    if kind in (Values.STEP, Values.HALF_STEP):
        return 4 if kind == Values.STEP else 2
    if kind == Values.CODEBOOK:
        return (negatives + positives) * dtype.itemsize
    return (negatives + positives) * 2 if kind == Values.HALF_CODEBOOK else 0


def fits(kind: Values, dtype: torch.dtype) -> bool:
    """Return whether tensors of this dtype can have values of this kind."""
    if kind in (Values.STEP, Values.HALF_STEP):
        return dtype in (torch.float32, torch.float16, torch.bfloat16)
    if kind == Values.CODEBOOK:
        return dtype in _FLOATS
    if kind == Values.HALF_CODEBOOK:
        return dtype in (torch.float32, torch.float64)
    if kind == Values.BITS:
        return dtype.itemsize <= 8  # complex128 is two patterns
    return kind != Values.INTEGERS or not (dtype.is_floating_point or dtype.is_complex)


def _levels_of_floats(places: Places, bits: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Iterator[Levels]:
    ranked = _rank(bits)
    if ranked is None:
        return
    distinct, kept = ranked
    negatives = int(np.searchsorted(distinct, 0))
    codebook = _bits_of_keys(distinct, bits.dtype)
    values = _to_float64(codebook, dtype)
    if not np.isfinite(values).all():
        return
    kind, table = _smallest_codebook(codebook, values, dtype)
    kept -= negatives
    kept += kept >= 0  # level 0 means zero
    yield Levels(places, kept, shape, kind, table, negatives, len(distinct) - negatives)
    found = None if dtype == torch.float64 or len(table) <= 2 else _find_step(values, codebook, dtype)
    if found is not None:
        kind, step, multiples = found
        by_level = np.concatenate([[0], multiples[negatives:], multiples[:negatives]]).astype(np.int32)
        lowest, highest = max(-int(multiples.min()), 0), max(int(multiples.max()), 0)
        yield Levels(places, by_level[kept], shape, kind, step, lowest, highest)


def _rank(bits: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None:
    """Return the keys of the distinct values in order and the rank of every value, unless there are too many."""
    # A quantised tensor shows all of its few values in a sample, and sorting is what takes time.
    distinct = np.unique(_keys(bits[:: max(len(bits) // 4096, 1)]))
    ranks = _ranks_among(distinct, bits)
    if ranks is None:
        for start in range(0, len(bits), _CHUNK):
            distinct = np.union1d(distinct, _keys(bits[start : start + _CHUNK]))
            if len(distinct) >= MOST_LEVELS:
                return None
        ranks = _ranks_among(distinct, bits)
    return None if ranks is None or len(distinct) >= MOST_LEVELS else (distinct, ranks)


def _ranks_among(distinct: npt.NDArray[np.int64], bits: Array) -> npt.NDArray[np.int32] | None:
    """Return where each value is among `distinct` keys, or None if one is not."""
    ranks = np.empty(len(bits), np.int32)
    for start in range(0, len(bits), _CHUNK):
        keys = _keys(bits[start : start + _CHUNK])
        nearest = np.minimum(np.searchsorted(distinct, keys), len(distinct) - 1)
        if not (distinct[nearest] == keys).all():
            return None
        ranks[start : start + _CHUNK] = nearest
    return ranks


def _keys(bits: Array) -> npt.NDArray[np.int64]:
    """Map bit patterns of floats to integers in the order of the values; −0.0 becomes −1, just below 0."""
    sign = bits.dtype.type(1 << 8 * bits.dtype.itemsize - 1)
    magnitude = (bits & (sign - bits.dtype.type(1))).astype(np.int64)
    keys: npt.NDArray[np.int64] = np.where(bits >= sign, -1 - magnitude, magnitude)
    return keys


def _bits_of_keys(keys: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> Array:
    sign = 1 << 8 * dtype.itemsize - 1
    magnitude = np.where(keys < 0, -1 - keys, keys).astype(dtype)
    return np.where(keys < 0, magnitude | dtype.type(sign), magnitude).astype(dtype)


def _to_float64(bits: Array, dtype: torch.dtype) -> npt.NDArray[np.float64]:
    if dtype == torch.bfloat16:
        bits = bits.astype("<u4") << np.uint32(16)
    with np.errstate(invalid="ignore"):  # signalling NaN: the callers check for it
        values: npt.NDArray[np.float64] = bits.view(f"<f{bits.dtype.itemsize}").astype(np.float64)
    return values


def _from_float32(values: npt.NDArray[np.float32], dtype: torch.dtype) -> Array:
    """Round float32 to `dtype`, to even, and return bit patterns."""
    return to_bits(torch.from_numpy(values).to(dtype))


def _smallest_codebook(codebook: Array, values: npt.NDArray[np.float64], dtype: torch.dtype) -> tuple[Values, bytes]:
    if fits(Values.HALF_CODEBOOK, dtype):
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if (halves.astype(np.float64) == values).all():
            return Values.HALF_CODEBOOK, halves.astype("<f2").tobytes()
    return Values.CODEBOOK, codebook.tobytes()


def _find_step(
    values: npt.NDArray[np.float64], codebook: Array, dtype: torch.dtype
) -> tuple[Values, bytes, npt.NDArray[np.int64]] | None:
    """Look for a step with value = round(multiple · step) for all values, trying the smallest as its 1- to 64-fold."""
    magnitudes = np.abs(values)
    least = magnitudes.min()
    if least == 0:
        return None
    # What rounds to a value lies within half a unit of its last place; the product in float32 was rounded before.
    reach = 2.0 ** (np.frexp(magnitudes)[1] - 2 - _FLOATS[dtype]) + magnitudes * 2.0**-25
    for times in range(1, 65):
        multiples = np.rint(values * (times / least))
        if np.abs(multiples).max() >= MOST_LEVELS:
            return None
        low = ((magnitudes - reach) / np.abs(multiples)).max()
        high = ((magnitudes + reach) / np.abs(multiples)).min()
        if low > high or multiples.max(initial=0) - multiples.min(initial=0) >= MOST_LEVELS:
            continue
        whole = multiples.astype(np.int64)
        middle = np.float32((low + high) / 2)
        around = [np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(np.inf))]
        with np.errstate(over="ignore", under="ignore"):
            halves = [np.float16(step) for step in (middle, low, high)]
        for step in [*halves, *around, np.float32(low), np.float32(high)]:
            if 0 < step < np.inf and np.array_equal(_multiply(whole, np.float32(step), dtype), codebook):
                kind = Values.HALF_STEP if isinstance(step, np.float16) else Values.STEP
                return kind, step.tobytes(), whole
    return None


def _multiply(levels: npt.NDArray[np.int64], step: np.float32, dtype: torch.dtype) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return _from_float32(levels.astype(np.float32) * step, dtype)


def _step_table(table: bytes, kind: Values, dtype: torch.dtype, negatives: int, positives: int) -> Array:
    step = np.float32(np.frombuffer(table, "<f4" if kind == Values.STEP else "<f2")[0])
    levels = np.concatenate([np.arange(positives + 1), np.arange(-negatives, 0)])
    if not (np.isfinite(step) and step > 0):
        raise FormatError(f"the step is {step}: it must be positive and finite", offset=0)
    bits = _multiply(levels, step, dtype)
    if not np.isfinite(_to_float64(bits, dtype)).all():
        raise FormatError(f"a level times the step {step} is not finite", offset=0)
    return bits


def _integer_table(dtype: torch.dtype, negatives: int, positives: int) -> Array:
    if dtype == torch.bool:
        lowest, highest = 0, 1
    else:
        lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if -negatives < lowest or positives > highest:
        raise FormatError(f"levels from {-negatives} to {positives} are not {dtype}", offset=0)
    levels = np.concatenate([np.arange(positives + 1), np.arange(-negatives, 0)])
    return levels.astype(f"<i{dtype.itemsize}").view(unsigned(dtype))


def _numpy_integer(dtype: torch.dtype) -> str:
    return f"<{'i' if torch.iinfo(dtype).min < 0 else 'u'}{dtype.itemsize}"
