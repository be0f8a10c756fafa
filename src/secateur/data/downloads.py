"""Data sets that are downloaded: which files they consist of, and where these can be found."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from secateur.data.fetch import fetch
from secateur.data.files import DataFile
from secateur.data.homes import Home
from secateur.data.images import ImageSet, Shape, Split


@dataclass(frozen=True, kw_only=True)
class Download:
    """A data set of a few files, which are kept in a directory of its name and downloaded if they are missing."""

    name: str
    note: str  # a few words of help
    shape: Shape
    classes: tuple[str, ...]
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    read: Callable[[Mapping[str, bytes]], ImageSet]
    homes: tuple[Home, ...]  # tried in this order
    folders: tuple[str, ...] = ()  # further places of the files; relative to the set's directory unless absolute
    remedy: str  # if no home can be reached; {directory} is the set's own

    def load(self, split: Split, root: Path | None = None) -> ImageSet:
        """Return one part of the set from `root`/`name`; loading the training part opens no file of the test part.

        The default for `root` is the user's cache directory.
        """
        files = self.train if split == "train" else self.test
        directory = (cache_directory() if root is None else root) / self.name
        folders = [directory, *(directory / folder for folder in self.folders)]
        if any(file.find(folders) is None for file in files):
            fetch(self.name, self.train + self.test, self.homes, directory, remedy=self.remedy)
        found = self.read({file.name: file.read(_found(file, folders)) for file in files})
        return replace(found, classes=self.classes)


def _found(file: DataFile, folders: list[Path]) -> Path:
    path = file.find(folders)
    assert path is not None
    return path


def cache_directory() -> Path:
    """Return where downloads are kept, unless the user names another place."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secateur"
