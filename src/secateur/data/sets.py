"""The sets by name: what is in the cache is used, and what is missing is fetched first."""

import os
from pathlib import Path
from typing import Literal

from secateur.data.digits import load_digits
from secateur.data.fetch import fetch
from secateur.data.files import DataFile
from secateur.data.images import ImageSet
from secateur.data.sources import SOURCES
from secateur.nearest import require_one_of


def names() -> tuple[str, ...]:
    """Return the names `load` takes."""
    return (*SOURCES, "digits")


def class_name(name: str, label: int) -> str:
    """Return what a label of a set is called: the number itself in sets of digits, and in those that are not ours."""
    known = SOURCES[name].classes if name in SOURCES else ()
    return known[label] if label < len(known) else str(label)


def load(name: str, split: Literal["train", "test"], root: Path | None = None) -> ImageSet:
    """Return one part of a set, fetched first where it is not yet in `root`/`name`.

    Without `root` the user's cache directory is meant. Loading a training set opens no file of the test set.
    """
    require_one_of("data set", name, names())
    if split not in ("train", "test"):
        raise ValueError(f"{name}: split must be 'train' or 'test', got {split!r}")
    if name == "digits":
        return load_digits(split)
    source = SOURCES[name]
    files = source.train if split == "train" else source.test
    directory = (_cache_directory() if root is None else root) / name
    folders = [directory, *(directory / folder for folder in source.folders)]
    if any(file.find(folders) is None for file in files):
        fetch(name, source, directory)
    return source.read({file.name: file.read(_found(file, folders)) for file in files})


def _found(file: DataFile, folders: list[Path]) -> Path:
    path = file.find(folders)
    assert path is not None
    return path


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secateur"
