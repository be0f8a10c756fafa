"""Read the text files that list the pictures of a data set, and check that the pictures exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from secateur.data.pictures import printable
from secateur.transfer.sets.entry import IncompleteError
from secateur.transfer.task import Box, Classification, Labels, Picture


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file without those that are empty."""
    if not path.is_file():
        raise IncompleteError(f"{printable(path)} is missing")
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [line for line in lines if line]


def read_rows(path: Path, words: int) -> list[list[str]]:
    """Return the words of every line of a text file, which must be so many."""
    rows = [line.split() for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) != words:
            raise IncompleteError(f"line {number:,} of {printable(path)} has {len(row)} words instead of {words}")
    if not rows:
        raise IncompleteError(f"{printable(path)} is empty")
    return rows


def read_pairs(path: Path) -> dict[str, str]:
    """Return the second words of the lines of a text file by the first ones."""
    return dict(read_rows(path, 2))


def numbers(words: Iterable[str], path: Path) -> list[float]:
    """Return the words of a line as numbers."""
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise IncompleteError(f"{printable(path)} has something else instead of a number ({error})") from error


def require_values(values: Iterable[float], allowed: Collection[int], path: Path) -> None:
    """Raise an IncompleteError that names a label of a list outside the allowed ones."""
    strange = [value for value in values if value not in allowed]
    if strange:
        choices = ", ".join(map(str, allowed))
        raise IncompleteError(f"{printable(path)} has the label {strange[0]:g}, which is not one of {choices}")


def box_of(left: float, top: float, right: float, bottom: float, path: Path) -> Box:
    """Return a box with its left and top at 0 or more; `path` is the list it comes from."""
    left, top = max(left, 0.0), max(top, 0.0)
    if not (left < right and top < bottom):  # also if one is NaN
        raise IncompleteError(f"{printable(path)} has the empty box {left:g} {top:g} {right:g} {bottom:g}")
    return left, top, right, bottom


def labels_of(values: Sequence[int] | Sequence[Sequence[int]]) -> Labels:
    """Return labels as an array of int64."""
    return np.array(values, dtype=np.int64)


def require_pictures(*parts: Sequence[Picture]) -> None:
    """Raise an IncompleteError that counts the pictures if one does not exist, or if a part has none."""
    paths = dict.fromkeys(picture.path for part in parts for picture in part)
    missing = [path for path in paths if not path.is_file()]
    if missing:
        found = f"{len(paths) - len(missing):,} of {len(paths):,} pictures were found"
        raise IncompleteError(f"{found}, {printable(missing[0])} was not")
    if not all(parts):
        raise IncompleteError("the training or the test part has no pictures")


def classification(
    classes: Sequence[str],
    train: Sequence[tuple[Path, int]],
    test: Sequence[tuple[Path, int]],
) -> Classification:
    """Return a task from paths and labels; fewer than two classes, or a missing picture, is an IncompleteError."""
    if len(classes) < 2:
        only = f'one class only, "{classes[0]}"' if classes else "no classes"
        raise IncompleteError(f"it has {only}")
    train_pictures, test_pictures = (tuple(Picture(path) for path, _ in part) for part in (train, test))
    require_pictures(train_pictures, test_pictures)
    return Classification(
        tuple(classes),
        train_pictures,
        labels_of([label for _, label in train]),
        test_pictures,
        labels_of([label for _, label in test]),
    )


def look_up(name: str, index_of: Mapping[str, int], path: Path) -> int:
    """Return the index of a name that a list mentions."""
    if name not in index_of:
        raise IncompleteError(f"{printable(name)}, which {printable(path)} lists, was not found")
    return index_of[name]
