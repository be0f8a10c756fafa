"""Pascal VOC 2007: which of twenty kinds of objects a photograph shows."""

from __future__ import annotations

from pathlib import Path

from secateur.data.pictures import printable
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.lists import labels_of, numbers, read_rows, require_pictures, require_values
from secateur.transfer.task import Attributes, Labels, Picture

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def _read(folder: Path) -> Attributes:
    devkit = folder / "VOCdevkit" / "VOC2007"
    train, train_labels = _read_part(devkit, "trainval")
    test, test_labels = _read_part(devkit, "test")
    require_pictures(train, test)
    return Attributes(CLASSES, train, train_labels, test, test_labels, "ap11")


def _read_part(devkit: Path, part: str) -> tuple[tuple[Picture, ...], Labels]:
    """Return the pictures of a part, and 1, −1 or 0 (only difficult objects) for each class."""
    lists = [devkit / "ImageSets" / "Main" / f"{name}_{part}.txt" for name in CLASSES]
    columns = [read_rows(path, 2) for path in lists]
    names = [name for name, _ in columns[0]]
    for path, rows in zip(lists, columns, strict=True):
        if [name for name, _ in rows] != names:
            raise IncompleteError(f"{printable(path)} lists other pictures than {lists[0].name}")
    values = []
    for path, rows in zip(lists, columns, strict=True):
        column = numbers((label for _, label in rows), path)
        require_values(column, (-1, 0, 1), path)
        values.append([int(value) for value in column])
    pictures = tuple(Picture(devkit / "JPEGImages" / f"{name}.jpg") for name in names)
    return pictures, labels_of(values).T.copy()


VOC2007 = TransferSet(
    name="voc2007",
    title="Pascal VOC 2007",
    home="http://host.robots.ox.ac.uk/pascal/VOC/voc2007/ (trainval and test)",
    layout="VOCdevkit/VOC2007/JPEGImages and ImageSets/Main with CLASS_trainval.txt and CLASS_test.txt",
    read=_read,
    pictures=9_963,
)
