"""The .cut container: a header with one record per tensor, then one stream per tensor. docs/format.md has it all.

A reader believes nothing: every length, shape and count is checked against the file and the caller's limit before
memory is taken for it. The checksums find accidents; they do not prove who wrote a file.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from secateur.encode.bounds import MOST_LEVELS, FormatError
from secateur.encode.codecs import CODECS, RAW, by_number, choose
from secateur.encode.levels import Values, fits, table_bytes
from secateur.encode.tensors import ZEROS, Coding, decode_tensor, encode_tensor
from secateur.encode.varint import Cursor, put_pair, put_text, put_varint

MAGIC = b"\x89CUT\r\n\x1a\n"
VERSION = 1
MAX_BYTES = 4 << 30

_NAMED, _CLASS, _METADATA = 1, 2, 4  # flags
_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_ENDINGS = ("", ".weight", ".bias", ".running_mean", ".running_var", ".num_batches_tracked")
_RANKS = (1, 2, 4)  # two bits name these; the third pattern says that the rank follows
_MOST_TENSORS, _LONGEST_NAME, _MOST_DIMENSIONS, _MOST_ELEMENTS = 1 << 16, 512, 32, 1 << 48
_LONGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class Architecture:
    """What network the tensors belong to: one of ours by name, or a class by its path with arguments as data."""

    name: str
    arguments: Mapping[str, Any] | None = None  # None: one of ours

    @property
    def is_ours(self) -> bool:
        """Tell whether `models.build` knows it."""
        return self.arguments is None


@dataclass(frozen=True)
class Record:
    """What a file says about one tensor, and where its stream lies."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    coding: Coding
    offset: int
    length: int
    checksum: int
    alias_of: str | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def codec(self) -> str:
        """The name of the codec."""
        return "raw" if self.coding.codec == RAW else by_number(self.coding.codec).name


def to_bytes(
    tensors: Mapping[str, Tensor],
    *,
    codec: str = "smallest",
    metadata: Mapping[str, str] | None = None,
    architecture: Architecture | None = None,
) -> bytes:
    """Return a whole .cut file."""
    codecs = choose(codec)
    head, streams = bytearray(), []
    flags = _put_preamble(head, dict(metadata or {}), architecture)
    put_varint(head, len(tensors))
    if len(tensors) > _MOST_TENSORS:
        raise ValueError(f"a file holds at most {_MOST_TENSORS:,} tensors, got {len(tensors):,}")
    known: dict[tuple[object, ...], int] = {}
    stem = ""
    for index, (name, tensor) in enumerate(tensors.items()):
        _require_storable(name, tensor)
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and memory in known:
            stem = _put_start(head, name, stem, 0, Values.ALIAS, 0)
            put_varint(head, known[memory])
            continue
        known[memory] = index
        coding, stream = encode_tensor(tensor, codecs)
        stem = _put_record(head, name, stem, tensor, coding, stream)
        streams.append(stream)
    front = bytearray([VERSION, flags])
    put_varint(front, len(head))
    sealed = bytes(front + head)
    return b"".join([MAGIC, sealed, zlib.crc32(sealed).to_bytes(4, "little"), *streams])


