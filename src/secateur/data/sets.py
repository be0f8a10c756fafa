"""Data sets by name or by folder."""

from __future__ import annotations

from os import sep
from pathlib import Path
from typing import Protocol, runtime_checkable

from secateur.data.cifar import CIFAR10
from secateur.data.digits import Digits
from secateur.data.folders import load_folder
from secateur.data.images import Images, Shape, Split
from secateur.data.mnist import FASHION_MNIST, MNIST
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
        """Channels, height and width of every image."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        ...

    def load(self, split: Split, root: Path | None = None) -> Images:
        """Return one part of the set, downloaded below `root` if it is missing; None is the user's cache directory."""
        ...


DATA_SETS: Table[DataSet] = Table("data set", "secateur.data_sets", DataSet, (MNIST, FASHION_MNIST, CIFAR10, Digits()))


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


def load(name: str, split: Split, root: Path | None = None, shape: Shape | None = None) -> Images:
    """Return one part of a data set, given by its name or as the path of a folder of pictures.

    A set with a name is downloaded to `root`/`name` if it is missing there; the default for `root` is the user's cache
    directory. Loading the training part opens no file of the test part. `shape`, the input shape of a network, must be
    that of the set. Pictures of a folder are resized to it; see `load_folder`.
    """
    if split not in ("train", "test"):
        raise ValueError(f"{name}: split must be 'train' or 'test', got {split!r}")
    require_known(name)
    if name not in DATA_SETS:
        if shape is None:
            raise ValueError(f"{name} is a folder of pictures: give the shape they are resized to")
        return load_folder(Path(name), split, shape)
    found = DATA_SETS[name]
    if shape is not None and shape != found.shape:
        fitting = [other for other, entry in DATA_SETS.items() if entry.shape == shape]
        remedy = f"choose {' or '.join(fitting)}, or " if fitting else ""
        raise ValueError(
            f"{name} has images of shape {found.shape}, not {shape}: {remedy}build the network for {found.shape}"
        )
    return found.load(split, root)
