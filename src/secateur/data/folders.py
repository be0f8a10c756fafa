"""Data sets that are folders of pictures, one folder per class."""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from secateur.data.images import DataError, Images, ImageSet, Shape, Split
from secateur.data.pictures import picture_size, picture_suffixes, printable, read_picture, require_pillow

MEMORY_BYTES = 1 << 30  # sets up to this size are read once and kept in memory
_TEST_SHARE = 6  # one in six pictures is for the test, if the folder does not say which
_PICTURES_PER_UNREADABLE = 1000  # a set may have one unreadable picture for so many, and one in any case
# Formats that are not read, by suffix: such files in a class's folder cause a warning.
_UNREAD_SUFFIXES = (
    ".tif",
    ".tiff",
    ".heic",
    ".heif",
    ".avif",
    ".jp2",
    ".svg",
    ".tga",
    ".psd",
    ".raw",
    ".dng",
    ".cr2",
    ".nef",
)


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Pictures that are read when asked for: scaled until they cover the shape, then cut at the centre.

    A picture that cannot be read is replaced by the next one that can, with that one's label, and a warning names it.
    One in a thousand pictures, at least one, may be unreadable; more raise a DataError.
    """

    files: Sequence[Path]
    labels: Tensor
    classes: tuple[str, ...]
    shape: Shape
    _unreadable: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Read the pictures at `indices`; return them with their labels."""
        pixels = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        places = [self._read_into(place, index) for place, index in zip(pixels, indices.tolist(), strict=True)]
        return pixels, self.labels[torch.tensor(places, dtype=torch.int64)]

    def _read_into(self, place: Tensor, index: int) -> int:
        """Read the first readable picture from `index` on; return its index."""
        while True:
            if index not in self._unreadable:
                try:
                    place.copy_(_read(self.files[index], self.shape))
                    return index
                except DataError as error:
                    self._skip(index, str(error))
            index = (index + 1) % len(self)

    def _skip(self, index: int, reason: str) -> None:
        self._unreadable[index] = reason
        _require_few(list(self._unreadable.values()), len(self))
        warnings.warn(f"a picture is replaced by the next one: {reason}", stacklevel=5)


