"""The table of codecs. Each turns a level matrix into a stream of bytes and back; the numbers never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from secateur.encode.codecs import context, huffman, rans
from secateur.encode.codecs.bounds import Bounds, Matrix, SparseLevels
from secateur.encode.errors import FormatError
from secateur.nearest import require_one_of

RAW = 0  # no codec: the bytes as they are


class Codec(Protocol):
    """A lossless code for level matrices; its stream carries its own parameters."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def number(self) -> int:
        """What files call it."""

    @property
    def encode(self) -> Callable[[Matrix, Bounds], bytes]:
        """Turn a level matrix, and bounds that hold for it, into a stream."""

    @property
    def decode(self) -> Callable[[memoryview, Bounds], Matrix]:
        """Turn the whole of a stream back, or raise a FormatError; never read past it or allocate beyond the bounds."""

    @property
    def decode_sparse(self) -> Callable[[memoryview, Bounds], SparseLevels]:
        """Do the same without a matrix: memory grows with the non-zero levels, and a few rows."""


@dataclass(frozen=True)
class _Listed:
    name: str
    number: int
    encode: Callable[[Matrix, Bounds], bytes]
    decode: Callable[[memoryview, Bounds], Matrix]
    decode_sparse: Callable[[memoryview, Bounds], SparseLevels]


CODECS: tuple[Codec, ...] = (
    _Listed("huffman", 1, huffman.encode, huffman.decode, huffman.decode_sparse),
    _Listed("rans", 2, rans.encode, rans.decode, rans.decode_sparse),
    _Listed("context", 3, context.encode, context.decode, context.decode_sparse),
)

_NAMES = ("smallest", "raw", *(codec.name for codec in CODECS))


def choose(name: str) -> tuple[Codec, ...]:
    """Return the codecs to try: all of them for "smallest", none for "raw", or the one of that name."""
    require_one_of("codec", name, _NAMES)
    return CODECS if name == "smallest" else tuple(codec for codec in CODECS if codec.name == name)


def by_number(number: int) -> Codec:
    """Return a codec by its number in files."""
    for codec in CODECS:
        if codec.number == number:
            return codec
    raise FormatError(f"codec {number} is unknown: the file was written by a newer version")


def smallest(levels: Matrix, bounds: Bounds, codecs: tuple[Codec, ...]) -> tuple[int, bytes]:
    """Code `levels` with each of `codecs` and return the number and the stream of the smallest, the first of equals."""
    streams = [(codec.number, codec.encode(levels, bounds)) for codec in codecs]
    return min(streams, key=lambda entry: len(entry[1]))
