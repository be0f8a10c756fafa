"""A binary range coder: decisions and their probabilities in, bytes out, and back. It knows no model.

The two coders in native/context.cpp do the same, byte for byte.
"""

from __future__ import annotations

_TOP = 1 << 24
_WORD = (1 << 32) - 1


class BinaryEncoder:
    """Narrow an interval by each decision and write down a number inside of it."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._low, self._range = 0, _WORD
        self._cache, self._pending, self._started = 0, 0, False

    def code(self, decision: int, probability: int) -> int:
        """Write a decision, 0 or 1, where P(1) is `probability` / 2¹⁶, neither 0 nor 1."""
        bound = self._range * probability >> 16
        if decision:
            self._range = bound
        else:
            self._low += bound
            self._range -= bound
        while self._range < _TOP:
            self._range = self._range << 8 & _WORD
            self._shift()
        return decision

    def finish(self) -> bytes:
        """Return the stream, ended by the number of the interval with most zero bytes at its end, without those."""
        zeros, self._low = _roundest(self._low, self._range)
        for _ in range(5):
            self._shift()
        return bytes(self._out[: len(self._out) - zeros // 8])

    def _shift(self) -> None:
        """Move the top byte of `low` out; 0xff waits, for a carry may still change it."""
        carry = self._low >> 32
        if carry or self._low < 0xFF000000:
            if self._started:  # the first byte is a zero that is left out
                self._out.append(self._cache + carry & 255)
            self._out += bytes([255 + carry & 255]) * self._pending
            self._started, self._pending, self._cache = True, 0, self._low >> 24 & 255
        else:
            self._pending += 1
        self._low = (self._low & 0x00FFFFFF) << 8


class BinaryDecoder:
    """Read the decisions back, given the same probabilities."""

    def __init__(self, stream: bytes | memoryview) -> None:
        self._stream = bytes(stream)
        self._position, self._range = 4, _WORD
        self._window = int.from_bytes(self._stream[:4].ljust(4, b"\0"), "big")  # the last four bytes read
        self._value = self._window

    def code(self, _: int, probability: int) -> int:
        """Read a decision whose P(1) is `probability` / 2¹⁶. Past the end of the stream are zeros."""
        bound = self._range * probability >> 16
        decision = int(self._value < bound)
        if decision:
            self._range = bound
        else:
            self._value -= bound
            self._range -= bound
        while self._range < _TOP:
            self._range = self._range << 8 & _WORD
            byte = self._stream[self._position] if self._position < len(self._stream) else 0
            self._value = (self._value << 8 | byte) & _WORD
            self._window = (self._window << 8 | byte) & _WORD
            self._position += 1
        return decision

    @property
    def consumed_exactly(self) -> bool:
        """Whether the stream ends as an encoder would have ended it, with all of its bytes read."""
        low = self._window - self._value & _WORD  # the encoder's
        zeros, number = _roundest(low, self._range)
        return self._position - len(self._stream) == zeros // 8 and number & _WORD == self._window


def _roundest(low: int, width: int) -> tuple[int, int]:
    """Return how many zero bits, in whole bytes, a number in [low, low + width) ends with at most, and that number."""
    last, zeros = low + width - 1, 32
    while last >> zeros << zeros < low:
        zeros -= 8
    return zeros, last >> zeros << zeros
