"""The records of a .cut header, one per tensor: its name, dtype and shape, how it is coded, and where its stream is."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateur.encode.codecs import CODECS, RAW, by_number, context
from secateur.encode.codecs.bounds import MOST_LEVELS
from secateur.encode.errors import FormatError
from secateur.encode.formulas import ComputedTensor, Formula, number_of, take_formula
from secateur.encode.layouts import Layout
from secateur.encode.levels import Values, fits, table_bytes, view_2d
from secateur.encode.tensors import ZEROS, Coding
from secateur.encode.varint import Cursor, put_pair, put_varint

LONGEST_NAME = 512  # bytes
DTYPES: tuple[torch.dtype, ...] = (
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
_MOST_TENSORS, _MOST_DIMENSIONS, _MOST_ELEMENTS = 1 << 16, 32, 1 << 48


@dataclass(frozen=True)
class TensorRecord:
    """What a file says about one tensor, and where its stream lies."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    coding: Coding
    offset: int
    length: int
    checksum: int
    alias_of: str | None = None
    # A computed tensor has a formula and the records of its parts, whose length is its own; its coding says nothing.
    formula: Formula | None = None
    parts: tuple[TensorRecord, ...] = ()

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def codec(self) -> str:
        """The name of the codec; of a computed tensor the name of its formula."""
        if self.formula is not None:
            return self.formula.name
        return "raw" if self.coding.codec == RAW else by_number(self.coding.codec).name


def require_text(what: str, text: str) -> None:
    """Refuse a name that no reader would accept."""
    if not text or not text.isprintable() or len(text.encode()) > LONGEST_NAME:
        raise ValueError(f"{what} must be printable, of 1 to {LONGEST_NAME} bytes, got {text[:60]!r}")


def require_storable(name: str, tensor: Tensor | ComputedTensor) -> None:
    """Refuse a tensor that no record can describe."""
    require_text("a tensor's name", name)
    for part in tensor.parts if isinstance(tensor, ComputedTensor) else (tensor,):
        if part.dtype not in DTYPES or part.layout != torch.strided or part.is_quantized:
            kind = f"{part.layout} tensor of {part.dtype}"
            raise ValueError(f'"{name}" is a {kind}, which a file cannot hold: make it a plain float or integer tensor')
        if part.is_meta:
            raise ValueError(f'"{name}" lies on the meta device and has no values: load or initialise the model first')
    if len(tensor.shape) > _MOST_DIMENSIONS:
        raise ValueError(
            f'"{name}" has {len(tensor.shape)} dimensions, and a file knows at most {_MOST_DIMENSIONS}: reshape it'
        )
    if _is_too_large(tuple(tensor.shape)):
        raise ValueError(
            f'"{name}" is of shape {tuple(tensor.shape)}, which is larger than a file can hold: reshape it'
        )


