"""The data sets of the paper's evaluation of transfer and further ones, by name or by folder."""

from __future__ import annotations

from dataclasses import replace
from os import sep
from pathlib import Path
from typing import Literal

from secateur.data.pictures import printable
from secateur.table import Table
from secateur.transfer.sets.buildings import OXFORD5K, PARIS6K
from secateur.transfer.sets.by_class import by_class
from secateur.transfer.sets.class_folders import read_folder
from secateur.transfer.sets.cub import CUB200
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.flowers import FLOWERS102
from secateur.transfer.sets.groups import HOLIDAYS, UKBENCH
from secateur.transfer.sets.h3d import H3D_ATTRIBUTES
from secateur.transfer.sets.mit67 import MIT67
from secateur.transfer.sets.sculptures import SCULPTURES6K
from secateur.transfer.sets.trees import CALTECH101, IMAGENETTE, PACS, SCENE15
from secateur.transfer.sets.uiuc import UIUC_ATTRIBUTES, UIUC_ATTRIBUTES_YAHOO
from secateur.transfer.sets.voc import VOC2007

__all__ = ["TRANSFER_SETS", "IncompleteError", "TransferSet", "by_class", "find"]

_PAPER = (
    *(VOC2007, MIT67, CUB200, FLOWERS102, UIUC_ATTRIBUTES, H3D_ATTRIBUTES),
    *(OXFORD5K, PARIS6K, SCULPTURES6K, HOLIDAYS, UKBENCH),
)
_FURTHER = (UIUC_ATTRIBUTES_YAHOO, SCENE15, CALTECH101, *PACS, IMAGENETTE)
_SEARCHED_BY: dict[str, tuple[str, Literal["ap", "recall@4"]]] = {
    "map": ("mAP", "ap"),
    "recall@4": ("Recall@4", "recall@4"),
}
TRANSFER_SETS: Table[TransferSet] = Table("task", "secateur.transfer_sets", TransferSet, _PAPER + _FURTHER)


def find(name: str | Path) -> TransferSet:
    """Return an entry of the table, or one for a folder of classes by its path; `read_folder` says how that is split.

    With ":mAP" or ":Recall@4" at the end, the test pictures are searched by class instead. A ValueError names the
    nearest entry if there is neither.
    """
    set_name, _, measure = str(name).rpartition(":")
    if measure.casefold() in _SEARCHED_BY and not Path(name).is_dir():
        spelled, score = _SEARCHED_BY[measure.casefold()]
        entry = find(set_name)
        folder = entry.folder or entry.name
        return replace(entry, name=f"{entry.name}:{spelled}", folder=folder, searched_by=score)
    if isinstance(name, str) and name in TRANSFER_SETS:
        return TRANSFER_SETS[name]
    folder_path = Path(name)
    if folder_path.is_dir():
        return TransferSet(
            name=printable(folder_path),
            title=folder_path.absolute().name,
            home="",
            layout="train/CLASS/* and test/CLASS/* (or val), or CLASS/*",
            read=read_folder,
            folder=str(folder_path.absolute()),
        )
    if isinstance(name, Path) or sep in name:
        raise ValueError(f"{name} is not a folder: give one with a folder of pictures for each class, or a task")
    return TRANSFER_SETS.find(name)
