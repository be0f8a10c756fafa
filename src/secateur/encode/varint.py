"""Varints, and a cursor that never reads past its end.

A varint holds 7 bits a byte, lowest first, the top bit set in every byte but the last; there is one way to write a
number, and the reader refuses all others.
"""

from __future__ import annotations

from secateur.encode.errors import FormatError

_LONGEST = 9  # bytes: 63 bits


def put_varint(out: bytearray, number: int) -> None:
    """Append a number from 0 to 2⁶³ − 1."""
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def put_pair(out: bytearray, first: int, second: int) -> None:
    """Append two numbers that are mostly below 15: a half byte each, and a varint for what is above."""
    out.append(min(first, 15) << 4 | min(second, 15))
    for number in (first, second):
        if number >= 15:
            put_varint(out, number - 15)


def put_text(out: bytearray, text: str) -> None:
    """Append the length of a text in UTF-8, and the text."""
    raw = text.encode()
    put_varint(out, len(raw))
    out += raw


class Cursor:
    """A place in a run of bytes, moved by reading."""

    def __init__(self, content: bytes | memoryview, start: int = 0) -> None:
        self._content = memoryview(content)
        self._start = start  # where the content begins in its file
        self.position = 0

    @property
    def left(self) -> int:
        """How many bytes are still to be read."""
        return len(self._content) - self.position

    def wrong(self, message: str) -> FormatError:
        """Return an error at this place."""
        return FormatError(message, offset=self._start + self.position)

    def take(self, count: int) -> memoryview:
        """Read `count` bytes."""
        if count > self.left:
            raise self.wrong(f"{count:,} bytes are announced and {self.left:,} are left")
        taken = self._content[self.position : self.position + count]
        self.position += count
        return taken

    def byte(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """Read one number."""
        number = 0
        for index in range(_LONGEST):
            byte = self.byte()
            number |= (byte & 127) << 7 * index
            if byte < 128:
                if byte == 0 and index:
                    raise self.wrong("a number is written in more bytes than it needs")
                return number
        raise self.wrong("a number has more than 63 bits")

    def pair(self) -> tuple[int, int]:
        """Read two numbers written by `put_pair`."""
        byte = self.byte()
        first, second = byte >> 4, byte & 15
        if first == 15:
            first += self.varint()
        if second == 15:
            second += self.varint()
        return first, second

    def text(self, longest: int) -> str:
        """Read a text of at most `longest` bytes."""
        length = self.varint()
        if length > longest:
            raise self.wrong(f"a text of {length:,} bytes is longer than the {longest:,} allowed")
        raw = self.take(length)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise self.wrong("a text is not UTF-8") from None

    def end(self) -> None:
        """Refuse bytes that are left over."""
        if self.left:
            raise self.wrong(f"{self.left:,} bytes are left over")
