"""Sculptures 6k: find the other photographs of a sculpture by Moore or Rodin."""

from __future__ import annotations

from pathlib import Path

from secateur.data.pictures import find_pictures, printable
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.lists import box_of, look_up, numbers
from secateur.transfer.task import Box, Picture, Query, Retrieval

_GROUND_TRUTH = "sculptures6k_evaluation/sculptures6k_gt.txt"


def _read(folder: Path) -> Retrieval:
    """Return the test pictures, test/*.jpg, and the queries of the ground truth.

    That file has a first line of its own and then four lines for each query: the name of its picture; its box, left,
    top, right and bottom (a line of anything else stands for the whole picture); the names of the relevant pictures;
    and those of the ignored ones, a line that may be empty. Names end in .jpg or have no ending.
    """
    test, path = folder / "test", folder / _GROUND_TRUTH
    if not test.is_dir() or not path.is_file():
        raise IncompleteError(f"{printable(path if test.is_dir() else test)} is missing")
    pictures = tuple(map(Picture, find_pictures(test)))
    index_of = {picture.path.stem: index for index, picture in enumerate(pictures)}
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")[1:]
    lines += [""] * (len(lines) % 4 == 3)  # the last query has no ignored pictures
    if not lines or len(lines) % 4:
        raise IncompleteError(f"{printable(path)} has {len(lines):,} lines after the first, which must be four a query")

    def indices(line: str) -> frozenset[int]:
        return frozenset(look_up(name.removesuffix(".jpg"), index_of, path) for name in line.split())

    queries = []
    for name, place, relevant, ignored in zip(*(lines[start::4] for start in range(4)), strict=True):
        index = look_up(name.strip().removesuffix(".jpg"), index_of, path)
        if not relevant.split():
            raise IncompleteError(f"{printable(path)} has no relevant picture for {printable(name)}")
        picture = Picture(pictures[index].path, _box(place, path))
        queries.append(Query(picture, indices(relevant) - indices(ignored), indices(ignored)))
    return Retrieval(pictures, tuple(queries), "ap")


def _box(line: str, path: Path) -> Box | None:
    words = line.split()
    if len(words) != 4:
        return None
    left, top, right, bottom = numbers(words, path)
    return box_of(left, top, right, bottom, path)


SCULPTURES6K = TransferSet(
    name="sculptures6k",
    title="Sculptures 6k",
    home="https://www.robots.ox.ac.uk/~vgg/data/sculptures6k/",
    layout=f"test/*.jpg and {_GROUND_TRUTH}",
    read=_read,
    pictures=3_170,
)
