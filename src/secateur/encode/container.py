"""The .cut container: a header with one record per tensor, then one stream per tensor; docs/format.md describes it.

A reader trusts nothing: every length, shape and count is checked against the file and the caller's limit before
memory is allocated for it. The checksums find accidents; they do not prove who wrote a file.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from secateur.encode.codecs import Codec, choose
from secateur.encode.errors import FormatError
from secateur.encode.formulas import ComputedTensor, as_signs
from secateur.encode.layouts import Layout, layout_of
from secateur.encode.levels import Values, find_values, to_bits
from secateur.encode.preamble import CLASS, LAYOUT, NAMED, SORTED, Architecture, put_preamble, take_preamble
from secateur.encode.records import (
    RecordWriter,
    TensorRecord,
    require_storable,
    take_records,
)
from secateur.encode.sparse import SparseTensor, find_raw, sparse_tensor
from secateur.encode.tensors import decode_sparse, decode_tensor, encode_tensor
from secateur.encode.varint import Cursor, put_varint

MAGIC = b"\x89CUT\r\n\x1a\n"
VERSION = 1
COMPUTED = 2  # the version of files with tensors that are computed from smaller ones
MAX_BYTES = 4 << 30

_RECORD = 16  # bytes of a part's record, about
_PIECE = 1 << 20  # bytes of raw elements that are read at a time: whole ones of every dtype


def to_bytes(
    tensors: Mapping[str, Tensor | ComputedTensor],
    *,
    codec: str = "smallest",
    metadata: Mapping[str, str] | None = None,
    architecture: Architecture | None = None,
    sorted_units: bool = False,
) -> bytes:
    """Return a whole .cut file; `sorted_units` records that hidden units were reordered.

    Of a tensor that is computed from smaller ones, only these are stored.
    """
    codecs = choose(codec)
    layout = layout_of(architecture.name) if architecture is not None and architecture.is_named else None
    if layout != tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()):
        layout = None
    head, streams = bytearray(), list[bytes]()
    flags = put_preamble(head, dict(metadata or {}), architecture)
    flags |= (LAYOUT if layout else 0) | (SORTED if sorted_units else 0)
    writer = RecordWriter(head, layout, len(tensors))
    known: dict[tuple[object, ...], int] = {}
    is_computed = False
    for index, (name, tensor) in enumerate(tensors.items()):
        require_storable(name, tensor)
        memory = _memory(tensor)
        if memory is not None and memory in known:
            writer.put_alias(name, known[memory])
            continue
        if memory is not None:
            known[memory] = index
        is_computed |= _put_tensor(writer, streams, name, tensor, codecs)
    return seal(flags, bytes(head), streams, COMPUTED if is_computed else VERSION)


def _put_tensor(
    writer: RecordWriter, streams: list[bytes], name: str, tensor: Tensor | ComputedTensor, codecs: tuple[Codec, ...]
) -> bool:
    """Write a tensor in the smallest way; return whether a reader has to compute it."""
    plain = None if isinstance(tensor, ComputedTensor) else encode_tensor(tensor, codecs)
    computed = tensor if isinstance(tensor, ComputedTensor) else as_signs(tensor) if codecs else None
    if computed is not None:
        parts = [encode_tensor(part, codecs) for part in computed.parts]
        if plain is None or sum(len(stream) + _RECORD for _, stream in parts) < len(plain[1]):
            writer.put_computed(name, computed.dtype, computed.shape, computed.formula, parts)
            streams += [stream for _, stream in parts]
            return True
    assert isinstance(tensor, Tensor)
    assert plain is not None
    writer.put(name, tensor.dtype, tuple(tensor.shape), *plain)
    streams.append(plain[1])
    return False


def _memory(tensor: Tensor | ComputedTensor) -> tuple[object, ...] | None:
    """Return what two names have in common when they stand for one tensor; None if it is only itself."""
    if isinstance(tensor, ComputedTensor):
        return (id(tensor),)
    if not tensor.numel():
        return None
    signs = (tensor.is_conj(), tensor.is_neg())  # a view may set these without touching memory
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), signs)


def seal(flags: int, head: bytes, streams: Iterable[bytes], version: int = VERSION) -> bytes:
    """Join a header and streams to a file."""
    front = bytearray([version, flags])
    put_varint(front, len(head))
    sealed = bytes(front) + head
    return b"".join([MAGIC, sealed, zlib.crc32(sealed).to_bytes(4, "little"), *streams])


class Archive:
    """A .cut file that is open for reading: its header is checked, its tensors are decoded one by one when asked for.

    `max_bytes` limits what all tensors together may take in memory, at four bytes an element or more, and what their
    codec needs in addition: a file of a few bytes may announce any number of zeros.
    """

    def __init__(self, file: BinaryIO, max_bytes: int = MAX_BYTES) -> None:
        self._file, self._max_bytes = file, max_bytes
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        cursor, start = self._read_header()
        self.architecture, self.metadata = take_preamble(cursor, self.flags)
        self.records = take_records(
            cursor, self._layout(cursor), start, self.size, max_bytes, has_formulas=self.version == COMPUTED
        )
        cursor.end()
        self.header_bytes = start

    @property
    def has_sorted_units(self) -> bool:
        """Whether hidden units were sorted when the file was written; the function is still the model's."""
        return bool(self.flags & SORTED)

    def _read_header(self) -> tuple[Cursor, int]:
        """Return a cursor over the checked header, and where the streams begin."""
        magic = self._file.read(len(MAGIC))
        if magic != MAGIC:
            hint = "it was changed by a transfer as text" if magic[1:4] == MAGIC[1:4] else "it begins differently"
            cut = "it ends within its first eight bytes"
            raise FormatError(f"this is not a .cut file: {cut if MAGIC.startswith(magic) else hint}", offset=0)
        front = self._file.read(2 + 9)
        cursor = Cursor(front, len(MAGIC))
        self.version, self.flags = cursor.byte(), cursor.byte()
        if self.version not in (VERSION, COMPUTED):
            raise FormatError(f"version {self.version} of the format is unknown: update secateur", offset=len(MAGIC))
        if (
            self.flags >= 2 * SORTED
            or self.flags & (NAMED | CLASS) == NAMED | CLASS
            or self.flags & (NAMED | LAYOUT) == LAYOUT
        ):
            raise FormatError(f"flags {self.flags:#04x} are unknown: update secateur", offset=len(MAGIC) + 1)
        length = cursor.varint()
        begin = len(MAGIC) + cursor.position
        if length > self.size - begin - 4:
            raise cursor.wrong(f"a header of {length:,} bytes is announced, the file has {self.size:,}")
        self._file.seek(begin)
        header = self._file.read(length)
        checksum = int.from_bytes(self._file.read(4), "little")
        if zlib.crc32(header, zlib.crc32(front[: cursor.position])) != checksum:
            raise FormatError("the header is damaged: its checksum does not match", offset=begin + length)
        return Cursor(header, begin), begin + length + 4

    def _layout(self, cursor: Cursor) -> Layout | None:
        if not self.flags & LAYOUT:
            return None
        layout = layout_of(self.architecture.name) if self.architecture is not None else None
        if layout is None:
            raise cursor.wrong("the layout is that of a network that is unknown: update secateur")
        return layout

    def record(self, name: str) -> TensorRecord:
        """Return what the file says about a tensor."""
        for record in self.records:
            if record.name == name:
                return record
        raise KeyError(name)

    def read(self, record: TensorRecord) -> Tensor:
        """Decode one tensor, and no other."""
        if record.formula is not None:
            return self._compute(record)[1]
        with _inside(record):
            return decode_tensor(self._stream(record), record.coding, record.dtype, record.shape)

    def read_parts(self, record: TensorRecord) -> ComputedTensor:
        """Decode what a tensor is computed from, once it is known that it can be."""
        return self._compute(record)[0]

    def _compute(self, record: TensorRecord) -> tuple[ComputedTensor, Tensor]:
        assert record.formula is not None
        parts = [self.read(part) for part in record.parts]
        with _inside(record):
            try:
                computed = ComputedTensor(record.formula, parts, record.shape, record.dtype)
                return computed, computed.value()
            except ValueError as error:
                raise FormatError(str(error), offset=0) from error

    def read_sparse(self, record: TensorRecord) -> SparseTensor:
        """Decode the non-zeros of one tensor, without a dense tensor or a matrix of its levels.

        In addition to the stream, memory grows with the non-zeros, and with a few rows if the codec is "context". A
        tensor without zeros takes twice the memory of a dense one: use `read` for it. A tensor whose places and values
        would take more than `max_bytes` is refused. One that is computed from smaller ones is dense in between.
        """
        dtype, shape = record.dtype, record.shape
        needed = record.coding.nonzero * ((4 if record.size < 1 << 31 else 8) + max(dtype.itemsize, 4))
        with _inside(record):
            if needed > self._max_bytes:
                allowed = f"max_bytes = {self._max_bytes:,} allows"
                raise FormatError(f"its non-zeros need more memory than {allowed}: read it as a dense tensor", offset=0)
        if record.formula is not None:
            return sparse_tensor(*find_values(to_bits(self.read(record))), dtype, shape)
        with _inside(record):
            if record.coding.kind == Values.RAW:
                places, bits = find_raw(lambda: self._pieces(record, _PIECE), dtype, shape)
            else:
                places, bits = decode_sparse(self._stream(record), record.coding, dtype, shape)
            return sparse_tensor(places, bits, dtype, shape)

    def _stream(self, record: TensorRecord) -> memoryview:
        [stream] = [*self._pieces(record, max(record.length, 1))] or [b""]
        return memoryview(stream)

    def _pieces(self, record: TensorRecord, most: int) -> Iterator[bytes]:
        """Yield the stream of a tensor, at most that many bytes at a time, and check it in the end."""
        self._file.seek(record.offset)
        checksum = 0
        for start in range(0, record.length, most):
            wanted = min(most, record.length - start)
            piece = self._file.read(wanted)
            if len(piece) != wanted:
                raise FormatError("the file ends within the tensor", offset=0)
            checksum = zlib.crc32(piece, checksum)
            yield piece
        if checksum != record.checksum:
            raise FormatError("the stream is damaged: its checksum does not match", offset=0)

    def read_all(self) -> Iterator[tuple[TensorRecord, Tensor]]:
        """Decode all tensors in the order of the file; tied names share one tensor."""
        tied: dict[str, Tensor] = {}
        shared = {record.alias_of for record in self.records}
        for record in self.records:
            tensor = self.read(record) if record.alias_of is None else tied[record.alias_of]
            if record.name in shared:
                tied[record.name] = tensor
            yield record, tensor


@contextmanager
def _inside(record: TensorRecord) -> Iterator[None]:
    """Make errors inside name the tensor, and count bytes from the start of the file."""
    try:
        yield
    except FormatError as error:
        raise error.inside(record.name, record.offset) from error


@contextmanager
def open_archive(path: str | PathLike[str], max_bytes: int = MAX_BYTES) -> Iterator[Archive]:
    """Open a .cut file for reading; errors inside name the file."""
    with Path(path).open("rb") as file:
        try:
            yield Archive(file, max_bytes)
        except FormatError as error:
            raise _in_file(error, path) from error


def load_state(path: str | PathLike[str], *, max_bytes: int = MAX_BYTES) -> dict[str, Tensor]:
    """Read the tensors of a .cut file by name, as a plain state dict; tied names share one tensor."""
    with open_archive(path, max_bytes) as archive:
        return {record.name: tensor for record, tensor in archive.read_all()}


def _in_file(error: FormatError, path: str | PathLike[str]) -> FormatError:
    named = FormatError(str(error))
    named.message, named.offset, named.tensor = error.message, error.offset, error.tensor
    named.args = (f"{Path(path)}: {error}",)
    return named