class Archive:
    """A .cut file that is open for reading: its header is checked, its tensors are decoded one by one when asked for.

    `max_bytes` limits what all tensors together may take in memory, at four bytes an element or more: a file of
    a few bytes may announce any number of zeros.
    """

    def __init__(self, file: BinaryIO, max_bytes: int = MAX_BYTES) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        cursor, start = self._read_header()
        self.architecture, self.metadata = _take_preamble(cursor, self.flags)
        self.records = _take_records(cursor, start, self.size, max_bytes)
        cursor.end()
        self.header_bytes = start

    def _read_header(self) -> tuple[Cursor, int]:
        """Return a cursor over the checked header, and where the streams begin."""
        magic = self._file.read(len(MAGIC))
        if magic != MAGIC:
            hint = "it was changed by a transfer as text" if magic[1:4] == MAGIC[1:4] else "it begins differently"
            cut = "it ends within its first eight bytes"
            raise FormatError(f"this is not a .cut file: {cut if MAGIC.startswith(magic) else hint}", offset=0)
        front = self._file.read(2 + 9)
        cursor = Cursor(front, len(MAGIC))
        version, self.flags = cursor.byte(), cursor.byte()
        if version != VERSION:
            raise FormatError(f"version {version} of the format is unknown: update secateur", offset=len(MAGIC))
        if self.flags & ~(_NAMED | _CLASS | _METADATA) or (self.flags & _NAMED and self.flags & _CLASS):
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

    def record(self, name: str) -> Record:
        """Return what the file says about a tensor."""
        for record in self.records:
            if record.name == name:
                return record
        raise KeyError(name)

    def read(self, record: Record) -> Tensor:
        """Decode one tensor, and no other."""
        self._file.seek(record.offset)
        stream = self._file.read(record.length)
        if len(stream) != record.length:
            raise FormatError("the file ends within the tensor", offset=record.offset, tensor=record.name)
        if zlib.crc32(stream) != record.checksum:
            raise FormatError(
                "the stream is damaged: its checksum does not match", offset=record.offset, tensor=record.name
            )
        try:
            return decode_tensor(memoryview(stream), record.coding, record.dtype, record.shape)
        except FormatError as error:
            raise error.inside(record.name, record.offset) from error

    def read_all(self) -> Iterator[tuple[Record, Tensor]]:
        """Decode all tensors in the order of the file; tied ones are one tensor."""
        tied: dict[str, Tensor] = {}
        shared = {record.alias_of for record in self.records}
        for record in self.records:
            tensor = self.read(record) if record.alias_of is None else tied[record.alias_of]
            if record.name in shared:
                tied[record.name] = tensor
            yield record, tensor


@contextmanager
def open_archive(path: str | PathLike[str], max_bytes: int = MAX_BYTES) -> Iterator[Archive]:
    """Open a .cut file for reading; errors inside name the file."""
    with Path(path).open("rb") as file:
        try:
            yield Archive(file, max_bytes)
        except FormatError as error:
            raise _in_file(error, path) from error


def _in_file(error: FormatError, path: str | PathLike[str]) -> FormatError:
    named = FormatError(str(error))
    named.message, named.offset, named.tensor = error.message, error.offset, error.tensor
    named.args = (f"{Path(path)}: {error}",)
    return named


def _put_preamble(head: bytearray, metadata: dict[str, str], architecture: Architecture | None) -> int:
    """Append architecture and metadata as far as there are any, and return the flags that say so."""
    flags = 0
    if architecture is not None:
        flags |= _NAMED if architecture.is_ours else _CLASS
        put_text(head, architecture.name)
        if not architecture.is_ours:
            put_text(head, json.dumps(architecture.arguments, sort_keys=True, separators=(",", ":")))
    if metadata:
        flags |= _METADATA
        plain = bytearray()
        for key, value in sorted(metadata.items()):
            if not isinstance(key, str) or not isinstance(value, str):
                raise ValueError(f"metadata must map text to text, got {key!r}: {value!r}")
            put_text(plain, key)
            put_text(plain, value)
        if len(plain) > _LONGEST_TEXT:
            raise ValueError(f"metadata may take {_LONGEST_TEXT:,} bytes, got {len(plain):,}")
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflate.compress(plain) + deflate.flush()
        put_varint(head, len(packed))
        head += packed
    return flags


def _take_preamble(cursor: Cursor, flags: int) -> tuple[Architecture | None, dict[str, str]]:
    architecture = None
    if flags & (_NAMED | _CLASS):
        name = cursor.text(_LONGEST_NAME)
        if not name or not name.isprintable():
            raise cursor.wrong("the name of the architecture is empty or unprintable")
        architecture = Architecture(name, _take_arguments(cursor) if flags & _CLASS else None)
    return architecture, _take_metadata(cursor) if flags & _METADATA else {}


def _take_arguments(cursor: Cursor) -> dict[str, Any]:
    try:
        arguments = json.loads(cursor.text(_LONGEST_TEXT))
    except FormatError:
        raise
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise cursor.wrong("the arguments of the architecture are not a JSON object")
    return arguments


