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
    return found


def _label(sample: _Sample, shard: Path, classes: int) -> int:
    where = f"{printable(shard)}: {sample.key}"
    if sample.label is None:
        raise DataError(f"{where} has a picture but no label: a shard needs a file {sample.key}.cls with a number")
    text = sample.label.decode("ascii", "replace").strip()
    if not text.isdecimal() or int(text) >= classes:
        raise DataError(f"{where}.cls must be a number from 0 to {classes - 1}, got {text[:40]!r}")
    return int(text)


def _samples(shard: Path) -> Iterator[_Sample]:
    """Yield the samples of a shard; a DataError says that it is none or ends early."""
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
                    sample = sample._replace(label=content.read())
                elif is_picture(name):
                    sample = sample._replace(picture=member)
        is_whole = _ends_with_zeros(shard)
    except tarfile.ReadError as error:
        if count == 0:
            raise DataError(
                f"{printable(shard)} is not a tar archive, or a compressed one: unpack it ({error})"
            ) from None
        is_whole = False
    except OSError as error:
        raise DataError(f"{printable(shard)} cannot be read: {error.strerror or error}") from error
    if not is_whole:
        raise DataError(f"{printable(shard)} ends early, after {count:,} samples: copy it again")
    yield sample


def _ends_with_zeros(shard: Path) -> bool:
    """Return whether an archive has its end: two blocks of zeros."""
    with shard.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2 * _BLOCK_BYTES))
        return not any(file.read())
