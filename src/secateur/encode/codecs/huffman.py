"""Codec "huffman": Deep Compression as published (Han et al. 2016), relative indices and two Huffman codes.

Every non-zero level becomes a pair: the number of zeros before it, in `gap_bits` bits, and the level. A run of zeros
too long for that is cut by filler pairs (2^gap_bits − 1, level 0), each of which stands for 2^gap_bits zeros. The paper
uses 5 bits for linear layers and 4 for convolutions; 8 is smaller below 10 % density and the default.

    stream = gap_bits (1 byte), fillers (varint), then bits: gap code, level code, gaps, levels, zeros to fill up

Both codes are canonical (shorter words first, then by symbol) and given by the lengths of their words alone: which
symbols are used, as alternating runs of unused and used ones (Elias gamma; the first plus one), then the first length
in 5 bits and every other as its difference from the one before, 0, 1, −1, 2, −2 … in unary. A single symbol has
no bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from secateur.encode.codecs.bounds import Bounds, Matrix, SparseLevels, empty_places
from secateur.encode.errors import FormatError
from secateur.encode.varint import Cursor, put_varint

_LONGEST_GAP_BITS = 12
_USUAL_LIMIT, _LIMIT = 15, 20  # bits in a code word: 15, and more only where there are too many symbols for that
_CHUNK = 1 << 20  # bits or symbols worked on at a time: bounds the additional memory

Ints = npt.NDArray[np.int64]


def encode(levels: Matrix, bounds: Bounds, gap_bits: int = 8) -> bytes:
    """Code a level matrix row by row."""
    if not 1 <= gap_bits <= _LONGEST_GAP_BITS:
        raise ValueError(f"gap_bits must lie in 1 to {_LONGEST_GAP_BITS}, got {gap_bits}")
    gaps, symbols = _with_fillers(levels.reshape(-1), 1 << gap_bits)
    out = bytearray([gap_bits])
    put_varint(out, len(gaps) - bounds.nonzero)
    if not len(gaps):
        return bytes(out)
    symbols -= bounds.smallest
    gap_lengths = code_lengths(np.bincount(gaps, minlength=1 << gap_bits))
    level_lengths = code_lengths(np.bincount(symbols, minlength=bounds.largest - bounds.smallest + 1))
    table_bits = [*_write_lengths(gap_lengths), *_write_lengths(level_lengths)]
    bits = [np.array(table_bits, np.uint8), *_code(gaps, gap_lengths), *_code(symbols, level_lengths)]
    return bytes(out) + np.packbits(np.concatenate(bits)).tobytes()


def decode(stream: memoryview, bounds: Bounds) -> Matrix:
    """Return the level matrix."""
    levels = np.zeros(bounds.size, np.int32)
    places, symbols = _decode_pairs(stream, bounds)
    levels[places] = symbols
    return levels.reshape(bounds.rows, bounds.columns)


def decode_sparse(stream: memoryview, bounds: Bounds) -> SparseLevels:
    """Return the non-zero levels and their places; memory grows with the pairs, fillers included."""
    places, symbols = _decode_pairs(stream, bounds)
    if len(symbols) == bounds.nonzero:
        return places, symbols
    kept = symbols != 0
    return places[kept], symbols[kept]


def _decode_pairs(stream: memoryview, bounds: Bounds) -> SparseLevels:
    """Return places and levels of all pairs, fillers among them, whose level is zero."""
    cursor = Cursor(stream)
    gap_bits = cursor.byte()
    if not 1 <= gap_bits <= _LONGEST_GAP_BITS:
        raise cursor.wrong(f"gaps of {gap_bits} bits do not exist")
    pairs = cursor.varint() + bounds.nonzero
    if pairs > bounds.size:
        raise cursor.wrong(f"{pairs:,} places are announced in a tensor of {bounds.size:,}")
    places, symbols = empty_places(pairs, bounds.size), np.empty(0, np.int32)
    if pairs:
        bits = _Bits(cursor.take(cursor.left), cursor.position)
        gap_lengths = _read_lengths(bits, 1 << gap_bits)
        level_lengths = _read_lengths(bits, bounds.largest - bounds.smallest + 1)
        gaps = _decode(bits, gap_lengths, pairs)
        symbols = _decode(bits, level_lengths, pairs)
        bits.end()
        symbols += bounds.smallest
        _check_fillers(gaps, symbols, bounds, 1 << gap_bits)
        last = int(gaps.sum(dtype=np.int64)) + pairs - 1
        if last >= bounds.size:
            raise FormatError(f"a level lies at place {last:,} of {bounds.size:,}", offset=len(stream))
        gaps += 1
        np.cumsum(gaps, dtype=places.dtype, out=places)
        places -= 1
    cursor.end()
    return places, symbols


def _with_fillers(levels: npt.NDArray[np.int32], reach: int) -> tuple[Ints, Ints]:
    """Return gaps and levels, with a filler for every `reach` zeros of a longer run."""
    places = np.flatnonzero(levels)
    zeros = np.diff(places, prepend=-1) - 1
    last = np.cumsum(zeros // reach + 1) - 1  # of each run's pairs, where its own level goes
    pairs = int(last[-1]) + 1 if len(last) else 0
    gaps, symbols = np.full(pairs, reach - 1), np.zeros(pairs, np.int64)
    gaps[last] = zeros % reach
    symbols[last] = levels[places]
    return gaps, symbols


def _check_fillers(gaps: npt.NDArray[np.int32], symbols: npt.NDArray[np.int32], bounds: Bounds, reach: int) -> None:
    fillers = symbols == 0
    if len(symbols) - np.count_nonzero(fillers) != bounds.nonzero:
        found = len(symbols) - np.count_nonzero(fillers)
        raise FormatError(f"{found:,} levels are not zero, {bounds.nonzero:,} are announced", offset=0)
    if (gaps[fillers] != reach - 1).any() or (len(fillers) and fillers[-1]):
        raise FormatError("a filler stands where none is needed", offset=0)


def code_lengths(counts: npt.NDArray[np.integer]) -> Ints:
    """Return the lengths of an optimal prefix code with no word longer than 15 bits, by package-merge.

    An unused symbol gets −1, a single symbol 0. Above 2¹⁴ symbols the limit grows with their number.
    """
    used = np.flatnonzero(counts)
    lengths = np.full(len(counts), -1)
    lengths[used] = 0
    if len(used) < 2:
        return lengths
    limit = max(_USUAL_LIMIT, len(used).bit_length() + 1)
    ranked = used[np.argsort(counts[used], kind="stable")]
    weights = counts[ranked].astype(np.int64)
    # Each round pairs the cheapest items of the last one and adds the leaves again; stable sorting puts leaves first.
    is_leaf, items = [np.ones(len(weights), bool)], weights
    for _ in range(limit - 1):
        even = len(items) // 2 * 2
        joined = np.concatenate([weights, items[0:even:2] + items[1:even:2]])
        order = np.argsort(joined, kind="stable")
        is_leaf.append(order < len(weights))
        items = joined[order]
    # The 2n − 2 cheapest items of the last round are the code; a leaf among them is one bit of its symbol's word.
    taken = 2 * len(weights) - 2
    for leaf in reversed(is_leaf):
        leaves = int(np.count_nonzero(leaf[:taken]))
        lengths[ranked[:leaves]] += 1
        taken = 2 * (taken - leaves)
    return lengths


def _code(symbols: Ints, lengths: Ints) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bits of the code words, most significant first."""
    used, spans = _canonical(lengths)
    longest = int(lengths.max())
    words = np.zeros(len(lengths), np.int64)
    # In units of the longest word each word begins where the ones before it end.
    words[used] = np.cumsum(spans) - spans >> longest - lengths[used]
    for start in range(0, len(symbols), _CHUNK >> 3):
        part = symbols[start : start + (_CHUNK >> 3)]
        each = lengths[part]
        to_come = np.repeat(np.cumsum(each), each) - np.arange(each.sum()) - 1
        yield (np.repeat(words[part], each) >> to_come & 1).astype(np.uint8)


