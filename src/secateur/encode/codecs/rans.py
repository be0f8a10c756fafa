"""Codec "rans", the fast one: gaps and levels under static frequencies, coded by many rANS states side by side.

Every non-zero level gives two numbers: the zeros before it, and the level folded to 0, 1, 2 … (1, −1, 2, −2 …). A
number becomes a token below 256 and some raw bits. Numbers below D are tokens themselves; a larger one, of n + 1 binary
digits, has

    token = D + 8·(n − log2 D) + the three digits below the first,      raw bits = the other n − 3 digits

so a token spans an eighth of an octave, within which a gap's probability hardly changes. D is 16 for gaps and 128 for
levels. Tokens are coded with the frequencies they have in the tensor, in units of 2⁻¹².

    stream = lanes (varint), frequencies of gap tokens, of level tokens, words of gaps (varint), of levels (varint),
             the words (16 bits, low byte first), then the raw bits of gaps and levels, zeros to fill the last byte

Frequencies are varints up to the last token used, their number before them. The stream is empty if all levels are zero.
The native loops (native/rans.cpp) have NumPy twins here, which take a step of all states at once.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secateur import native
from secateur.encode.codecs.bounds import Bounds, Matrix, Places, SparseLevels, empty_places
from secateur.encode.varint import Cursor, put_varint

Tokens: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]
_Words: TypeAlias = npt.NDArray[np.uint16]

_SCALE_BITS = 12
_LOWEST = 1 << 16  # a state lies between this and 2³²
_MOST_LANES = 4096
_SYMBOLS_PER_LANE = 2048  # a state costs four bytes: a quarter of a per cent of its symbols, if they take 6 bits
_GAP_DIRECT, _LEVEL_DIRECT = 16, 128


def encode(levels: Matrix, bounds: Bounds) -> bytes:
    """Code a level matrix row by row."""
    flat = levels.reshape(-1)
    places = np.flatnonzero(flat)
    return encode_sparse(places, flat[places], bounds)


def encode_sparse(places: Places, levels: npt.NDArray[np.int32], bounds: Bounds) -> bytes:
    """Code the levels that are not zero, given with their places in the matrix in rising order."""
    if bounds.nonzero == 0:
        return b""
    gaps, kept, raw = _tokenize_all(places, levels, bounds)
    lanes = _lanes(bounds.nonzero)
    out = bytearray()
    put_varint(out, lanes)
    streams = []
    for tokens in (gaps, kept):
        frequencies = scaled_frequencies(_counts(tokens))
        _put_frequencies(out, frequencies)
        streams.append(_encode_tokens(tokens, frequencies, lanes))
    for words in streams:
        put_varint(out, len(words) - 2 * lanes)
    return b"".join([out, *(words.astype("<u2", copy=False).tobytes() for words in streams), raw])


def decode(stream: memoryview, bounds: Bounds) -> Matrix:
    """Return the level matrix."""
    levels = np.zeros(bounds.size, np.int32)
    _decode_into(levels, None, stream, bounds)
    return levels.reshape(bounds.rows, bounds.columns)


def decode_values(stream: memoryview, bounds: Bounds, table: Array) -> Array:
    """Return the values of the levels, flat, zeros included; `table` is indexed by level.

    This builds no matrix of levels, so that large tensors need no additional memory.
    """
    values = np.zeros(bounds.size, table.dtype)
    _decode_into(values, table, stream, bounds)
    return values


def decode_sparse(stream: memoryview, bounds: Bounds) -> SparseLevels:
    """Return the non-zero levels and their places, without a matrix."""
    places, levels = empty_places(bounds.nonzero, bounds.size), np.empty(bounds.nonzero, np.int32)
    cursor = Cursor(stream)
    if bounds.nonzero:
        gaps, kept = _decode_both(cursor, bounds)
        _list(gaps, kept, cursor, bounds, places, levels)
    cursor.end()
    return places, levels


def _decode_into(out: Array, table: Array | None, stream: memoryview, bounds: Bounds) -> None:
    cursor = Cursor(stream)
    if bounds.nonzero:
        gaps, kept = _decode_both(cursor, bounds)
        _scatter(gaps, kept, cursor, bounds, table, out)
    cursor.end()


def _decode_both(cursor: Cursor, bounds: Bounds) -> tuple[Tokens, Tokens]:
    """Read everything but the raw bits: the tokens of gaps and of levels."""
    lanes = cursor.varint()
    if lanes != _lanes(bounds.nonzero):
        raise cursor.wrong(f"{bounds.nonzero:,} levels have {_lanes(bounds.nonzero)} states, not {lanes:,}")
    frequencies = [_read_frequencies(cursor) for _ in range(2)]
    lengths = [cursor.varint() + 2 * lanes for _ in range(2)]
    tokens = []
    for each, length in zip(frequencies, lengths, strict=True):
        words = np.frombuffer(cursor.take(2 * length), "<u2").astype(np.uint16, copy=False)
        tokens.append(_decode_tokens(words, bounds.nonzero, each, lanes, cursor))
    return tokens[0], tokens[1]


def _counts(tokens: Tokens) -> Numbers:
    # Piece by piece: bincount makes 64-bit numbers of what it counts.
    pieces = (tokens[start : start + (1 << 16)] for start in range(0, len(tokens), 1 << 16))
    counts: Numbers = np.sum([np.bincount(piece, minlength=256) for piece in pieces], axis=0)
    return counts


def _lanes(count: int) -> int:
    """Return the number of states for `count` symbols, a power of two."""
    return min(1 << (count // _SYMBOLS_PER_LANE).bit_length(), _MOST_LANES)


def _tokenize(numbers: Numbers, direct: int) -> tuple[Tokens, Numbers, Numbers]:
    """Return for every number its token, its raw bits and how many those are."""
    tokens, rest, digits = numbers.copy(), np.zeros_like(numbers), np.zeros_like(numbers)
    large = np.flatnonzero(numbers >= direct)
    values = numbers[large]
    # frexp is exact below 2⁵³: the exponent is the number of binary digits.
    top = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
    tokens[large] = direct + 8 * (top - direct.bit_length() + 1) + (values >> top - 3 & 7)
    digits[large] = top - 3
    rest[large] = values & (1 << top - 3) - 1
    assert tokens.max(initial=0) < 256, "gaps below 2³⁴ and levels below 2²³ have a token"
    return tokens.astype(np.uint8), rest, digits


def _split(tokens: Tokens, direct: int) -> tuple[Numbers, Numbers]:
    """Return for every token the number it begins with, raw bits zero, and how many raw bits follow."""
    all_tokens = np.arange(256)
    beyond = np.maximum(all_tokens - direct, 0)
    top = beyond // 8 + direct.bit_length() - 1
    digits = np.where(all_tokens < direct, 0, top - 3)
    numbers = np.where(all_tokens < direct, all_tokens, 8 + beyond % 8 << digits)
    return numbers[tokens], digits[tokens]


def _raw_bits(rest: Numbers, digits: Numbers) -> Tokens:
    """Return the raw bits one by one, the most significant of each number first."""
    total = np.cumsum(digits)
    to_come = np.repeat(total, digits) - np.arange(total[-1] if len(total) else 0) - 1
    return (np.repeat(rest, digits) >> to_come & 1).astype(np.uint8)


def scaled_frequencies(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """Return frequencies that add up to 2¹², none zero where a token is used, in whole numbers only."""
    scale, total = 1 << _SCALE_BITS, int(counts.sum())
    frequencies = np.where(counts > 0, np.maximum(counts.astype(np.int64) * scale // total, 1), 0)
    surplus = int(frequencies.sum()) - scale
    while surplus > 0:  # more rare tokens than there is room for: the frequent ones give
        largest = int(frequencies.argmax())
        given = min(surplus, max(1, int(frequencies[largest]) // 16))
        frequencies[largest] -= given
        surplus -= given
    frequencies[int(frequencies.argmax())] -= surplus
    return frequencies.astype(np.uint32)


def _put_frequencies(out: bytearray, frequencies: npt.NDArray[np.uint32]) -> None:
    used = int(np.flatnonzero(frequencies)[-1]) + 1
    put_varint(out, used)
    for each in frequencies[:used].tolist():
        put_varint(out, each)


def _read_frequencies(cursor: Cursor) -> npt.NDArray[np.uint32]:
    used = cursor.varint()
    if not 1 <= used <= 256:
        raise cursor.wrong(f"a table of {used:,} tokens, there are 1 to 256")
    read = [cursor.varint() for _ in range(used)]
    if sum(read) != 1 << _SCALE_BITS or read[-1] == 0:
        raise cursor.wrong(f"frequencies add up to {sum(read):,}, not to {1 << _SCALE_BITS:,}, or end with a zero")
    return np.array(read + [0] * (256 - used), np.uint32)


# The native loops, and the NumPy twins that replace them where they were not built.


@cache
def _native_routines() -> tuple[native.Routine, ...] | None:
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    found = (
        native.routine("secateur_rans_encode", size, pointer, size, pointer, size, pointer, size),
        native.routine("secateur_rans_decode", size, pointer, size, size, pointer, size, pointer),
        native.routine("secateur_rans_tokenize", size, pointer, number, pointer, size, pointer, pointer, pointer, size),
        native.routine(
            "secateur_rans_scatter",
            *(size, pointer, pointer, size, pointer, size, pointer, number, size, number, number, pointer),
        ),
        native.routine(
            "secateur_rans_list",
            *(size, pointer, pointer, size, pointer, size, size, number, number, pointer, number, pointer),
        ),
    )
    return None if found[0] is None else tuple(each for each in found if each is not None)


def _tokenize_all(places: Places, levels: npt.NDArray[np.int32], bounds: Bounds) -> tuple[Tokens, Tokens, bytes]:
    """Return the tokens of gaps and of levels, and the raw bits of both."""
    routines = _native_routines()
    if routines is None:
        return _twin_tokenize(places, levels)
    assert places.flags.c_contiguous
    assert levels.flags.c_contiguous
    gaps, kept = np.empty(len(places), np.uint8), np.empty(len(places), np.uint8)
    longest = bounds.size.bit_length() + max(bounds.largest, -bounds.smallest).bit_length() + 1
    raw = np.empty(len(places) * longest // 8 + 1, np.uint8)
    into = gaps.ctypes.data, kept.ctypes.data, raw.ctypes.data, len(raw)
    length = routines[2](places.ctypes.data, places.itemsize == 8, levels.ctypes.data, len(places), *into)
    assert length >= 0
    return gaps, kept, raw[:length].tobytes()


_FAULTS = {
    -1: "the raw bits announced are not those that are left",
    -2: "the bits after the last one are not zero",
    -3: "a level lies past the end",
    -4: "a level lies outside of its bounds",
}


def _scatter(gaps: Tokens, levels: Tokens, cursor: Cursor, bounds: Bounds, table: Array | None, out: Array) -> None:
    """Write the value of every level to its place."""
    raw = np.frombuffer(cursor.take(cursor.left), np.uint8)
    routines = _native_routines()
    if routines is None:
        outcome, places, kept = _twin_untokenize(gaps, levels, raw, bounds)
        if not outcome:
            out[places] = kept if table is None else table[kept]
    else:
        worth = (None, 0) if table is None else (table.ctypes.data, table.itemsize)
        limits = bounds.size, bounds.smallest, bounds.largest
        given = gaps.ctypes.data, levels.ctypes.data, len(gaps), raw.ctypes.data, len(raw)
        outcome = routines[3](*given, *worth, *limits, out.ctypes.data)
    if outcome:
        raise cursor.wrong(_FAULTS[outcome])


def _list(
    gaps: Tokens, kept: Tokens, cursor: Cursor, bounds: Bounds, places: Places, levels: npt.NDArray[np.int32]
) -> None:
    """Write the place of every level, and the level."""
    raw = np.frombuffer(cursor.take(cursor.left), np.uint8)
    routines = _native_routines()
    if routines is None:
        outcome, found, unfolded = _twin_untokenize(gaps, kept, raw, bounds)
        if not outcome:
            places[:], levels[:] = found, unfolded
    else:
        given = gaps.ctypes.data, kept.ctypes.data, len(gaps), raw.ctypes.data, len(raw)
        into = places.ctypes.data, places.itemsize == 8, levels.ctypes.data
        outcome = routines[4](*given, bounds.size, bounds.smallest, bounds.largest, *into)
    if outcome:
        raise cursor.wrong(_FAULTS[outcome])


def _encode_tokens(tokens: Tokens, frequencies: npt.NDArray[np.uint32], lanes: int) -> _Words:
    routines = _native_routines()
    if routines is None:
        return _twin_encode(tokens, frequencies, lanes)
    capacity = len(tokens) + 2 * lanes  # a symbol takes 12 bits at most, and so a word at most
    out = np.empty(capacity, np.uint16)
    length = routines[0](tokens.ctypes.data, len(tokens), frequencies.ctypes.data, lanes, out.ctypes.data, capacity)
    if length == -2:
        raise MemoryError("no memory for coding a tensor")
    assert length >= 0
    return out[capacity - length :]


def _decode_tokens(
    words: _Words, count: int, frequencies: npt.NDArray[np.uint32], lanes: int, cursor: Cursor
) -> Tokens:
    routines, tokens = _native_routines(), np.empty(count, np.uint8)
    if routines is None:
        sound = _twin_decode(words, frequencies, lanes, tokens)
    else:
        words = np.ascontiguousarray(words)
        outcome = routines[1](words.ctypes.data, len(words), count, frequencies.ctypes.data, lanes, tokens.ctypes.data)
        if outcome == -2:
            raise MemoryError("no memory for decoding a tensor")
        sound = outcome == 0
    if not sound:
        raise cursor.wrong("the states do not end where they began")
    return tokens


def _twin_tokenize(places: Places, levels: npt.NDArray[np.int32]) -> tuple[Tokens, Tokens, bytes]:
    wide = levels.astype(np.int64)
    zeros: Numbers = np.diff(places.astype(np.int64), prepend=np.int64(-1)) - np.int64(1)
    gaps, gap_rest, gap_digits = _tokenize(zeros, _GAP_DIRECT)
    kept, rest, digits = _tokenize(np.where(wide < 0, -2 * wide - 1, 2 * wide - 2), _LEVEL_DIRECT)
    raw = np.concatenate([_raw_bits(gap_rest, gap_digits), _raw_bits(rest, digits)])
    return gaps, kept, np.packbits(raw).tobytes()


def _twin_untokenize(gaps: Tokens, levels: Tokens, raw: Tokens, bounds: Bounds) -> tuple[int, Numbers, Numbers]:
    """Return 0 or the number of a fault, and where there is none places and levels."""
    none = np.empty(0, np.int64)
    starts, digits = zip(_split(gaps, _GAP_DIRECT), _split(levels, _LEVEL_DIRECT), strict=True)
    numbers, counts = np.concatenate(starts), np.concatenate(digits)
    total = int(counts.sum())
    if len(raw) != (total + 7) // 8:
        return -1, none, none
    if total % 8 and raw[-1] & (1 << -total % 8) - 1:
        return -2, none, none
    if total:
        ends = np.cumsum(counts)
        shifted = np.unpackbits(raw, count=total).astype(np.int64) << np.repeat(ends, counts) - np.arange(total) - 1
        sums = np.concatenate([[0], np.cumsum(shifted)])
        numbers = numbers + sums[ends] - sums[ends - counts]
    places = np.cumsum(numbers[: len(gaps)] + 1) - 1
    if places[-1] >= bounds.size:  # no sum of 2²⁹ gaps below 2³⁴ wraps around
        return -3, none, none
    folded = numbers[len(gaps) :]
    kept = np.where(folded & 1, -(folded + 1) // 2, folded // 2 + 1)
    if kept.min() < bounds.smallest or kept.max() > bounds.largest:
        return -4, none, none
    return 0, places, kept


def _twin_encode(tokens: Tokens, frequencies: npt.NDArray[np.uint32], lanes: int) -> _Words:
    wide = frequencies.astype(np.uint64)
    begin = np.cumsum(wide) - wide
    states = np.full(lanes, _LOWEST, np.uint64)
    written: list[_Words] = []  # backwards
    for first in range((len(tokens) - 1) // lanes * lanes, -1, -lanes):
        part = tokens[first : first + lanes]
        x, f = states[: len(part)], wide[part]
        full = x >= f << np.uint64(32 - _SCALE_BITS)
        written.append(x[full].astype(np.uint16)[::-1])
        x = np.where(full, x >> np.uint64(16), x)
        states[: len(part)] = (x // f << np.uint64(_SCALE_BITS)) + x % f + begin[part]
    halves = np.stack([states & np.uint64(0xFFFF), states >> np.uint64(16)], 1).astype(np.uint16)
    return np.concatenate([halves.reshape(-1), np.concatenate(written)[::-1]])


def _twin_decode(words: _Words, frequencies: npt.NDArray[np.uint32], lanes: int, tokens: Tokens) -> bool:
    states = words[0 : 2 * lanes : 2].astype(np.uint64) | words[1 : 2 * lanes : 2].astype(np.uint64) << np.uint64(16)
    if (states < _LOWEST).any():
        return False
    token_of = np.repeat(np.arange(256, dtype=np.uint8), frequencies)
    wide = frequencies.astype(np.uint64)
    offset = np.arange(1 << _SCALE_BITS, dtype=np.uint64) - (np.cumsum(wide) - wide)[token_of]
    position = 2 * lanes
    for first in range(0, len(tokens), lanes):
        part = tokens[first : first + lanes]
        low = states[: len(part)] & np.uint64((1 << _SCALE_BITS) - 1)
        part[:] = token_of[low]
        x = wide[part] * (states[: len(part)] >> np.uint64(_SCALE_BITS)) + offset[low]
        needs = np.flatnonzero(x < _LOWEST)
        if position + len(needs) > len(words):
            return False
        x[needs] = x[needs] << np.uint64(16) | words[position : position + len(needs)]
        position += len(needs)
        states[: len(part)] = x
    return bool(position == len(words) and (states == _LOWEST).all())
