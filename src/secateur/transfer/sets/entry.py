"""A data set of the evaluation of transfer: where it is expected, how it is read, and where it can be had."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from secateur.data.images import DataError
from secateur.data.pictures import printable
from secateur.transfer.sets.by_class import by_class
from secateur.transfer.task import Classification, Retrieval, TransferTask


class IncompleteError(Exception):
    """Something of a data set is missing or cannot be read; the message says what, in words that follow "but"."""


@dataclass(frozen=True, kw_only=True)
class TransferSet:
    """A data set in the layout it is published in, below a folder of its name.

    `read` takes that folder and raises an IncompleteError if something is missing. `layout` says in words what it
    expects there. A set with fewer pictures than `pictures`, the published number, is read with a warning. With
    `searched_by`, its test pictures are a task of retrieval: find the others of a class.
    """

    name: str
    title: str
    home: str  # where it can be had, as it is not downloaded; empty for a folder of the user's
    layout: str
    read: Callable[[Path], TransferTask]
    folder: str | None = None  # below the root; None: its name
    other_folder: str | None = None  # where it is as well, such as what its archive unpacks to
    searched_by: Literal["ap", "recall@4"] | None = None
    pictures: int | None = None  # of training and test, or those that are searched

    def load(self, root: Path) -> TransferTask:
        """Return the task from its folder below `root`; a DataError says what is missing and where it can be had."""
        place = root / (self.folder or self.name)
        if self.other_folder is not None and not place.exists() and (root / self.other_folder).is_dir():
            place = root / self.other_folder
        try:
            if not place.is_dir():
                raise IncompleteError("there is no such folder")
            if not any(place.iterdir()):
                raise IncompleteError("the folder is empty")
            task = self.read(place)
        except IncompleteError as error:
            what, remedy = self.name, f"get it from {self.home}"
            if not self.home:
                what, remedy = "a folder of classes", "add what is missing"
            expected = f"{what} was expected in {printable(place)} as {self.layout}"
            raise DataError(f"{expected}, but {error}: {remedy}") from error
        except OSError as error:
            at = printable(error.filename or place)
            raise DataError(f"{at} cannot be read: {error.strerror or error}") from error
        self._warn_of_few(task, place)
        if self.searched_by is None:
            return task
        if not isinstance(task, Classification):
            raise DataError(f"{self.name} cannot be searched by class: its pictures do not have one class each")
        return by_class(task, self.searched_by)

    def _warn_of_few(self, task: TransferTask, place: Path) -> None:
        count = len(task.pictures) if isinstance(task, Retrieval) else len(task.train) + len(task.test)
        if self.pictures is not None and count < self.pictures:
            found = f"{count:,} of the {self.pictures:,} pictures"
            warnings.warn(f"{printable(place)} has {found} of {self.name}", stacklevel=3)
