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
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secateur import native
from secateur.encode.bounds import Bounds, FormatError, Matrix
from secateur.encode.varint import Cursor, put_varint

Tokens: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint16]

_SCALE_BITS = 12
_LOWEST = 1 << 16  # a state lies between this and 2³²
_MOST_LANES = 4096
_SYMBOLS_PER_LANE = 2048  # a state costs four bytes: a quarter of a per cent of its symbols, if they take 6 bits
_GAP_DIRECT, _LEVEL_DIRECT = 16, 128
_MOST_RAW_BITS = 48


def encode(levels: Matrix, bounds: Bounds) -> bytes:
    """Code a level matrix row by row."""
    if bounds.nonzero == 0:
        return b""
    flat = levels.reshape(-1)
    places = np.flatnonzero(flat)
    kept = flat[places].astype(np.int64)
    parts = [
        _tokenize(np.diff(places, prepend=-1) - 1, _GAP_DIRECT),
        _tokenize(np.where(kept < 0, -2 * kept - 1, 2 * kept - 2), _LEVEL_DIRECT),
    ]
    lanes = _lanes(bounds.nonzero)
    out = bytearray()
    put_varint(out, lanes)
    streams = []
    for tokens, _, _ in parts:
        frequencies = scaled_frequencies(np.bincount(tokens, minlength=256))
        _put_frequencies(out, frequencies)
        streams.append(_encode_tokens(tokens, frequencies, lanes))
    for words in streams:
        put_varint(out, len(words) - 2 * lanes)
    raw = [_raw_bits(rest, digits) for _, rest, digits in parts]
    return b"".join([out, *(words.astype("<u2").tobytes() for words in streams), _pack(raw)])


def decode(stream: memoryview, bounds: Bounds) -> Matrix:
    """Give back the level matrix."""
    cursor = Cursor(stream)
    levels = np.zeros(bounds.size, np.int32)
    if bounds.nonzero:
        lanes = cursor.varint()
        if lanes != _lanes(bounds.nonzero):
            raise cursor.wrong(f"{bounds.nonzero:,} levels have {_lanes(bounds.nonzero)} states, not {lanes:,}")
        frequencies = [_read_frequencies(cursor) for _ in range(2)]
        lengths = [cursor.varint() + 2 * lanes for _ in range(2)]
        tokens = []
        for each, length in zip(frequencies, lengths, strict=True):
            words = np.frombuffer(cursor.take(2 * length), "<u2").astype(np.uint16, copy=False)
            tokens.append(_decode_tokens(words, bounds.nonzero, each, lanes, cursor))
        gaps, folded = _numbers(tokens[0], tokens[1], cursor)
        places = np.cumsum(gaps + 1) - 1
        if gaps.max() >= bounds.size or places[-1] >= bounds.size:
            raise FormatError(f"a level lies past the end of {bounds.size:,}", offset=len(stream))
        kept = np.where(folded & 1, -(folded + 1) // 2, folded // 2 + 1)
        if kept.min() < bounds.smallest or kept.max() > bounds.largest:
            raise FormatError(
                f"levels {kept.min():,} to {kept.max():,} lie outside {bounds.smallest:,} to {bounds.largest:,}",
                offset=len(stream),
            )
        levels[places] = kept
    cursor.end()
    return levels.reshape(bounds.rows, bounds.columns)


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
    numbers = np.where(all_tokens < direct, all_tokens, 8 + beyond % 8 << np.minimum(digits, _MOST_RAW_BITS))
    return numbers[tokens], digits[tokens]


def _raw_bits(rest: Numbers, digits: Numbers) -> Tokens:
    """Return the raw bits one by one, the most significant of each number first."""
    total = np.cumsum(digits)
    to_come = np.repeat(total, digits) - np.arange(total[-1] if len(total) else 0) - 1
    return (np.repeat(rest, digits) >> to_come & 1).astype(np.uint8)


def _pack(parts: list[Tokens]) -> bytes:
    return np.packbits(np.concatenate(parts)).tobytes()


def _numbers(gaps: Tokens, levels: Tokens, cursor: Cursor) -> tuple[Numbers, Numbers]:
    """Put tokens and raw bits together again."""
    starts, digits = zip(_split(gaps, _GAP_DIRECT), _split(levels, _LEVEL_DIRECT), strict=True)
    numbers, counts = np.concatenate(starts), np.concatenate(digits)
    total = int(counts.sum())
    if counts.max() > _MOST_RAW_BITS:
        raise cursor.wrong("a number is longer than any place or level")
    if cursor.left != (total + 7) // 8:
        raise cursor.wrong(f"{total:,} raw bits are announced and {cursor.left:,} bytes are left")
    packed = np.frombuffer(cursor.take(cursor.left), np.uint8)
    if total % 8 and packed[-1] & (1 << -total % 8) - 1:
        raise cursor.wrong("the bits after the last one are not zero")
    raw = np.unpackbits(packed, count=total).astype(np.int64)
    if total:
        ends = np.cumsum(counts)
        raw <<= np.repeat(ends, counts) - np.arange(total) - 1
        sums = np.concatenate([[0], np.cumsum(raw)])
        numbers = numbers + sums[ends] - sums[ends - counts]
    return numbers[: len(gaps)], numbers[len(gaps) :]


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


# The native loops, and the twins that take their place.


@cache
def _native_routines() -> tuple[native.Routine, native.Routine] | None:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    encode = native.routine("secateur_rans_encode", size, pointer, size, pointer, size, pointer, size)
    decode = native.routine("secateur_rans_decode", size, pointer, size, size, pointer, size, pointer)
    return None if encode is None or decode is None else (encode, decode)


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
