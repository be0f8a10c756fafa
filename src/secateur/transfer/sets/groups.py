"""INRIA Holidays and UKbench: find the other photographs of a group, which the names of the files tell."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from secateur.data.pictures import find_pictures, printable
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.task import Picture, Query, Retrieval


def _read_holidays(folder: Path) -> Retrieval:
    """Return the pictures 1XXXYY.jpg: XXX is the group, and the picture with YY = 00 is its query."""
    pictures = _find(folder / "jpg")
    groups: dict[int, list[int]] = defaultdict(list)
    for index, number in enumerate(_numbers(pictures, "")):
        groups[number // 100].append(index)
    for group, (first, *others) in groups.items():
        if pictures[first].path.stem != f"{group}00" or not others:
            found = f"{len(others) + 1} of the pictures {group}*.jpg"
            raise IncompleteError(f"only {found} were found where {group}00.jpg and others are needed")
    queries = [Query(pictures[first], frozenset(others), frozenset({first})) for first, *others in groups.values()]
    return Retrieval(pictures, tuple(queries), "ap")


def _read_ukbench(folder: Path) -> Retrieval:
    """Return the pictures ukbench00000.jpg and so on, of which every four show one object.

    Each is a query, and one of the four pictures that it should find: the published score counts it too.
    """
    pictures = _find(folder / "full")
    numbers = _numbers(pictures, "ukbench")
    wanted = range(-(-(max(numbers) + 1) // 4) * 4)
    missing = sorted(set(wanted) - set(numbers))
    if missing:
        found = f"{len(numbers):,} of {len(wanted):,} pictures were found"
        raise IncompleteError(f"{found}, ukbench{missing[0]:05d}.jpg was not")
    fours = [frozenset(range(start, start + 4)) for start in range(0, len(pictures), 4)]
    queries = tuple(Query(picture, fours[index // 4]) for index, picture in enumerate(pictures))
    return Retrieval(pictures, queries, "recall@4")


def _find(folder: Path) -> tuple[Picture, ...]:
    pictures = tuple(map(Picture, find_pictures(folder))) if folder.is_dir() else ()
    if not pictures:
        raise IncompleteError(f"{printable(folder)} has no pictures")
    return pictures


def _numbers(pictures: tuple[Picture, ...], prefix: str) -> list[int]:
    """Return the numbers in the names of pictures."""
    names = [picture.path.stem.removeprefix(prefix) for picture in pictures]
    strange = [picture.path for picture, name in zip(pictures, names, strict=True) if not name.isdecimal()]
    if strange:
        raise IncompleteError(f"{printable(strange[0])} does not belong to it")
    return [int(name) for name in names]


HOLIDAYS = TransferSet(
    name="holidays",
    title="INRIA Holidays",
    home="https://lear.inrialpes.fr/people/jegou/data.php",
    layout="jpg/100000.jpg, jpg/100001.jpg and so on",
    read=_read_holidays,
    pictures=1_491,
)
UKBENCH = TransferSet(
    name="ukbench",
    title="UKbench",
    home="http://www.vis.uky.edu/~stewe/ukbench/",
    layout="full/ukbench00000.jpg and so on",
    read=_read_ukbench,
    pictures=10_200,
)
