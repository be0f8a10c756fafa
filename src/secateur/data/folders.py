"""Data sets that are folders of pictures, one folder per class."""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from secateur.data.crops import CropKind, needs_pictures
from secateur.data.images import DataError, Images, Shape, Split
from secateur.data.pictures import picture_size, picture_suffixes, printable, require_pillow
from secateur.data.streams import UNREADABLE, PictureStream, Place

MEMORY_BYTES = 1 << 30  # sets up to this size are read once and kept in memory
_TEST_SHARE = 6  # one in six pictures is for the test, if the folder does not say which
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


class Picture(NamedTuple):
    """A picture of a set; sorted by their hashes, pictures come in an order that mixes the classes."""

    name_hash: int  # of class and name alone, so that other pictures may come and go
    label: int
    place: Place
    name: str


def load_folder(
    folder: Path,
    split: Split,
    shape: Shape,
    *,
    crop: CropKind = "centre",
    most_unreadable: float = UNREADABLE,
    leave_out: Collection[str] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> Images:
    """Return one part of a folder of pictures as images of a shape, in memory if that takes at most `memory_bytes`.

    The folder holds `train` and `test` (or `val`), each with a folder for every class, or these folders directly;
    then one in six pictures is for the test, chosen by a hash of its class and name. That hash also determines the
    order, which mixes the classes. A class's folder may have subfolders; names that begin with a dot are ignored.

    Kinds of `crop` that vary the whole picture at random are read from the disk in any case. A share of pictures, at
    least one, may be unreadable: these are left out, with a warning. `leave_out` are names of files, in whatever
    format, that do not belong to the set.
    """
    require_pillow()
    classes, pictures = _find(folder, split)
    return images_of(
        pictures,
        classes,
        shape,
        crop=crop,
        most_unreadable=most_unreadable,
        leave_out=leave_out,
        memory_bytes=memory_bytes,
    )


def classes_of(folder: Path) -> tuple[str, ...]:
    """Return the names of the classes of a folder of pictures."""
    return _find(folder, "train")[0]


def common_size(folder: Path) -> tuple[int, int] | None:
    """Return height and width of the training pictures of a folder, from their headers; None if they differ.

    Pillow decodes PNGs for it, see `picture_size`.

    Pictures that cannot be read are ignored: `load_folder` says what is wrong with them.
    """
    require_pillow()
    common = None
    for picture in _find(folder, "train")[1]:
        size = picture_size(Path(picture.place.path))
        if common is None:
            common = size
        elif size is not None and size != common:
            return None
    return common


def images_of(
    pictures: Collection[Picture],
    classes: tuple[str, ...],
    shape: Shape,
    *,
    crop: CropKind = "centre",
    most_unreadable: float = UNREADABLE,
    leave_out: Collection[str] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> Images:
    """Return pictures as images in the order of their hashes: in memory if they fit, or as a stream."""
    unwanted = {Path(name).stem for name in leave_out}
    kept = sorted(picture for picture in pictures if not unwanted or Path(picture.name).stem not in unwanted)
    if not kept:
        raise DataError(f"none of {len(pictures):,} pictures is left: `leave_out` names all of them, so shorten it")
    labels = torch.tensor([picture.label for picture in kept], dtype=torch.int64)
    stream = PictureStream([picture.place for picture in kept], labels, classes, shape, crop, most_unreadable)
    is_small = len(kept) * math.prod(shape) <= memory_bytes
    return stream.read_all() if is_small and not needs_pictures(crop) else stream


def _find(folder: Path, split: Split) -> tuple[tuple[str, ...], list[Picture]]:
    """Return the names of the classes, and the pictures of one part of the set."""
    try:
        parts = folders_in(folder)
        if "train" in parts and (len(parts) == 1 or "test" in parts or "val" in parts):
            classes, found = _find_split(folder, parts, split)
        else:
            classes = _classes(folder)
            everything = pictures_of(classes, parts)
            found = [one for one in everything if (one.name_hash % _TEST_SHARE == 0) == (split == "test")]
    except OSError as error:
        at = printable(folder) if error.filename is None else printable(Path(os.fsdecode(error.filename)))
        raise DataError(f"{at} cannot be read: {error.strerror or error}") from error
    if not found:
        raise DataError(f"{printable(folder)} has too few pictures for a {split} set: add some")
    return classes, found


def _find_split(folder: Path, parts: Mapping[str, Path], split: Split) -> tuple[tuple[str, ...], list[Picture]]:
    classes = _classes(parts["train"])
    if split == "train":
        return classes, pictures_of(classes, folders_in(parts["train"]))
    if len(parts) == 1:
        raise DataError(f"{printable(folder)} has a folder train but neither test nor val: add one")
    candidates = {parts[name]: folders_in(parts[name]) for name in ("test", "val") if name in parts}
    # Published test pictures often have no labels: then the validation pictures are for the test.
    part = next(
        (part for part in candidates if not candidates[part].keys().isdisjoint(classes)), next(iter(candidates))
    )
    folders, where, train = candidates[part], printable(part), printable(parts["train"])
    strange = [name for name in folders if name not in classes]
    lacking = [name for name in classes if name not in folders]
    if len(lacking) == len(classes):
        remedy = "put the pictures of each class into a folder of its name"
        raise DataError(f'{where} has none of the classes of {train}, such as "{classes[0]}": {remedy}')
    if strange:
        raise DataError(f'{where} has a class "{strange[0]}", which {train} does not have: add it there')
    if lacking:
        raise DataError(f'{where} has no class "{lacking[0]}", which {train} has: add it there')
    return classes, pictures_of(classes, folders)


def pictures_of(classes: Sequence[str], folders: Mapping[str, Path]) -> list[Picture]:
    """Return the pictures in the folders of classes; a folder without pictures is a DataError."""
    found = []
    for label, name in enumerate(classes):
        folder = folders[name]
        paths = _pictures(folder)
        found += [picture_in(folder, name, label, path) for path in paths]
    return found


def picture_in(folder: Path, class_name: str, label: int, path: str) -> Picture:
    """Return the picture of a class at a path below its folder."""
    name = path[len(str(folder)) + 1 :]
    return Picture(name_hash(class_name, name), label, Place(path), path.rpartition(os.sep)[2])


def name_hash(class_name: str, picture: str) -> int:
    """Return a number of 64 bits for a picture, which depends on the names of its class and its file alone."""
    # Normalised, because macOS stores names in another form of Unicode than most systems.
    text = unicodedata.normalize("NFC", f"{class_name}/{printable(picture)}")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _classes(folder: Path) -> tuple[str, ...]:
    """Return the names of a folder's classes; a DataError says why it has none."""
    classes, where = tuple(folders_in(folder)), printable(folder)
    if not classes:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if any(is_picture(path.name) for path in inside):
            raise DataError(f"{where} has pictures but no classes: put those of each class into a folder of its name")
        what = "holds no folders" if inside else "is empty"
        raise DataError(f"{where} {what}: put the pictures of each class into a folder of its name")
    if len(classes) == 1:
        raise DataError(f'{where} has one class only, "{classes[0]}": a classifier needs two or more')
    return classes


def folders_in(folder: Path) -> dict[str, Path]:
    """Return the folders inside a folder by their printable names, sorted, hidden ones left out."""
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    named = {unicodedata.normalize("NFC", printable(Path(path.name))): path for path in inside}
    return dict(sorted(named.items()))


def _pictures(folder: Path) -> list[str]:
    """Return the pictures in a folder and its subfolders; warn of those in formats that are not read."""
    files = list(_walk(str(folder), (folder.resolve(),)))
    pictures = [path for path in files if is_picture(path)]
    suffixes = Counter(_suffix(path) for path in files)
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


def _walk(folder: str, above: tuple[Path, ...]) -> Iterator[str]:
    """Yield the files in a folder and its subfolders; `above` is the folder and those that lead to it, resolved.

    Paths are text, and the system is asked once per folder: ImageNet has more than a million files.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not (Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()):
                yield entry.path
                continue
            real = Path(entry.path).resolve()
            if any(step.is_relative_to(real) for step in above):
                raise DataError(f"{printable(entry.path)} is a link to a folder that contains it: remove the link")
            yield from _walk(entry.path, (*above, real))


def is_picture(path: str) -> bool:
    """Return whether a file's name ends like that of a picture."""
    return _suffix(path) in picture_suffixes()


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()