def _decode(bits: _Bits, lengths: Ints, count: int) -> npt.NDArray[np.int32]:
    """Read `count` symbols: look up the word at every bit of a chunk, then walk from word to word."""
    used, spans = _canonical(lengths)
    longest = int(lengths.max())
    if longest == 0:
        return np.full(count, used[0], np.int32)
    symbol_of = np.repeat(used.astype(np.int32), spans)
    length_of = lengths[symbol_of].astype(np.uint8)
    found: list[npt.NDArray[np.int32]] = []
    missing = count
    while missing:
        windows = bits.windows(longest)
        steps = length_of[windows].tobytes()
        walked: list[int] = []
        place, end = 0, len(steps)
        while place < end and missing:
            walked.append(place)
            place += steps[place]
            missing -= 1
        found.append(symbol_of[windows[walked]])
        bits.skip(place)
    return np.concatenate(found)


def _canonical(lengths: Ints) -> tuple[Ints, Ints]:
    """Return the used symbols, shortest word first, and how many of the longest words each word stands for."""
    used = np.flatnonzero(lengths >= 0)
    symbols = used[np.argsort(lengths[used], kind="stable")]
    return symbols, np.left_shift(1, lengths.max() - lengths[symbols])


def _write_lengths(lengths: Ints) -> Iterator[int]:
    used = lengths >= 0
    edges = np.flatnonzero(np.diff(used, prepend=False, append=not used[-1]))
    runs = np.diff(edges, prepend=0)
    runs[0] += 1  # only the first run, of unused symbols, may be empty
    for run in runs.tolist():
        digits = f"{run:b}"
        yield from (int(digit) for digit in "0" * (len(digits) - 1) + digits)
    if np.count_nonzero(used) < 2:
        return
    first, *_ = others = lengths[used].tolist()
    yield from (int(digit) for digit in f"{first:05b}")
    for before, length in pairwise(others):
        difference = length - before
        yield from [1] * (2 * abs(difference) - (difference > 0))
        yield 0


