"""WebDataset shards: tar archives in which a picture and its label, `KEY.jpg` and `KEY.cls`, follow each other.

Shards are indexed once, by their headers, and then read at any place, like folders: any order, any share of a process.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from secateur.data.folders import Picture, is_picture, name_hash
from secateur.data.images import DataError
from secateur.data.pictures import printable
from secateur.data.streams import Place

_BLOCK_BYTES = 512
_MOST_LABEL = 40  # bytes
_PIECE_BYTES = 1 << 20  # of the zeros at the end of an archive, read at a time


class _Sample(NamedTuple):
    """One picture of a shard and its label, where the shard has both."""

    key: str
    picture: tarfile.TarInfo | None = None
    label: bytes | None = None


def pictures_in(shards: Sequence[Path], classes: Sequence[str]) -> list[Picture]:
    """Return the pictures of shards with their labels, which are positions among the classes."""
    found = []
    for shard in shards:
        for sample in _samples(shard):
            if sample.picture is None:
                continue
            label = _label(sample, shard, len(classes))
            place = Place(str(shard), sample.picture.offset_data, sample.picture.size)
            name = sample.picture.name.rpartition("/")[2]
            found.append(Picture(name_hash(classes[label], name), label, place, name))
    if not found:
        raise DataError(
            f"{printable(shards[0])} has no picture KEY.jpg with a label KEY.cls: unpack it if it is not a shard"
        )
    return found


def _label(sample: _Sample, shard: Path, classes: int) -> int:
    where = f"{printable(shard)}: {sample.key}"
    if sample.label is None:
        raise DataError(f"{where} has a picture but no label: a shard needs a file {sample.key}.cls with a number")
    text = sample.label.decode("ascii", "replace").strip()
    if len(sample.label) > _MOST_LABEL or not text.isdecimal() or int(text) >= classes:
        raise DataError(f"{where}.cls must be a number from 0 to {classes - 1}, got {text[:_MOST_LABEL]!r}")
    return int(text)


def _samples(shard: Path) -> Iterator[_Sample]:
    """Yield the samples of a shard; a DataError says that it is none, ends early or is damaged."""
    sample, count = _Sample(""), 0
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if key != sample.key:
                    yield sample
                    sample, count = _Sample(key), count + 1
                if suffix == "cls":
                    content = archive.extractfile(member)
                    assert content is not None
                    sample = sample._replace(label=content.read(_MOST_LABEL + 1))
                elif is_picture(name):
                    sample = sample._replace(picture=member)
    except tarfile.ReadError as error:
        if count == 0:
            raise DataError(
                f"{printable(shard)} is not a tar archive, or a compressed one: unpack it ({error})"
            ) from None
    except OSError as error:
        raise DataError(f"{printable(shard)} cannot be read: {error.strerror or error}") from error
    _require_end(shard, archive.offset, count)
    yield sample


def _require_end(shard: Path, offset: int, count: int) -> None:
    """Raise a DataError unless an archive ends at an offset: with two blocks of zeros or more, and nothing else.

    tarfile stops at a damaged header as it does at the end, without an error.
    """
    with shard.open("rb") as file:
        if file.seek(0, os.SEEK_END) < offset + 2 * _BLOCK_BYTES:
            raise DataError(f"{printable(shard)} ends early, after {count:,} samples: copy it again")
        file.seek(offset)
        while piece := file.read(_PIECE_BYTES):
            if any(piece):
                remedy = "copy it again, or keep each archive in a file of its own"
                raise DataError(
                    f"{printable(shard)} is damaged at byte {offset:,}, or several archives in one: {remedy}"
                )
