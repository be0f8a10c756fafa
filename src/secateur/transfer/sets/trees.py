"""Sets beyond the paper's that are folders of classes: Scene-15, Caltech-101, PACS and Imagenette."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from secateur.data.folders import folders_in
from secateur.data.imagenet import IMAGENETTE as SYNSETS
from secateur.data.pictures import printable
from secateur.transfer.sets.class_folders import (
    find_labelled,
    has_parts,
    paths_and_labels,
    read_classes,
    read_parts,
)
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.lists import classification
from secateur.transfer.task import Classification

_CALTECH = "101_ObjectCategories"
_DOMAINS = {"photo": "photo", "art": "art_painting", "cartoon": "cartoon", "sketch": "sketch"}


def _read_scenes(folder: Path) -> Classification:
    """Return a copy with train and test, whose names of classes may differ in case, or split by 100 a class."""
    if has_parts(folder):
        return read_parts(folder, key=str.casefold)
    return read_classes(_inside(folder, "scene_categories"), each=100)


def _read_caltech(folder: Path) -> Classification:
    """Return 30 pictures a class for training and all others for the test; see `read_classes`."""
    classes = folder if folder.name == _CALTECH else _inside(folder, _CALTECH)
    return read_classes(classes, each=30, leave_out=("BACKGROUND_Google",))


def _read_pacs(folder: Path, tested: str) -> Classification:
    """Return three domains for training and the other one for the test."""
    domains = {domain: folders_in(_inside(folder, domain)) for domain in _DOMAINS.values()}
    classes = sorted(domains["photo"])
    for domain, folders in domains.items():
        if sorted(folders) != classes:
            raise IncompleteError(f"{printable(folder / domain)} has other classes than {printable(folder / 'photo')}")
    label_of = {name: label for label, name in enumerate(classes)}
    found = {domain: find_labelled(folders, label_of) for domain, folders in domains.items()}
    test = found.pop(tested)
    train = [picture for pictures in found.values() for picture in pictures]
    return classification(classes, paths_and_labels(train), paths_and_labels(test))


def _read_imagenette(folder: Path) -> Classification:
    task = read_parts(folder)
    return replace(task, classes=tuple(SYNSETS.synsets.get(name, name) for name in task.classes))


def _inside(folder: Path, name: str) -> Path:
    if not (folder / name).is_dir():
        raise IncompleteError(f"{printable(folder / name)} is missing")
    return folder / name


SCENE15 = TransferSet(
    name="scene15",
    title="Scene-15",
    home="http://www-cvr.ai.uiuc.edu/ponce_grp/data/",
    layout="scene_categories/CLASS/*.jpg, or as train/CLASS/* and test/CLASS/*",
    read=_read_scenes,
    pictures=4_485,
)
CALTECH101 = TransferSet(
    name="caltech101",
    title="Caltech-101",
    home="https://data.caltech.edu/records/mzrjq-6wc02",
    layout=f"{_CALTECH}/CLASS/*.jpg",
    read=_read_caltech,
    other_folder=_CALTECH,
    pictures=8_677,
)
PACS = tuple(
    TransferSet(
        name=f"pacs-{name}",
        title=f"PACS, tested on {domain.replace('_', ' ')}",
        home="https://domaingeneralization.github.io/",
        layout="photo/CLASS/*, art_painting/CLASS/*, cartoon/CLASS/* and sketch/CLASS/*",
        read=partial(_read_pacs, tested=domain),
        folder="pacs",
        other_folder="PACS",
        pictures=9_991,
    )
    for name, domain in _DOMAINS.items()
)
IMAGENETTE = TransferSet(
    name="imagenette",
    title="Imagenette",
    home="https://github.com/fastai/imagenette",
    layout="train/CLASS/*.JPEG and val/CLASS/*.JPEG",
    read=_read_imagenette,
    other_folder="imagenette2-320",
    pictures=13_394,
)
