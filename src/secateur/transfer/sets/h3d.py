"""H3D person attributes (Berkeley Attributes of People): nine attributes of people, such as "has glasses"."""

from __future__ import annotations

import math
from pathlib import Path

from secateur.transfer.sets.entry import TransferSet
from secateur.transfer.sets.lists import box_of, labels_of, numbers, read_rows, require_pictures, require_values
from secateur.transfer.task import Attributes, Labels, Picture

ATTRIBUTES = (
    *("is male", "has long hair", "has glasses", "has hat", "has t-shirt"),
    *("has long sleeves", "has shorts", "has jeans", "has long pants"),
)


def _read(folder: Path) -> Attributes:
    train, train_labels = _read_part(folder / "attributes_dataset" / "train")
    test, test_labels = _read_part(folder / "attributes_dataset" / "test")
    require_pictures(train, test)
    return Attributes(ATTRIBUTES, train, train_labels, test, test_labels, "ap")


def _read_part(folder: Path) -> tuple[tuple[Picture, ...], Labels]:
    """Return the people of a part; an attribute without a label is 0 or NaN in the list, and 0 here."""
    path, found, labels = folder / "labels.txt", [], []
    for file, *words in read_rows(path, 5 + len(ATTRIBUTES)):
        left, top, width, height, *values = numbers(words, path)
        found.append(Picture(folder / file, box_of(left, top, left + width, top + height, path)))
        known = [0 if math.isnan(value) else value for value in values]
        require_values(known, (-1, 0, 1), path)
        labels.append([int(value) for value in known])
    return tuple(found), labels_of(labels)


H3D_ATTRIBUTES = TransferSet(
    name="h3d-attributes",
    title="H3D person attributes",
    home="https://people.eecs.berkeley.edu/~lbourdev/poselets/",
    layout="attributes_dataset/train and test, each with labels.txt and the pictures",
    read=_read,
    pictures=8_035,
)
