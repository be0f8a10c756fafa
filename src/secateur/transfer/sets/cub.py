"""Caltech-UCSD Birds 200 (2011): which of 200 species a bird belongs to."""

from __future__ import annotations

from pathlib import Path

from secateur.transfer.sets.class_folders import has_parts, read_parts
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.lists import classification, look_up, read_pairs
from secateur.transfer.task import Classification


def _read(folder: Path) -> Classification:
    if has_parts(folder):
        return read_parts(folder)
    folder = folder / "CUB_200_2011"
    classes, files, split = folder / "classes.txt", folder / "images.txt", folder / "train_test_split.txt"
    class_labels = folder / "image_class_labels.txt"
    name_of, path_of, class_of, is_train = map(read_pairs, (classes, files, class_labels, split))
    label_of = {number: label for label, number in enumerate(name_of)}
    parts: dict[str, list[tuple[Path, int]]] = {"1": [], "0": []}
    for number, path in path_of.items():
        if number not in class_of or is_train.get(number) not in parts:
            raise IncompleteError(f"picture {number} has no class in {class_labels.name} or no part in {split.name}")
        label = look_up(class_of[number], label_of, class_labels)
        parts[is_train[number]].append((folder / "images" / path, label))
    return classification(list(name_of.values()), parts["1"], parts["0"])


CUB200 = TransferSet(
    name="cub200",
    title="CUB-200-2011 birds",
    home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    layout="CUB_200_2011/images, images.txt, image_class_labels.txt, train_test_split.txt and classes.txt, "
    "or as train/CLASS/* and test/CLASS/*",
    read=_read,
    pictures=11_788,
)