def _take_metadata(cursor: Cursor) -> dict[str, str]:
    packed = cursor.take(cursor.varint())
    inflate = zlib.decompressobj(-15)
    try:
        plain = inflate.decompress(packed, _LONGEST_TEXT)
    except zlib.error:
        raise cursor.wrong("the metadata cannot be inflated") from None
    if not inflate.eof or inflate.unused_data:
        raise cursor.wrong(f"the metadata is cut short, has bytes left over or is above {_LONGEST_TEXT:,} bytes")
    inner, metadata = Cursor(plain), dict[str, str]()
    try:
        while inner.left:
            key = inner.text(_LONGEST_TEXT)
            if key in metadata:
                raise inner.wrong(f"{key[:40]!r} is there twice")
            metadata[key] = inner.text(_LONGEST_TEXT)
    except FormatError as error:
        raise cursor.wrong(f"the metadata is damaged: {error.message}") from error
    if not metadata:
        raise cursor.wrong("the metadata is announced and empty")
    return metadata


def _require_storable(name: str, tensor: Tensor) -> None:
    if not name or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        raise ValueError(f"a tensor's name must be printable, of 1 to {_LONGEST_NAME} bytes, got {name[:60]!r}")
    if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_quantized:
        kind = f"{tensor.layout} tensor of {tensor.dtype}"
        raise ValueError(f'"{name}" is a {kind}, which a file cannot hold: make it a plain float or integer tensor')
    if tensor.is_meta:
        raise ValueError(f'"{name}" lies on the meta device and has no values: load or initialise the model first')


def _put_start(head: bytearray, name: str, before: str, first: int, kind: Values, rank: int) -> str:
    """Append the two bytes a record begins with, and its name as it differs from the one before; return its stem."""
    ending = max(n for n, end in enumerate(_ENDINGS) if name.endswith(end) and len(name) > len(end))
    stem = name.removesuffix(_ENDINGS[ending])
    raw, known = stem.encode(), before.encode()
    shared = next((i for i, pair in enumerate(zip(raw, known, strict=False)) if pair[0] != pair[1]), None)
    shared = min(len(raw), len(known)) if shared is None else shared
    head += bytes([first, kind | ending << 3 | rank << 6])
    put_pair(head, shared, len(raw) - shared)
    head += raw[shared:]
    return stem


def _put_record(head: bytearray, name: str, before: str, tensor: Tensor, coding: Coding, stream: bytes) -> str:
    rank = _RANKS.index(tensor.dim()) if tensor.dim() in _RANKS else len(_RANKS)
    stem = _put_start(head, name, before, _DTYPES.index(tensor.dtype) | coding.codec << 4, coding.kind, rank)
    if rank == len(_RANKS):
        put_varint(head, tensor.dim())
    for dimension in tensor.shape:
        put_varint(head, dimension)
    if coding.kind not in (Values.RAW, Values.BITS):
        put_pair(head, coding.negatives, coding.positives)
    if coding == ZEROS:
        return stem
    if coding.kind != Values.RAW:
        put_varint(head, coding.nonzero)
        put_varint(head, len(stream))
    head += zlib.crc32(stream).to_bytes(4, "little")
    return stem


def _take_records(cursor: Cursor, offset: int, end: int, max_bytes: int) -> tuple[Record, ...]:
    """Read all records; their streams must fill the file from `offset` to its end."""
    count = cursor.varint()
    if count > _MOST_TENSORS:
        raise cursor.wrong(f"{count:,} tensors are announced, {_MOST_TENSORS:,} are allowed")
    records: dict[str, Record] = {}
    stem, budget = b"", max_bytes
    for _ in range(count):
        first, second = cursor.byte(), cursor.byte()
        stem, name = _take_name(cursor, stem, second >> 3 & 7)
        if name in records:
            raise cursor.wrong(f'there are two tensors "{name}"')
        try:
            kind = Values(second & 7)
            if kind == Values.ALIAS:
                record = _take_alias(cursor, name, first, second, list(records.values()))
            else:
                record = _take_record(cursor, name, first, second, kind, offset)
                budget -= record.size * max(record.dtype.itemsize, 4)
                if budget < 0:
                    raise cursor.wrong(f"the file needs more memory than max_bytes = {max_bytes:,} allows")
                offset += record.length
                if offset > end:
                    raise cursor.wrong(f"its stream ends at byte {offset:,}, the file at {end:,}")
        except FormatError as error:
            raise FormatError(error.message, offset=error.offset, tensor=name) from error
        records[name] = record
    if offset != end:
        raise FormatError(f"{end - offset:,} bytes behind the last stream belong to nothing", offset=offset)
    return tuple(records.values())