class RecordWriter:
    """Appends records to a header; with the layout of a network they need no names, dtypes and shapes."""

    def __init__(self, head: bytearray, layout: Layout | None, count: int) -> None:
        if count > _MOST_TENSORS:
            raise ValueError(f"a file holds at most {_MOST_TENSORS:,} tensors, got {count:,}")
        self._head, self._layout, self._stem = head, layout, b""
        if layout is None:
            put_varint(head, count)

    def put_alias(self, name: str, index: int) -> None:
        """Append a tensor that is the same as an earlier one."""
        self._put_start(name, 0, RAW, Values.ALIAS, 0)
        put_varint(self._head, index)

    def put(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], coding: Coding, stream: bytes) -> None:
        """Append a tensor with a stream."""
        self._put_type(name, dtype, shape, coding.codec, coding.kind)
        self._put_coding(coding, stream)

    def put_computed(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        formula: Formula,
        parts: Iterable[tuple[Coding, bytes]],
    ) -> None:
        """Append a tensor that is computed from parts with streams."""
        self._put_type(name, dtype, shape, number_of(formula), Values.ALIAS)
        for number in formula.numbers:
            put_varint(self._head, number)
        for coding, stream in parts:
            self._head.append(coding.kind | coding.codec << 4)
            self._put_coding(coding, stream)

    def _put_type(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], codec: int, kind: Values) -> None:
        rank = _RANKS.index(len(shape)) if len(shape) in _RANKS else len(_RANKS)
        self._put_start(name, DTYPES.index(dtype), codec, kind, rank)
        if self._layout is None:
            if rank == len(_RANKS):
                put_varint(self._head, len(shape))
            for dimension in shape:
                put_varint(self._head, dimension)

    def _put_coding(self, coding: Coding, stream: bytes) -> None:
        if coding.kind not in (Values.RAW, Values.BITS):
            put_pair(self._head, coding.negatives, coding.positives)
        if coding == ZEROS:
            return
        if coding.kind != Values.RAW:
            put_varint(self._head, coding.nonzero)
            put_varint(self._head, len(stream))
        self._head += zlib.crc32(stream).to_bytes(4, "little")

    def _put_start(self, name: str, dtype: int, codec: int, kind: Values, rank: int) -> None:
        if self._layout is not None:
            self._head.append(kind | codec << 4)
            return
        ending = max(number for number, end in enumerate(_ENDINGS) if name.endswith(end) and len(name) > len(end))
        stem = name.removesuffix(_ENDINGS[ending]).encode()
        shared = next((i for i, (a, b) in enumerate(zip(stem, self._stem, strict=False)) if a != b), None)
        shared = min(len(stem), len(self._stem)) if shared is None else shared
        self._head += bytes([dtype | codec << 4, kind | ending << 3 | rank << 6])
        put_pair(self._head, shared, len(stem) - shared)
        self._head += stem[shared:]
        self._stem = stem


def take_records(
    cursor: Cursor, layout: Layout | None, offset: int, end: int, max_bytes: int, *, has_formulas: bool = False
) -> tuple[TensorRecord, ...]:
    """Read all records; their streams must fill the file from `offset` to its end.

    Files of the first version have no tensors that are computed.
    """
    count = cursor.varint() if layout is None else len(layout)
    if count > _MOST_TENSORS:
        raise cursor.wrong(f"{count:,} tensors are announced, {_MOST_TENSORS:,} are allowed")
    names: set[str] = set()
    records: list[TensorRecord] = []
    stem, memory = b"", _Memory(max_bytes)
    for index in range(count):
        if layout is None:
            first, second = cursor.byte(), cursor.byte()
            stem, name = _take_name(cursor, stem, second >> 3 & 7)
        else:
            first = second = cursor.byte()
            name = layout[index][0]
        if name in names:
            raise cursor.wrong(f'there are two tensors "{name}"')
        names.add(name)
        try:
            kind, codec = Values(second & 7), first >> 4
            if layout is not None and first & 8:
                raise cursor.wrong("a bit that has no meaning is set")
            is_computed = kind == Values.ALIAS and codec > 0 and has_formulas
            if kind == Values.ALIAS and not is_computed:
                if codec or (layout is None and (first or second >> 6)):
                    raise cursor.wrong("a tied tensor has a dtype, a codec or a rank of its own")
                records.append(_take_alias(cursor, name, records))
                continue
            dtype, shape = _take_type(cursor, first & 15, second >> 6) if layout is None else layout[index][1:]
            take = _take_computed if is_computed else _take_record
            record = take(cursor, name, dtype, shape, kind, codec, offset)
            memory.take(cursor, record)
            offset += record.length
            if offset > end:
                raise cursor.wrong(f"its stream ends at byte {offset:,}, the file at {end:,}")
        except FormatError as error:
            raise FormatError(error.message, offset=error.offset, tensor=name) from error
        records.append(record)
    if offset != end:
        raise FormatError(f"{end - offset:,} bytes behind the last stream belong to nothing", offset=offset)
    return tuple(records)


