"""UIUC object attributes (a-Pascal and a-Yahoo): 64 attributes of objects, such as "Furry" or "Has Wheel"."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from secateur.transfer.sets.entry import TransferSet
from secateur.transfer.sets.lists import (
    box_of,
    labels_of,
    numbers,
    read_lines,
    read_rows,
    require_pictures,
    require_values,
)
from secateur.transfer.task import Attributes, Labels, Picture

_PASCAL, _YAHOO = "VOCdevkit/VOC2008/JPEGImages", "ayahoo_test_images"
_BEFORE = 6  # words before the attributes: file, class and box


def _read(folder: Path, test_list: str, test_pictures: str) -> Attributes:
    data = folder / "attribute_data"
    attributes = tuple(read_lines(data / "attribute_names.txt"))
    train, train_labels = _read_part(data / "apascal_train.txt", folder / _PASCAL, len(attributes))
    test, test_labels = _read_part(data / test_list, folder / test_pictures, len(attributes))
    require_pictures(train, test)
    return Attributes(attributes, train, train_labels, test, test_labels, "auc")


def _read_part(path: Path, pictures: Path, attributes: int) -> tuple[tuple[Picture, ...], Labels]:
    """Return the objects of a list, whose boxes count pixels from 1 and include their last ones."""
    found, labels = [], []
    for file, _, *words in read_rows(path, _BEFORE + attributes):
        left, top, right, bottom, *values = numbers(words, path)
        found.append(Picture(pictures / file, box_of(left - 1, top - 1, right, bottom, path)))
        require_values(values, (0, 1), path)
        labels.append([1 if value else -1 for value in values])
    return tuple(found), labels_of(labels)


_HOME = "http://vision.cs.uiuc.edu/attributes/ and, for its pictures, Pascal VOC 2008 (trainval)"
UIUC_ATTRIBUTES = TransferSet(
    name="uiuc-attributes",
    title="UIUC object attributes (a-Pascal)",
    home=_HOME,
    layout=f"attribute_data/apascal_train.txt, apascal_test.txt and attribute_names.txt, and {_PASCAL}",
    read=partial(_read, test_list="apascal_test.txt", test_pictures=_PASCAL),
    pictures=12_695,
)
UIUC_ATTRIBUTES_YAHOO = TransferSet(
    name="uiuc-attributes-yahoo",
    title="UIUC object attributes (a-Yahoo)",
    home=_HOME,
    layout=f"attribute_data/apascal_train.txt, ayahoo_test.txt and attribute_names.txt, {_PASCAL} and {_YAHOO}",
    read=partial(_read, test_list="ayahoo_test.txt", test_pictures=_YAHOO),
    folder="uiuc-attributes",
    pictures=8_984,
)