def _take_name(cursor: Cursor, before: bytes, ending: int) -> tuple[bytes, str]:
    shared, length = cursor.pair()
    if shared > len(before) or shared + length > _LONGEST_NAME:
        raise cursor.wrong(f"a name shares {shared:,} bytes with one of {len(before):,}, or is too long")
    if ending >= len(_ENDINGS):
        raise cursor.wrong(f"ending {ending} of a name is unknown")
    stem = before[:shared] + bytes(cursor.take(length))
    try:
        name = stem.decode() + _ENDINGS[ending]
    except UnicodeDecodeError:
        raise cursor.wrong("a name is not UTF-8") from None
    if not stem or not name.isprintable():
        raise cursor.wrong("a name is empty or unprintable")
    return stem, name


def _take_alias(cursor: Cursor, name: str, first: int, second: int, records: list[Record]) -> Record:
    index = cursor.varint()
    if index >= len(records) or records[index].alias_of is not None or first or second >> 6:
        raise cursor.wrong("it is tied to a tensor that is not there")
    return replace(records[index], name=name, alias_of=records[index].name)


def _take_record(cursor: Cursor, name: str, first: int, second: int, kind: Values, offset: int) -> Record:
    number, codec, rank = first & 15, first >> 4, second >> 6
    if number >= len(_DTYPES):
        raise cursor.wrong(f"dtype {number} is unknown: the file was written by a newer version")
    dtype = _DTYPES[number]
    shape = _take_shape(cursor, rank)
    size = math.prod(shape)
    negatives, positives = (0, 1) if kind in (Values.RAW, Values.BITS) else cursor.pair()
    if negatives + positives >= MOST_LEVELS:
        raise cursor.wrong(f"{negatives:,} + {positives:,} levels beside zero are more than {MOST_LEVELS - 1:,}")
    if negatives + positives == 0:
        if (kind, codec) != (ZEROS.kind, ZEROS.codec):
            raise cursor.wrong("a tensor without levels is coded as if it had some")
        return Record(name, dtype, shape, ZEROS, offset, 0, 0)
    if size == 0:
        raise cursor.wrong("an empty tensor is coded as if it had values")
    if kind == Values.RAW:
        coding, length = Coding(kind, codec), size * dtype.itemsize
    else:
        coding, length = Coding(kind, codec, cursor.varint(), negatives, positives), cursor.varint()
        if not 1 <= coding.nonzero <= size:
            raise cursor.wrong(f"{coding.nonzero:,} of {size:,} elements are announced as not zero")
    # Values that are everywhere have no positions, hence no codec.
    if (codec == RAW) != (kind == Values.RAW or (kind == Values.BITS and coding.nonzero == size)):
        raise cursor.wrong(f"codec {codec} cannot be used for this kind of values")
    if codec not in (RAW, *(known.number for known in CODECS)):
        raise cursor.wrong(f"codec {codec} is unknown: the file was written by a newer version")
    if not fits(kind, dtype) or length < table_bytes(kind, dtype, negatives, positives):
        raise cursor.wrong(f"{kind.name} values of {dtype} do not exist, or not in {length:,} bytes")
    return Record(name, dtype, shape, coding, offset, length, int.from_bytes(cursor.take(4), "little"))


def _take_shape(cursor: Cursor, rank: int) -> tuple[int, ...]:
    dimensions = _RANKS[rank] if rank < len(_RANKS) else cursor.varint()
    if dimensions > _MOST_DIMENSIONS or (rank == len(_RANKS) and dimensions in _RANKS):
        raise cursor.wrong(f"{dimensions:,} dimensions are too many, or written the long way")
    shape = tuple(cursor.varint() for _ in range(dimensions))
    if math.prod(max(dimension, 1) for dimension in shape) > _MOST_ELEMENTS:
        raise cursor.wrong(f"a tensor of shape {shape} is larger than any")
    return shape