def _read_lengths(bits: _Bits, symbols: int) -> Ints:
    lengths = np.full(symbols, -1)
    place, is_used = 0, False
    while place < symbols:
        run = bits.gamma() - (place == 0 and not is_used)
        if run > symbols - place:
            raise bits.wrong(f"a code has more than the {symbols:,} symbols of its alphabet")
        if is_used:
            lengths[place : place + run] = 0
        place, is_used = place + run, not is_used
    used = np.flatnonzero(lengths == 0)
    if len(used) == 0:
        raise bits.wrong("a code has no symbols")
    if len(used) == 1:
        return lengths
    length, whole = bits.number(5), 0
    for index, symbol in enumerate(used.tolist()):
        if index:
            steps = bits.ones(2 * _LIMIT)
            length += (steps + 1) // 2 if steps % 2 else -(steps // 2)
        if not 1 <= length <= _LIMIT:
            raise bits.wrong(f"a code word of {length} bits")
        lengths[symbol] = length
        whole += 1 << _LIMIT - length
    if whole != 1 << _LIMIT:
        raise bits.wrong("the code words do not fill their tree exactly (Kraft)")
    return lengths


class _Bits:
    """A place in a run of bits, the most significant of each byte first, that never passes its end."""

    def __init__(self, content: memoryview, start: int) -> None:
        # Zeros behind the end let a whole word be looked up at the last bit.
        self._bytes = np.frombuffer(bytes(content) + b"\0\0\0", np.uint8)
        self._length = 8 * len(content)
        self._start = start
        self.position = 0

    def wrong(self, message: str) -> FormatError:
        return FormatError(message, offset=self._start + self.position // 8)

    def skip(self, count: int) -> None:
        if self.position + count > self._length:
            raise self.wrong("the bits end within a code word")
        self.position += count

    def bit(self) -> int:
        place = self.position
        self.skip(1)
        return int(self._bytes[place >> 3]) >> (7 - (place & 7)) & 1

    def number(self, length: int) -> int:
        value = 0
        for _ in range(length):
            value = value << 1 | self.bit()
        return value

    def ones(self, most: int) -> int:
        count = 0
        while self.bit():
            count += 1
            if count > most:
                raise self.wrong(f"a number in unary is above {most}")
        return count

    def gamma(self) -> int:
        zeros = 0
        while not self.bit():
            zeros += 1
            if zeros > _LIMIT:
                raise self.wrong(f"a run is longer than 2^{_LIMIT}")
        return 1 << zeros | self.number(zeros)

    def windows(self, width: int) -> npt.NDArray[np.uint32]:
        """Return the `width` bits that follow each of the next places, a chunk of them."""
        if self.position >= self._length:
            raise self.wrong("the bits end before the last code word")
        first = self.position >> 3
        last = min(first + (_CHUNK >> 3), self._length >> 3)
        byte = self._bytes[first : last + 3].astype(np.uint32)
        words = byte[:-3] << 24 | byte[1:-2] << 16 | byte[2:-1] << 8 | byte[3:]
        shifted = words[:, None] << np.arange(8, dtype=np.uint32)
        windows: npt.NDArray[np.uint32] = shifted >> np.uint32(32 - width)
        return windows.reshape(-1)[self.position & 7 :]

    def end(self) -> None:
        """Refuse anything but fewer than eight zeros at the end."""
        left = self._length - self.position
        if left >= 8:
            raise self.wrong(f"{left // 8:,} bytes are left over")
        if self.number(left):
            raise self.wrong("the bits behind the last code word are not zero")
