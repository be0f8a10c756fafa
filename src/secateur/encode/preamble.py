"""What a .cut header says before the records of tensors: which network they belong to, and metadata."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from secateur.encode.errors import FormatError
from secateur.encode.records import LONGEST_NAME, require_text
from secateur.encode.varint import Cursor, put_text, put_varint

NAMED, CLASS, METADATA, LAYOUT, SORTED = 1, 2, 4, 8, 16  # flags
_LONGEST_TEXT = 1 << 20
# Frequent metadata, known to writer and reader: without it, metadata would be a tenth of a file of two kilobytes.
DICTIONARY = (
    b"authordescriptionlicenceversiontest errorconfigmodelcompressed-quantizer=uniform-conv_levels=256-codec=huffman"
    b"-sort_units=False-lambda_rate=1e-06-quantize_lr=0.002-levels=16-bias_levels=31-quantize_epochs=8"
    b"cifar10fashion-mnistdigitslenet-5-mnist-lenet-300-100-mnist-alpha=50-epochs=160-fine_tune_epochs=60"
    b"-fine_tune_lr=0.002-schedule=cosine-rho=0.046-input_dropout=0.1-augment=0.5-scaling=standard-seed=0"
    b"compressiondatamnistmean0.1307167506std0.308196641runsecateurvalidation error %1."
)


@dataclass(frozen=True)
class Architecture:
    """Which network the tensors belong to: one that readers know by name, or a class path with keyword arguments."""

    name: str
    arguments: Mapping[str, Any] | None = None  # None: known by name

    @property
    def is_named(self) -> bool:
        """Whether readers know it by its name."""
        return self.arguments is None


def put_preamble(head: bytearray, metadata: dict[str, str], architecture: Architecture | None) -> int:
    """Append architecture and metadata, if there are any, and return the flags that say so."""
    flags = 0
    if architecture is not None:
        flags |= NAMED if architecture.is_named else CLASS
        require_text("the name of the architecture", architecture.name)
        put_text(head, architecture.name)
        if not architecture.is_named:
            put_text(head, _arguments_as_json(architecture))
    if metadata:
        flags |= METADATA
        plain = bytearray()
        for key, value in sorted(metadata.items()):
            if not isinstance(key, str) or not isinstance(value, str):
                raise ValueError(f"metadata must map text to text, got {key!r}: {value!r}")
            try:
                put_text(plain, key)
                put_text(plain, value)
            except UnicodeEncodeError:
                raise ValueError(f"metadata must be text in Unicode, got half a character in {key!a}") from None
        if len(plain) > _LONGEST_TEXT:
            raise ValueError(f"metadata may take {_LONGEST_TEXT:,} bytes, got {len(plain):,}")
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=DICTIONARY)
        packed = deflate.compress(plain) + deflate.flush()
        put_varint(head, len(packed))
        head += packed
    return flags


def _arguments_as_json(architecture: Architecture) -> str:
    try:
        text = json.dumps(architecture.arguments, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of {architecture.name} must be data for JSON: {error}") from None
    if len(text) > _LONGEST_TEXT:  # it is ASCII
        raise ValueError(
            f"the arguments of {architecture.name} may take {_LONGEST_TEXT:,} bytes, got {len(text):,}: leave out "
            "what a file of tensors can hold"
        )
    return text


def take_preamble(cursor: Cursor, flags: int) -> tuple[Architecture | None, dict[str, str]]:
    """Read architecture and metadata, as far as the flags announce them."""
    architecture = None
    if flags & (NAMED | CLASS):
        name = cursor.text(LONGEST_NAME)
        if not name or not name.isprintable():
            raise cursor.wrong("the name of the architecture is empty or unprintable")
        architecture = Architecture(name, _take_arguments(cursor) if flags & CLASS else None)
    return architecture, _take_metadata(cursor) if flags & METADATA else {}


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
    inflate = zlib.decompressobj(-15, zdict=DICTIONARY)
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
                raise inner.wrong(f"{key[:40]!r} appears twice")
            metadata[key] = inner.text(_LONGEST_TEXT)
    except FormatError as error:
        raise cursor.wrong(f"the metadata is damaged: {error.message}") from error
    if not metadata:
        raise cursor.wrong("the metadata is announced and empty")
    return metadata
