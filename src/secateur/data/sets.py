"""Data sets by name or by folder."""

from __future__ import annotations

from collections.abc import Collection
from os import sep
from pathlib import Path
from typing import Protocol, runtime_checkable

from secateur.data.cifar import CIFAR10
from secateur.data.crops import CropKind, needs_pictures
from secateur.data.digits import Digits
from secateur.data.folders import load_folder
from secateur.data.imagenet import IMAGENET, IMAGENETTE, TINY_IMAGENET, SynsetPictures
from secateur.data.images import Images, Shape, Split
from secateur.data.mnist import FASHION_MNIST, MNIST
from secateur.data.streams import UNREADABLE
from secateur.table import Table


@runtime_checkable
class DataSet(Protocol):
    """A data set that can be loaded by name."""

    @property
    def name(self) -> str:
        """The name that `load` takes."""
        ...

    @property
    def note(self) -> str:
        """A few words of help."""
        ...

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image, or the usual ones where pictures are cut to any."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        ...

    def load(self, split: Split, root: Path | None = None) -> Images:
        """Return one part of the set, downloaded below `root` if it is missing; None is the user's cache directory."""
        ...


_BUILT_IN = (MNIST, FASHION_MNIST, CIFAR10, Digits(), IMAGENET, IMAGENETTE, TINY_IMAGENET)
DATA_SETS: Table[DataSet] = Table("data set", "secateur.data_sets", DataSet, _BUILT_IN)


def names() -> tuple[str, ...]:
    """Return the names `load` takes."""
    return tuple(DATA_SETS)


def require_known(name: str) -> None:
    """Raise a ValueError unless `name` is one of the table or the path of a folder."""
    if name in DATA_SETS or Path(name).is_dir():
        return
    if sep in name:
        raise ValueError(f"{name} is not a folder: give one with a folder of pictures for each class, or a data set")
    DATA_SETS.find(name)


def is_cut(name: str) -> bool:
    """Return whether a data set consists of pictures of all sizes, which are cut to the shape that a network takes."""
    return name not in DATA_SETS or isinstance(DATA_SETS[name], SynsetPictures)


def shape_of(name: str, wanted: Shape) -> Shape:
    """Return the shape of a set's images: its own, or the wanted one if its pictures can be cut to any."""
    return wanted if is_cut(name) else DATA_SETS[name].shape


def require_crop(name: str, crop: CropKind) -> None:
    """Raise a ValueError if a kind of crop needs whole pictures and a data set has none."""
    if needs_pictures(crop) and not is_cut(name):
        shape = "×".join(map(str, DATA_SETS[name].shape[1:]))
        raise ValueError(f'crop "{crop}" is for pictures of all sizes, {name} has {shape} pixels: use "shift-flip"')


def load(
    name: str,
    split: Split,
    root: Path | None = None,
    shape: Shape | None = None,
    *,
    crop: CropKind = "centre",
    most_unreadable: float = UNREADABLE,
    leave_out: Collection[str] = (),
) -> Images:
    """Return one part of a data set, given by its name or as the path of a folder of pictures.

    A set with a name is downloaded to `root`/`name` if it is missing there, unless it is too large; the default for
    `root` is the user's cache directory. Loading the training part opens no file of the test part. `shape`, the input
    shape of a network, must be that of the set; pictures of all sizes are cut to it. For these, `crop` says how a
    random generator varies them, `most_unreadable` which share of them may be skipped, and `leave_out` names files that
    do not belong to the set; see `load_folder`.
    """
    if split not in ("train", "test"):
        raise ValueError(f"{name}: split must be 'train' or 'test', got {split!r}")
    require_known(name)
    require_crop(name, crop)
    if name not in DATA_SETS:
        if shape is None:
            raise ValueError(f"{name} is a folder of pictures: give the shape they are resized to")
        return load_folder(Path(name), split, shape, crop=crop, most_unreadable=most_unreadable, leave_out=leave_out)
    found = DATA_SETS[name]
    if isinstance(found, SynsetPictures):
        return found.load(split, root, shape, crop=crop, most_unreadable=most_unreadable, leave_out=leave_out)
    if leave_out:
        raise ValueError(f"{name} has no file for each image: only pictures in files can be left out by name")
    if shape is not None and shape != found.shape:
        fitting = [other for other in DATA_SETS if shape_of(other, shape) == shape and not is_cut(other)]
        remedy = f"choose {' or '.join(fitting)}, or " if fitting else ""
        raise ValueError(
            f"{name} has images of shape {found.shape}, not {shape}: {remedy}build the network for {found.shape}"
        )
    return found.load(split, root)