class _Memory:
    """What is left of the caller's limit, and what decoding the most demanding tensor takes besides the tensors."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = self._left = max_bytes
        self._working = 0  # one tensor is decoded at a time

    def take(self, cursor: Cursor, record: TensorRecord) -> None:
        """Count a tensor, and refuse it if it is too large."""
        self._left -= record.size * max(record.dtype.itemsize, 4)
        working = sum(part.size * max(part.dtype.itemsize, 4) for part in record.parts)
        if record.formula is not None:
            working += record.formula.working_bytes(record.shape)
        coded = [each for each in (record, *record.parts) if each.codec == "context"]
        working += max((context.working_bytes(*view_2d(each.shape)) for each in coded), default=0)
        self._working = max(self._working, working)
        if self._left < self._working:
            raise cursor.wrong(f"the file needs more memory than max_bytes = {self._limit:,} allows")


def _take_name(cursor: Cursor, before: bytes, ending: int) -> tuple[bytes, str]:
    shared, length = cursor.pair()
    if shared > len(before) or shared + length > LONGEST_NAME:
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


def _take_alias(cursor: Cursor, name: str, records: list[TensorRecord]) -> TensorRecord:
    index = cursor.varint()
    if index >= len(records) or records[index].alias_of is not None:
        raise cursor.wrong("it is tied to a tensor that does not exist")
    return replace(records[index], name=name, alias_of=records[index].name)


def _take_type(cursor: Cursor, number: int, rank: int) -> tuple[torch.dtype, tuple[int, ...]]:
    if number >= len(DTYPES):
        raise cursor.wrong(f"dtype {number} is unknown: the file was written by a newer version")
    return DTYPES[number], _take_shape(cursor, rank)


def _take_record(
    cursor: Cursor, name: str, dtype: torch.dtype, shape: tuple[int, ...], kind: Values, codec: int, offset: int
) -> TensorRecord:
    size = math.prod(shape)
    negatives, positives = (0, 1) if kind in (Values.RAW, Values.BITS) else cursor.pair()
    if negatives + positives >= MOST_LEVELS:
        raise cursor.wrong(f"{negatives:,} + {positives:,} levels besides zero are more than {MOST_LEVELS - 1:,}")
    if negatives + positives == 0:
        if (kind, codec) != (ZEROS.kind, ZEROS.codec):
            raise cursor.wrong("a tensor without levels is coded as if it had some")
        return TensorRecord(name, dtype, shape, ZEROS, offset, 0, 0)
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
    return TensorRecord(name, dtype, shape, coding, offset, length, int.from_bytes(cursor.take(4), "little"))


def _take_computed(
    cursor: Cursor, name: str, dtype: torch.dtype, shape: tuple[int, ...], kind: Values, number: int, offset: int
) -> TensorRecord:
    formula = take_formula(cursor, number)
    try:
        described = formula.parts(dtype, shape)
    except ValueError as error:
        raise cursor.wrong(str(error)) from None
    parts: list[TensorRecord] = []
    for part in described:
        byte = cursor.byte()
        if byte & 8 or byte & 7 == Values.ALIAS:
            raise cursor.wrong(f"its {part.name} is tied, or a bit that has no meaning is set")
        place = offset + sum(each.length for each in parts)
        parts.append(_take_record(cursor, name, part.dtype, part.shape, Values(byte & 7), byte >> 4, place))
    length, coding = sum(part.length for part in parts), Coding(kind, number, math.prod(shape))
    return TensorRecord(name, dtype, shape, coding, offset, length, 0, formula=formula, parts=tuple(parts))


def _take_shape(cursor: Cursor, rank: int) -> tuple[int, ...]:
    dimensions = _RANKS[rank] if rank < len(_RANKS) else cursor.varint()
    if dimensions > _MOST_DIMENSIONS or (rank == len(_RANKS) and dimensions in _RANKS):
        raise cursor.wrong(f"{dimensions:,} dimensions are too many, or written the long way")
    shape = tuple(cursor.varint() for _ in range(dimensions))
    if _is_too_large(shape):
        raise cursor.wrong(f"a tensor of shape {shape} is larger than any")
    return shape


def _is_too_large(shape: tuple[int, ...]) -> bool:
    return math.prod(max(dimension, 1) for dimension in shape) > _MOST_ELEMENTS
