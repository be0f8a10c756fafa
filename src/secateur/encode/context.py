"""Codec "context", the smallest: binary decisions, each predicted by several adaptive probabilities at once.

A matrix is read row by row. For every level: is it zero? If not: its sign, then its size. Each of these is one or more
binary decisions, and each decision is predicted from several contexts i. A context has a probability pᵢ, the share of
ones it has seen; the log odds sᵢ of all of them are added with weights that are learned, too (logistic mixing):

    P(y = 1) = σ( Σ wᵢ·sᵢ ),  sᵢ = log(pᵢ / (1 − pᵢ)),     then  wᵢ += η·(y − P)·sᵢ,  pᵢ += (y − pᵢ) / (nᵢ + 3/2)

`binary.py` turns decision and P into bytes. What "is it zero?" is predicted from, besides the share of non-zeros among
the levels that are left (their number is known beforehand; where all or none are left, nothing is coded):

    column, row     the non-zeros of this column and of this row so far; units and inputs differ most of all
    places          how dense column and row are beside the whole matrix, and whether the last level was zero
    near            which of nine neighbours are zero: two to the left, four above, three a stride away
    count           how many of those, and the column's density
    smooth          the density of the columns around, of the column and of the row
    window          the non-zeros close by in this row, and the density of the columns around

A stride makes neighbours of columns that lie above each other in an image (28 in a layer that sees 28 × 28 pixels).
The encoder tries both directions and a few strides and keeps what is smallest.

    stream = 2·stride + transposed (varint), then the bytes of the binary coder; empty if all levels are zero

All arithmetic is in integers and the tables come from them, so that every machine writes the same bytes. Native code
(native/context.cpp) does the work where it was built; the class below is the same model, and its definition.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from secateur import native
from secateur.encode.binary import BinaryDecoder, BinaryEncoder
from secateur.encode.bounds import Bounds, FormatError, Matrix, Places, SparseLevels, empty_places
from secateur.encode.varint import Cursor, put_varint

_SHORTEST_STRIDE, _LONGEST_STRIDE = 4, 256
_STRIDES_TRIED = 3
_KERNELS = (5, 7)  # widths of filters whose rows are worth a try; those of 3 are too short
_TRIAL_CELLS = 1 << 20  # larger matrices are judged by as many of their first levels
_COLUMN_BYTES = 80  # what the model keeps of a column: 45, and with a stride as long as the row 28 of padding


def working_bytes(rows: int, columns: int) -> int:
    """Say how much memory coding takes beside the matrix, at most: the stream tells in which direction it goes."""
    return _COLUMN_BYTES * max(rows, columns)


def encode(levels: Matrix, bounds: Bounds) -> bytes:
    """Code a level matrix in the direction and with the stride that make it smallest."""
    if bounds.nonzero == 0:
        return b""
    trial = levels[: max(1, _TRIAL_CELLS // max(1, bounds.columns))]
    whole = trial.shape == levels.shape
    transposed, stride, best = False, 0, _stream(trial, bounds, stride=0)
    for other_way, other_stride in ((True, 0), *((False, each) for each in _strides(trial))):
        stream = _stream(trial.T if other_way else trial, bounds, stride=other_stride)
        if len(stream) < len(best):
            transposed, stride, best = other_way, other_stride, stream
    out = bytearray()
    put_varint(out, 2 * stride + transposed)
    return bytes(out) + (best if whole else _stream(levels.T if transposed else levels, bounds, stride=stride))


def decode(stream: memoryview, bounds: Bounds) -> Matrix:
    """Give back the level matrix."""
    if bounds.nonzero == 0:
        Cursor(stream).end()
        return np.zeros((bounds.rows, bounds.columns), np.int32)
    body, turned, stride, transposed = _read_head(stream, bounds)
    levels = np.empty((turned.rows, turned.columns), np.int32)
    _require_end((_native_decode if _native_routines() else _twin_decode)(body, turned, stride, levels), stream)
    return np.ascontiguousarray(levels.T) if transposed else levels


def decode_sparse(stream: memoryview, bounds: Bounds) -> SparseLevels:
    """Give back the levels that are not zero, with their places; two rows are kept, or the only one, of the matrix."""
    places, levels = empty_places(bounds.nonzero, bounds.size), np.empty(bounds.nonzero, np.int32)
    if bounds.nonzero == 0:
        Cursor(stream).end()
        return places, levels
    body, turned, stride, transposed = _read_head(stream, bounds)
    _require_end((_native_list if _native_routines() else _twin_list)(body, turned, stride, places, levels), stream)
    if not transposed:
        return places, levels
    # Stable, since the places of a coded row rise already: there are few runs to merge.
    turned_places = places % places.dtype.type(turned.columns)
    turned_places *= turned.rows
    places //= turned.columns
    turned_places += places
    order = np.argsort(turned_places, kind="stable")
    np.take(turned_places, order, out=places)
    return places, levels[order]


def _read_head(stream: memoryview, bounds: Bounds) -> tuple[memoryview, Bounds, int, bool]:
    """Return the bytes of the binary coder, the bounds of the matrix as it was coded, its stride, and if transposed."""
    cursor = Cursor(stream)
    stride, transposed = divmod(cursor.varint(), 2)
    rows, columns = (bounds.columns, bounds.rows) if transposed else (bounds.rows, bounds.columns)
    if stride and not _SHORTEST_STRIDE <= stride < columns:
        raise cursor.wrong(f"a stride of {stride:,} does not fit {columns:,} columns")
    if bounds.smallest == bounds.largest == 0:
        raise cursor.wrong(f"{bounds.nonzero:,} levels are not zero, and none may be")
    turned = Bounds(rows, columns, bounds.nonzero, bounds.smallest, bounds.largest)
    return cursor.take(cursor.left), turned, stride, bool(transposed)


def _require_end(is_sound: bool, stream: memoryview) -> None:
    if not is_sound:
        raise FormatError("the stream ends too early or too late", offset=len(stream))


def _strides(levels: Matrix) -> list[int]:
    """Return the distances at which two levels of a row are most often both non-zero, and sides of possible squares."""
    marks = levels != 0
    columns = marks.shape[1]
    lags = range(_SHORTEST_STRIDE - 1, min(_LONGEST_STRIDE, columns // 2) + 1)
    # In whole numbers, so that every machine makes the same choice.
    pairs = [int(np.count_nonzero(marks[:, lag:] & marks[:, :-lag])) * columns // (columns - lag) for lag in lags]
    peaks = [i for i in range(1, len(pairs) - 1) if pairs[i - 1] < pairs[i] >= pairs[i + 1]]
    found = [lags[i] for i in sorted(peaks, key=lambda i: -pairs[i])[:_STRIDES_TRIED]]
    side = math.isqrt(columns)
    sides = [side] if side**2 == columns and side >= _SHORTEST_STRIDE else []
    sides += [kernel for kernel in _KERNELS if columns % kernel**2 == 0 and kernel < columns]
    return list(dict.fromkeys([*found, *sides]))


def _stream(levels: Matrix, bounds: Bounds, stride: int) -> bytes:
    levels = np.ascontiguousarray(levels)
    rows, columns = levels.shape
    own = Bounds(rows, columns, int(np.count_nonzero(levels)), bounds.smallest, bounds.largest)
    return (_native_encode if _native_routines() else _twin_encode)(levels, own, stride)


# The native coder, and the twin that takes its place.


@cache
def _native_routines() -> tuple[native.Routine, native.Routine, native.Routine] | None:
    pointer, size, level = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    bounds = (size, size, size, level, level, size)
    encode = native.routine("secateur_context_encode", size, pointer, *bounds, pointer, size)
    decode = native.routine("secateur_context_decode", size, pointer, size, *bounds, pointer)
    sparse = native.routine("secateur_context_list", size, pointer, size, *bounds, pointer, level, pointer)
    return None if encode is None or decode is None or sparse is None else (encode, decode, sparse)


def _native_encode(levels: Matrix, bounds: Bounds, stride: int) -> bytes:
    routines = _native_routines()
    assert routines is not None
    capacity = 64 + bounds.size // 8 + 4 * bounds.nonzero
    while True:
        out = np.empty(capacity, np.uint8)
        length = routines[0](levels.ctypes.data, *_plain(bounds), stride, out.ctypes.data, capacity)
        if length >= 0:
            return out[:length].tobytes()
        if length == -2:
            raise MemoryError("no memory for coding a tensor")
        capacity *= 2


def _native_decode(body: memoryview, bounds: Bounds, stride: int, levels: Matrix) -> bool:
    routines = _native_routines()
    assert routines is not None
    content = np.frombuffer(body, np.uint8)
    outcome = routines[1](content.ctypes.data, len(content), *_plain(bounds), stride, levels.ctypes.data)
    if outcome == -2:
        raise MemoryError("no memory for decoding a tensor")
    return bool(outcome == 0)


def _native_list(body: memoryview, bounds: Bounds, stride: int, places: Places, levels: npt.NDArray[np.int32]) -> bool:
    routines = _native_routines()
    assert routines is not None
    content = np.frombuffer(body, np.uint8)
    into = places.ctypes.data, places.itemsize == 8, levels.ctypes.data
    outcome = routines[2](content.ctypes.data, len(content), *_plain(bounds), stride, *into)
    if outcome == -2:
        raise MemoryError("no memory for decoding a tensor")
    return bool(outcome == 0)


def _plain(bounds: Bounds) -> tuple[int, int, int, int, int]:
    return bounds.rows, bounds.columns, bounds.nonzero, bounds.smallest, bounds.largest


def _twin_encode(levels: Matrix, bounds: Bounds, stride: int) -> bytes:
    coder = BinaryEncoder()
    for _ in _Model(coder, bounds, stride).run(levels.reshape(-1).tolist()):
        pass
    return coder.finish()


def _twin_decode(body: memoryview, bounds: Bounds, stride: int, levels: Matrix) -> bool:
    coder = BinaryDecoder(body)
    levels.fill(0)
    for place, level in _Model(coder, bounds, stride).run(None):
        levels.flat[place] = level
    return coder.consumed_exactly


def _twin_list(body: memoryview, bounds: Bounds, stride: int, places: Places, levels: npt.NDArray[np.int32]) -> bool:
    coder = BinaryDecoder(body)
    for index, found in enumerate(_Model(coder, bounds, stride).run(None)):
        places[index], levels[index] = found
    return coder.consumed_exactly


class _Coder(Protocol):
    def code(self, decision: int, probability: int, /) -> int: ...


_LARGEST_LOGIT = 2815  # 11 nats, in units of 1/256
_CERTAIN = (1 << 22) - 1  # a probability of one
_WEIGHT_BITS, _DOT_BITS = 20, 14  # weights are kept finer than they are used
_LARGEST_WEIGHT = (4 << _WEIGHT_BITS) - 1
_LEARNING_SHIFT = 13
_UNARY_MAX = 16  # more sizes than these are coded by their number of digits first
_REACH = 3  # how far "around" goes
_PLACE_LIMIT, _CONTEXT_LIMIT, _VALUE_LIMIT = 1020, 400, 255
_RATES = [8192 // (2 * n + 3) for n in range(1024)]


@cache
def _tables() -> tuple[list[int], list[int], list[int]]:
    """Return log odds for small and for other probabilities, and σ: from e⁻ˣ by repeated multiplication."""
    one, e = 1 << 32, 1 << 32
    upper = []
    for _ in range(_LARGEST_LOGIT + 1):
        upper.append(((1 << 64) - 1) // (one + e))
        e = e * 4278222805 >> 32  # exp(−1/256)·2³²
    fine = [one - p for p in reversed(upper[1:])] + upper
    fine[_LARGEST_LOGIT] = one - upper[0]
    squash = [min(max(p + 32768 >> 16, 1), 65535) for p in fine]

    def log_odds(shift: int) -> list[int]:
        found, x = [], 0
        for i in range(4096):
            middle = (2 * i + 1 << shift - 1) << 10
            while x < 2 * _LARGEST_LOGIT and fine[x + 1] <= middle:
                x += 1
            found.append(x - _LARGEST_LOGIT)
        return found

    return log_odds(4), log_odds(10), squash


class _Bit:
    """A probability that learns: the mean of what it has seen, an average over the last `limit` later on."""

    __slots__ = ("n", "p")

    def __init__(self, p: int = 1 << 21, n: int = 0) -> None:
        self.p, self.n = p, n

    def learn(self, decision: int, limit: int) -> None:
        mask = _CERTAIN if decision else 0
        other = self.p ^ mask
        other -= (other >> 3) * _RATES[self.n] >> 9
        self.p = other ^ mask
        if self.n < limit:
            self.n += 1


def _bits(count: int, p: int = 1 << 21, n: int = 0) -> list[_Bit]:
    return [_Bit(p, n) for _ in range(count)]


def _weights(*sixteenths: int) -> list[int]:
    return [each << _WEIGHT_BITS - 4 for each in sixteenths]


def _eighths(x: int) -> int:
    """Return 8·log2(x), its fraction linear."""
    e = x.bit_length() - 1
    return e * 8 + ((x >> e - 3 if e >= 3 else x << 3 - e) & 7)


def _found(k: int) -> int:
    return _eighths(4 * k + 1 << 16)


def _bucket(found: int, expected: int) -> int:
    """Compare (k + 1/4) non-zeros found with (n·density + 1/4) expected, in half octaves."""
    return min(max(found - expected + 22 >> 2, 0), 15)


class _Model:
    """The model of a level matrix, which drives a coder in either direction."""

    def __init__(self, coder: _Coder, bounds: Bounds, stride: int) -> None:
        self._coder, self._bounds, self._stride = coder, bounds, stride
        self._low, self._high, self._squash = _tables()
        even = (1 << 21, 2)
        self._all_sign, self._row_sign = _Bit(*even), _Bit(*even)
        self._column_sign = _bits(bounds.columns, *even)
        self._near_sign, self._beside_sign = _bits(27, *even), _bits(9, *even)
        self._sign_weights = _weights(4, 4, 4, 4, 4)
        self._by_sign, self._by_row = [_bits(2) for _ in range(33)], [_bits(16) for _ in range(33)]
        self._by_column, self._by_near = [_bits(16) for _ in range(33)], [_bits(64) for _ in range(33)]
        self._first_digits = [_bits(4, *even) for _ in range(33)]
        self._later_digits = [_bits(32, *even) for _ in range(33)]
        self._size_weights = [_weights(4, 4, 4, 4) for _ in range(33)]

    def _log_odds(self, p: int) -> int:
        return self._low[p >> 4] if p < 1 << 16 else self._high[p >> 10]

    def _mix(self, decision: int, weights: list[int], bits: Sequence[_Bit], limits: Sequence[int], *given: int) -> int:
        """Code one decision from the probabilities `bits`, and from log odds that are given."""
        odds = [self._log_odds(bit.p) for bit in bits]
        odds += given
        dot = sum((w >> _WEIGHT_BITS - _DOT_BITS) * s for w, s in zip(weights, odds, strict=True)) >> _DOT_BITS
        p = self._squash[min(max(dot, -_LARGEST_LOGIT), _LARGEST_LOGIT) + _LARGEST_LOGIT]
        decision = self._coder.code(decision, p)
        error = (decision << 16) - p
        for i, s in enumerate(odds):
            moved = weights[i] + (s * error + (1 << _LEARNING_SHIFT - 1) >> _LEARNING_SHIFT)
            weights[i] = min(max(moved, -_LARGEST_WEIGHT), _LARGEST_WEIGHT)
        for bit, limit in zip(bits, limits, strict=True):
            bit.learn(decision, limit)
        return decision

    def run(self, given: list[int] | None) -> Iterator[tuple[int, int]]:
        """Code the levels `given`, or read them if there are none; yield place and level of each that is not zero."""
        rows, columns, stride = self._bounds.rows, self._bounds.columns, self._stride
        cells, left = rows * columns, self._bounds.nonzero
        line, line_above = [0] * columns, [0] * columns  # contexts need no other rows
        density = min(max(min((left << 22) // cells, _CERTAIN), 64), _CERTAIN - 64)

        def expected(n: int) -> int:
            return _eighths((n * density >> 4) + (1 << 16))

        # A column or row is believed to be as dense as the matrix until a quarter of a non-zero would have been seen.
        place = (density, min(max((1 << 20) // density, 1), 1000))
        column = _bits(columns, *place)
        by_places, by_near, by_count = _bits(1024, density, 2), _bits(512, density, 2), _bits(480, density, 2)
        by_smooth, by_window = _bits(4096, density, 2), _bits(256, density, 2)
        weights = [_weights(5, 5, 3, 1, 1, 1, 2, -5) for _ in range(3)]
        limits = (_PLACE_LIMIT,) * 2 + (_CONTEXT_LIMIT,) * 5
        pad = 2 * stride + 8
        here, up, up2 = ([0] * (columns + 2 * pad) for _ in range(3))
        before = [0] * (columns + 2 * pad)
        column_count, around_count, column_size = [0] * columns, [0] * columns, [0] * columns
        column_found, around_found = [_found(0)] * columns, [_found(0)] * columns
        area = 48 if stride else 6
        for i in range(rows):
            here, up, up2 = up2, here, up
            line, line_above = [0] * columns, line
            column_expected, around_expected = expected(i), expected(i * area + area // 2)
            row, self._row_sign = _Bit(*place), _Bit(1 << 21, 2)
            row_count = row_size = rest = 0
            row_found = _found(0)
            for j in range(columns):
                at, q = i * columns + j, j + pad
                if j % 64 == 0:
                    rest = self._log_odds(min((left << 22) // cells, _CERTAIN))
                here[q] = 0
                if left == cells:
                    nonzero = 1
                else:
                    l1, l2, u, u2, ul, ur = here[q - 1], here[q - 2], up[q], up2[q], up[q - 1], up[q + 1]
                    s = sl = sr = 0
                    if stride:
                        s, sl, sr = here[q - stride], here[q - stride - 1], here[q - stride + 1]
                        window = before[q] - before[q - 3]
                        for distance in (stride, 2 * stride):
                            window += before[q - distance + 4] - before[q - distance - 3]
                    else:
                        window = before[q] - before[q - 6]
                    beside, over = l1 + l2 + s + sl + sr, u + u2 + ul + ur
                    near = l1 | l2 << 1 | u << 2 | u2 << 3 | ul << 4 | ur << 5 | s << 6 | sl << 7 | sr << 8
                    c, a = _bucket(column_found[j], column_expected), _bucket(around_found[j], around_expected)
                    r = _bucket(row_found, expected(j))
                    bits = (
                        column[j],
                        row,
                        by_places[(c * 16 + r) * 4 + l1 + s],
                        by_near[near],
                        by_count[(beside * 5 + over) * 16 + c],
                        by_smooth[(a * 16 + c) * 16 + r],
                        by_window[min(window, 15) * 16 + a],
                    )
                    known = int(given[at] != 0) if given else 0
                    nonzero = self._mix(known, weights[min((beside + over + 1) // 2, 2)], bits, limits, rest)
                cells -= 1
                here[q] = nonzero
                before[q + 1] = before[q] + nonzero
                if not nonzero:
                    continue
                level = line[j] = self._value(
                    given[at] if given else 0,
                    j,
                    line[j - 1] if j else 0,
                    line_above[j],
                    line[j - stride] if stride and j >= stride else 0,
                    2 * row_size // row_count if row_count else -1,
                    2 * column_size[j] // column_count[j] if column_count[j] else -1,
                )
                yield at, level
                row_size += abs(level)
                column_size[j] += abs(level)
                row_count += 1
                column_count[j] += 1
                row_found, column_found[j] = _found(row_count), _found(column_count[j])
                for k in _around(j, columns, stride):
                    around_count[k] += 1
                    around_found[k] = _found(around_count[k])
                left -= 1
                if left == 0:
                    return

    def _value(self, level: int, j: int, left: int, up: int, above: int, row: int, column: int) -> int:
        """Code a level that is not zero.

        `left`, `up` and `above` are neighbours, the last one a stride away; `row` and `column` are the mean size of
        the row and of the column so far, doubled, or −1.
        """
        negative = self._sign(int(level < 0), j, left, up, above)
        largest = -self._bounds.smallest if negative else self._bounds.largest
        size = abs(level)
        if largest <= _UNARY_MAX:
            means = 15 if row < 0 else min(row, 15), 15 if column < 0 else min(column, 15)
            near = min(7, abs(left) + abs(above)) * 8 + min(7, abs(up))
            value = 1
            while value < largest and self._larger(int(size > value), value, negative, means, near):
                value += 1
        else:
            means = _mean_bucket(row), _mean_bucket(column)
            near = min(7, max(abs(left), abs(above)).bit_length()) * 8 + min(7, abs(up).bit_length())
            count = 1
            while count < largest.bit_length() and self._larger(
                int(size.bit_length() > count), count, negative, means, near
            ):
                count += 1
            value = min(self._digits(size, count), largest)  # only a broken stream goes beyond
        return -value if negative else value

    def _sign(self, negative: int, j: int, left: int, up: int, above: int) -> int:
        if self._bounds.smallest == 0:
            return 0
        if self._bounds.largest == 0:
            return 1
        beside = _side(left) + 3 * _side(above)
        near, beside_sign = self._near_sign[beside * 3 + _side(up)], self._beside_sign[beside]
        bits = (self._all_sign, self._column_sign[j], self._row_sign, near, beside_sign)
        return self._mix(negative, self._sign_weights, bits, (_VALUE_LIMIT,) * 5)

    def _larger(self, decision: int, k: int, negative: int, means: tuple[int, int], near: int) -> int:
        bits = (
            self._by_sign[k][negative],
            self._by_row[k][means[0]],
            self._by_column[k][means[1]],
            self._by_near[k][near],
        )
        return self._mix(decision, self._size_weights[k], bits, (_VALUE_LIMIT,) * 4)

    def _digits(self, size: int, count: int) -> int:
        """Code the binary digits below the first one, each with a probability of its own."""
        value = 1
        for digit in reversed(range(count - 1)):
            bit = self._first_digits[count][value] if value < 4 else self._later_digits[count][digit]
            decision = self._coder.code(size >> digit & 1, min(max(bit.p >> 6, 1), 65535))
            bit.learn(decision, _VALUE_LIMIT)
            value = 2 * value + decision
        return value


def _side(level: int) -> int:
    return 0 if level == 0 else 1 if level < 0 else 2


def _mean_bucket(mean: int) -> int:
    return 15 if mean < 0 else min(15, _eighths(max(mean // 2, 1)) >> 2)


def _around(j: int, columns: int, stride: int) -> Iterator[int]:
    """Yield the columns within reach of column j, in the row of the image and in those above and below."""
    for step in range(-_REACH, _REACH + 1) if stride else (0,):
        middle = j + step * stride
        yield from range(max(0, middle - _REACH), min(columns - 1, middle + _REACH) + 1)
