"""MIT-67: which of 67 kinds of indoor scenes a photograph shows."""

from __future__ import annotations

from pathlib import Path

from secateur.transfer.sets.entry import TransferSet
from secateur.transfer.sets.lists import classification, look_up, read_lines
from secateur.transfer.task import Classification


def _read(folder: Path) -> Classification:
    train, test = folder / "TrainImages.txt", folder / "TestImages.txt"
    names = {path: [line.partition("/") for line in read_lines(path)] for path in (train, test)}
    classes = sorted({name for name, _, _ in names[train]})
    label_of = {name: label for label, name in enumerate(classes)}
    parts = [
        [(folder / "Images" / name / file, look_up(name, label_of, path)) for name, _, file in names[path]]
        for path in (train, test)
    ]
    return classification(classes, *parts)


MIT67 = TransferSet(
    name="mit67",
    title="MIT-67 indoor scenes",
    home="https://web.mit.edu/torralba/www/indoor.html",
    layout="Images/CLASS/*.jpg, TrainImages.txt and TestImages.txt",
    read=_read,
    pictures=6_700,
)