def load_folder(folder: Path, split: Split, shape: Shape, *, memory_bytes: int = MEMORY_BYTES) -> Images:
    """Return one part of a folder of pictures as images of a shape, in memory if that takes at most `memory_bytes`.

    The folder holds `train` and `test` (or `val`), each with one folder per class, or the folders of classes directly;
    then one in six pictures is for the test, chosen by a hash of its class and name. That hash also determines the
    order, which mixes the classes. A class's folder may have subfolders; names that begin with a dot are ignored.
    Up to one in a thousand pictures, at least one, may be unreadable: these are left out, with a warning.
    """
    require_pillow()
    classes, pictures = _find(folder, split)
    labels = torch.tensor([picture.label for picture in pictures], dtype=torch.int64)
    images = FolderImages([picture.path for picture in pictures], labels, classes, shape)
    return _read_all(images) if len(images) * math.prod(shape) <= memory_bytes else images


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the names of the classes of a folder of pictures."""
    return _find(folder, "train")[0]


def common_size(folder: Path) -> tuple[int, int] | None:
    """Return height and width of the training pictures of a folder, without decoding them; None if they differ.

    Pictures that cannot be read are ignored: `load_folder` says what is wrong with them.
    """
    require_pillow()
    common = None
    for picture in _find(folder, "train")[1]:
        size = picture_size(picture.path)
        if common is None:
            common = size
        elif size is not None and size != common:
            return None
    return common


def _read_all(images: FolderImages) -> ImageSet:
    pixels = torch.empty(len(images), *images.shape, dtype=torch.uint8)
    kept: list[int] = []
    reasons: list[str] = []
    for index, path in enumerate(images.files):
        try:
            pixels[len(kept)] = _read(path, images.shape)
            kept.append(index)
        except DataError as error:
            reasons.append(str(error))
    _require_few(reasons, len(images))
    for reason in reasons:
        warnings.warn(f"a picture is left out: {reason}", stacklevel=4)
    return ImageSet(pixels[: len(kept)], images.labels[kept], images.classes)


def _read(path: Path, shape: Shape) -> Tensor:
    name = printable(path)
    try:
        with path.open("rb") as file:
            return read_picture(file, name, shape, crop=True)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from error


def _require_few(reasons: Sequence[str], total: int) -> None:
    """Raise a DataError if more pictures are unreadable than can be skipped, or all of them."""
    allowed = min(max(1, total // _PICTURES_PER_UNREADABLE), total - 1)
    if len(reasons) > allowed:
        raise DataError(f"more than {allowed:,} of {total:,} pictures cannot be read; the first: {reasons[0]}")


class _Picture(NamedTuple):
    """A file of a set; sorted by their hashes, pictures come in an order that mixes the classes."""

    name_hash: int  # of class and name alone, so that other pictures may come and go
    label: int
    path: Path


def _find(folder: Path, split: Split) -> tuple[tuple[str, ...], list[_Picture]]:
    """Return the names of the classes, and the pictures of one part of the set."""
    try:
        parts = _folders(folder)
        if "train" in parts and (len(parts) == 1 or "test" in parts or "val" in parts):
            classes, found = _find_split(folder, parts, split)
        else:
            classes = _classes(folder)
            everything = _pictures_of(classes, parts)
            found = [one for one in everything if (one.name_hash % _TEST_SHARE == 0) == (split == "test")]
    except OSError as error:
        at = printable(folder) if error.filename is None else printable(Path(os.fsdecode(error.filename)))
        raise DataError(f"{at} cannot be read: {error.strerror or error}") from error
    if not found:
        raise DataError(f"{printable(folder)} has too few pictures for a {split} set: add some")
    return classes, sorted(found)


def _find_split(folder: Path, parts: Mapping[str, Path], split: Split) -> tuple[tuple[str, ...], list[_Picture]]:
    classes = _classes(parts["train"])
    if split == "train":
        return classes, _pictures_of(classes, _folders(parts["train"]))
    if len(parts) == 1:
        raise DataError(f"{printable(folder)} has a folder train but neither test nor val: add one")
    part = parts["test"] if "test" in parts else parts["val"]
    folders = _folders(part)
    strange = [name for name in folders if name not in classes]
    if strange:
        train = printable(parts["train"])
        raise DataError(f'{printable(part)} has a class "{strange[0]}", which {train} does not have: add it there')
    return classes, _pictures_of(classes, folders)


def _pictures_of(classes: Sequence[str], folders: Mapping[str, Path]) -> list[_Picture]:
    """Return the pictures of those classes that have a folder; a folder without pictures is a DataError."""
    found = []
    for label, name in enumerate(classes):
        if name in folders:
            folder = folders[name]
            paths = _pictures(folder)
            found += [_Picture(_name_hash(name, path.relative_to(folder)), label, path) for path in paths]
    return found


def _name_hash(name: str, picture: Path) -> int:
    # Normalised, because macOS stores names in another form of Unicode than most systems.
    text = unicodedata.normalize("NFC", f"{name}/{printable(picture)}")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _classes(folder: Path) -> tuple[str, ...]:
    """Return the names of a folder's classes; a DataError says why it has none."""
    classes, where = tuple(_folders(folder)), printable(folder)
    if not classes:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if any(_is_picture(path) for path in inside):
            raise DataError(f"{where} has pictures but no classes: put those of each class into a folder of its name")
        what = "holds no folders" if inside else "is empty"
        raise DataError(f"{where} {what}: put the pictures of each class into a folder of its name")
    if len(classes) == 1:
        raise DataError(f'{where} has one class only, "{classes[0]}": a classifier needs two or more')
    return classes


def _folders(folder: Path) -> dict[str, Path]:
    """Return the folders inside a folder by their printable names, sorted, hidden ones left out."""
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    named = {unicodedata.normalize("NFC", printable(Path(path.name))): path for path in inside}
    return dict(sorted(named.items()))


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures in a folder and its subfolders; warn of those in formats that are not read."""
    files = list(_walk(folder, (folder.resolve(),)))
    pictures = [path for path in files if _is_picture(path)]
    suffixes = Counter(path.suffix.lower() for path in files)
    if not pictures:
        others = ", ".join(sorted(suffix or "without suffix" for suffix in suffixes)[:5])
        inside = f", its files are {others}" if files else ""
        raise DataError(f"{printable(folder)} has no pictures ({', '.join(picture_suffixes())}){inside}: add some")
    unread = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.items() if suffix in _UNREAD_SUFFIXES)
    if unread:
        warnings.warn(
            f"{printable(folder)} has pictures in formats that are not read ({unread}): convert them", stacklevel=7
        )
    return pictures


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders; `above` is the folder and those that lead to it, resolved."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            yield path
            continue
        real = path.resolve()
        if any(step.is_relative_to(real) for step in above):
            raise DataError(f"{printable(path)} is a link to a folder that contains it: remove the link")
        yield from _walk(path, (*above, real))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in picture_suffixes()
