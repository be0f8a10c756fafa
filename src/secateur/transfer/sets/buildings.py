"""Oxford 5k and Paris 6k buildings: find the other photographs of a landmark."""

from __future__ import annotations

from pathlib import Path

from secateur.data.folders import is_picture
from secateur.data.pictures import printable
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.lists import box_of, look_up, numbers, read_lines, read_rows
from secateur.transfer.task import Picture, Query, Retrieval

# Files of Paris 6k that its page lists as damaged.
CORRUPT = frozenset(
    f"paris_{name}"
    for name in (
        *("louvre_000136", "louvre_000146", "moulinrouge_000422", "museedorsay_001059", "notredame_000188"),
        *("pantheon_000284", "pantheon_000960", "pantheon_000974", "pompidou_000195", "pompidou_000196"),
        *("pompidou_000201", "pompidou_000467", "pompidou_000640", "sacrecoeur_000299", "sacrecoeur_000330"),
        *("sacrecoeur_000353", "triomphe_000662", "triomphe_000833", "triomphe_000863", "triomphe_000867"),
    )
)


def _read(folder: Path) -> Retrieval:
    """Return the queries of gt_files: good and ok pictures are relevant, junk is ignored.

    The query itself is among the good ones, and counts, as in the published evaluation.
    """
    pictures, index_of = _find_pictures(folder / "jpg")
    lists = sorted((folder / "gt_files").glob("*_query.txt"))
    if not lists:
        raise IncompleteError(f"{printable(folder / 'gt_files')} has no file *_query.txt")
    queries = []
    for path in lists:
        [[name, *words], *_] = read_rows(path, 5)
        index = look_up(name.removeprefix("oxc1_"), index_of, path)
        left, top, right, bottom = numbers(words, path)
        good, fair, junk = (_read_names(path, kind, index_of) for kind in ("good", "ok", "junk"))
        if not good | fair:
            raise IncompleteError(f"{printable(path)} has neither good nor ok pictures")
        box = box_of(left, top, right, bottom, path)
        queries.append(Query(Picture(pictures[index].path, box), good | fair, junk))
    return Retrieval(pictures, tuple(queries), "ap")


def _find_pictures(folder: Path) -> tuple[tuple[Picture, ...], dict[str, int]]:
    """Return the pictures in a folder and its subfolders, and their indices by name."""
    paths = sorted(path for path in folder.rglob("*") if is_picture(path.name) and path.stem not in CORRUPT)
    if not paths:
        raise IncompleteError(f"{printable(folder)} has no pictures")
    return tuple(map(Picture, paths)), {path.stem: index for index, path in enumerate(paths)}


def _read_names(query: Path, kind: str, index_of: dict[str, int]) -> frozenset[int]:
    path = query.with_name(query.name.replace("_query.txt", f"_{kind}.txt"))
    names = [name for name in read_lines(path) if name not in CORRUPT]
    missing = [name for name in names if name not in index_of]
    if missing:
        found = f"{len(names) - len(missing)} of {len(names)} pictures of {printable(path)} were found"
        raise IncompleteError(f"{found}, {printable(missing[0])} was not")
    return frozenset(index_of[name] for name in names)


_GROUND_TRUTH = "gt_files/LANDMARK_1_query.txt, good.txt, ok.txt and junk.txt, and so on"
OXFORD5K = TransferSet(
    name="oxford5k",
    title="Oxford 5k buildings",
    home="https://www.robots.ox.ac.uk/~vgg/data/oxbuildings/",
    layout=f"jpg/*.jpg and {_GROUND_TRUTH}",
    read=_read,
    pictures=5_062,
)
PARIS6K = TransferSet(
    name="paris6k",
    title="Paris 6k buildings",
    home="https://www.robots.ox.ac.uk/~vgg/data/parisbuildings/",
    layout=f"jpg/LANDMARK/paris_LANDMARK_*.jpg and {_GROUND_TRUTH}",
    read=_read,
    pictures=6_392,
)
