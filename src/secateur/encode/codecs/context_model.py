"""The model of codec "context": which binary decisions a level matrix is coded as, and how each is predicted.

For every level: is it zero? If not: its sign, then its size. Each of these is one or more binary decisions, and each
decision is predicted from several contexts i. A context has a probability pᵢ, the share of ones it has seen; the log
odds sᵢ of all of them are added with weights that are learned, too (logistic mixing):

    P(y = 1) = σ( Σ wᵢ·sᵢ ),  sᵢ = log(pᵢ / (1 − pᵢ)),     then  wᵢ += η·(y − P)·sᵢ,  pᵢ += (y − pᵢ) / (nᵢ + 3/2)

What "is it zero?" is predicted from, in addition to the share of non-zeros among the levels that are left (their number
is known beforehand; where all or none are left, nothing is coded):

    column, row     the non-zeros of this column and of this row so far; units and inputs differ most of all
    places          how dense column and row are compared with the whole matrix, and whether the last level was zero
    near            which of nine neighbours are zero: two to the left, four above, three a stride away
    count           how many of those, and the column's density
    smooth          the density of the columns around, of the column and of the row
    window          the non-zeros close by in this row, and the density of the columns around

All arithmetic is in integers and the tables come from them, so that every machine writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

from secateur.encode.codecs.bounds import Bounds


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
_ZERO_LIMITS = (_PLACE_LIMIT,) * 2 + (_CONTEXT_LIMIT,) * 5
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


class _Occupancy:
    """Which levels are not zero so far, and the contexts that "is it zero?" is predicted from."""

    def __init__(self, columns: int, stride: int, density: int) -> None:
        self._columns, self._stride, self._density = columns, stride, density
        # A column or row is believed to be as dense as the matrix until a quarter of a non-zero would have been seen.
        self._prior = (density, min(max((1 << 20) // density, 1), 1000))
        self._column = _bits(columns, *self._prior)
        self._by_places, self._by_near = _bits(1024, density, 2), _bits(512, density, 2)
        self._by_count, self._by_smooth = _bits(480, density, 2), _bits(4096, density, 2)
        self._by_window = _bits(256, density, 2)
        self._weights = [_weights(5, 5, 3, 1, 1, 1, 2, -5) for _ in range(3)]
        self._pad = 2 * stride + 8
        self._here, self._up, self._up2 = ([0] * (columns + 2 * self._pad) for _ in range(3))
        self._before = [0] * (columns + 2 * self._pad)  # non-zeros to the left in this row
        self._column_count, self._around_count = [0] * columns, [0] * columns
        self._column_found, self._around_found = [_found(0)] * columns, [_found(0)] * columns

    def _expected(self, n: int) -> int:
        return _eighths((n * self._density >> 4) + (1 << 16))

    def start_row(self, i: int) -> None:
        """Make the row that was read last the one above."""
        self._here, self._up, self._up2 = self._up2, self._here, self._up
        area = 48 if self._stride else 6
        self._column_expected, self._around_expected = self._expected(i), self._expected(i * area + area // 2)
        self._row, self._row_count, self._row_found = _Bit(*self._prior), 0, _found(0)

    def contexts(self, j: int) -> tuple[list[int], tuple[_Bit, ...]]:
        """Return the weights and the probabilities for the level in column j."""
        here, up, before, stride, q = self._here, self._up, self._before, self._stride, j + self._pad
        l1, l2, u, u2, ul, ur = here[q - 1], here[q - 2], up[q], self._up2[q], up[q - 1], up[q + 1]
        s = sl = sr = 0
        if stride:
            s, sl, sr = here[q - stride], here[q - stride - 1], here[q - stride + 1]
            window = before[q] - before[q - 3]
            for distance in (stride, 2 * stride):
                window += before[q - distance + 4] - before[q - distance - 3]
        else:
            window = before[q] - before[q - 6]
        left, over = l1 + l2 + s + sl + sr, u + u2 + ul + ur
        near = l1 | l2 << 1 | u << 2 | u2 << 3 | ul << 4 | ur << 5 | s << 6 | sl << 7 | sr << 8
        c = _bucket(self._column_found[j], self._column_expected)
        a = _bucket(self._around_found[j], self._around_expected)
        r = _bucket(self._row_found, self._expected(j))
        return self._weights[min((left + over + 1) // 2, 2)], (
            self._column[j],
            self._row,
            self._by_places[(c * 16 + r) * 4 + l1 + s],
            self._by_near[near],
            self._by_count[(left * 5 + over) * 16 + c],
            self._by_smooth[(a * 16 + c) * 16 + r],
            self._by_window[min(window, 15) * 16 + a],
        )

    def note(self, j: int, nonzero: int) -> None:
        """Remember whether the level in column j is zero."""
        q = j + self._pad
        self._here[q] = nonzero
        self._before[q + 1] = self._before[q] + nonzero
        if nonzero:
            self._row_count += 1
            self._column_count[j] += 1
            self._row_found, self._column_found[j] = _found(self._row_count), _found(self._column_count[j])
            for k in _around(j, self._columns, self._stride):
                self._around_count[k] += 1
                self._around_found[k] = _found(self._around_count[k])


class _Sizes:
    """The levels of this row and of the one above, and the mean size of levels by row and column."""

    def __init__(self, columns: int, stride: int) -> None:
        self._stride = stride
        self._line, self._line_above = [0] * columns, [0] * columns  # contexts need no other rows
        self._column_count, self._column_size = [0] * columns, [0] * columns
        self._row_count = self._row_size = 0

    def start_row(self) -> None:
        """Make the row that was read last the one above."""
        self._line, self._line_above = [0] * len(self._line), self._line
        self._row_count = self._row_size = 0

    def around(self, j: int) -> tuple[int, int, int, int, int]:
        """Return the levels to the left, above and a stride away, and the doubled mean sizes of row and column."""
        line, stride = self._line, self._stride
        return (
            line[j - 1] if j else 0,
            self._line_above[j],
            line[j - stride] if stride and j >= stride else 0,
            2 * self._row_size // self._row_count if self._row_count else -1,
            2 * self._column_size[j] // self._column_count[j] if self._column_count[j] else -1,
        )

    def note(self, j: int, level: int) -> None:
        """Remember the level in column j, which is not zero."""
        self._line[j] = level
        self._row_count += 1
        self._column_count[j] += 1
        self._row_size += abs(level)
        self._column_size[j] += abs(level)


class ContextModel:
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
        cells, left, rest = rows * columns, self._bounds.nonzero, 0
        density = min(max(min((left << 22) // cells, _CERTAIN), 64), _CERTAIN - 64)
        occupancy, sizes = _Occupancy(columns, stride, density), _Sizes(columns, stride)
        for i in range(rows):
            occupancy.start_row(i)
            sizes.start_row()
            self._row_sign = _Bit(1 << 21, 2)
            for j in range(columns):
                at, nonzero = i * columns + j, 1
                if j % 64 == 0:
                    rest = self._log_odds(min((left << 22) // cells, _CERTAIN))
                if left < cells:
                    weights, bits = occupancy.contexts(j)
                    known = int(given[at] != 0) if given else 0
                    nonzero = self._mix(known, weights, bits, _ZERO_LIMITS, rest)
                cells -= 1
                occupancy.note(j, nonzero)
                if not nonzero:
                    continue
                level = self._value(given[at] if given else 0, j, *sizes.around(j))
                sizes.note(j, level)
                yield at, level
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
