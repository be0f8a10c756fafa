"""Tasks that are folders of pictures, one folder per class, and the fixed splits of those that come without one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from pathlib import Path

from secateur.data.folders import Picture, folders_in, pictures_of
from secateur.data.images import DataError
from secateur.data.pictures import printable
from secateur.transfer.sets.entry import IncompleteError
from secateur.transfer.sets.lists import classification
from secateur.transfer.task import Classification


def read_folder(folder: Path) -> Classification:
    """Return a folder of classes as a task.

    With `train` and `test` (or `val`) in it, those are the parts, and `val` is for training if there is `test` too.
    Otherwise the folder holds the classes directly, and half of each, rounded up, is for training: the half whose
    names have the smaller hashes, which are the same on every machine.
    """
    return read_parts(folder) if has_parts(folder) else read_classes(folder)


def has_parts(folder: Path) -> bool:
    """Return whether a folder has the subfolders `train` and `test` or `val`."""
    parts = folders_in(folder)
    return "train" in parts and ("test" in parts or "val" in parts)


def read_parts(folder: Path, key: Callable[[str], str] = str) -> Classification:
    """Return the task in `train/CLASS` and `test/CLASS`; see `read_folder`.

    Folders of `train` and `test` are one class if `key` returns the same for both names.
    """
    parts = folders_in(folder)
    if not has_parts(folder):
        raise IncompleteError("a folder train with test or val was not found")
    trained = [parts["train"], parts["val"]] if "val" in parts and "test" in parts else [parts["train"]]
    tested = parts["test"] if "test" in parts else parts["val"]
    classes = sorted({key(name): name for name in chain(*map(folders_in, reversed(trained)))}.values())
    label_of = {key(name): label for label, name in enumerate(classes)}
    strange = [name for name in folders_in(tested) if key(name) not in label_of]
    if strange:
        raise IncompleteError(f'{printable(tested)} has a class "{strange[0]}" that is not in train')
    train, test = (
        [
            one
            for part in some
            for one in find_labelled(folders_in(part), {name: label_of[key(name)] for name in folders_in(part)})
        ]
        for some in (trained, [tested])
    )
    return classification(classes, paths_and_labels(train), paths_and_labels(test))


def read_classes(folder: Path, each: int | None = None, leave_out: Collection[str] = ()) -> Classification:
    """Return the task in `CLASS` folders, of which `each` pictures are for training and the others for the test.

    They are those whose names have the smallest hashes. None is half of a class, rounded up.
    """
    folders = {name: path for name, path in folders_in(folder).items() if name not in leave_out}
    train: list[Picture] = []
    test: list[Picture] = []
    for label, (name, path) in enumerate(folders.items()):
        mixed = sorted(find_labelled({name: path}, {name: label}))
        count = (len(mixed) + 1) // 2 if each is None else each
        if each is not None and len(mixed) <= each:
            what = f"{len(mixed)} pictures of the class {name} were found where more than {each} are needed"
            raise IncompleteError(what)
        train += mixed[:count]
        test += mixed[count:]
    return classification(list(folders), paths_and_labels(train), paths_and_labels(test))


def find_labelled(folders: Mapping[str, Path], label_of: Mapping[str, int]) -> list[Picture]:
    """Return the pictures of folders of classes, with labels by the names of the folders."""
    try:
        found = pictures_of(tuple(folders), folders)
    except DataError as error:
        raise IncompleteError(str(error).rpartition(": ")[0]) from error
    names = tuple(folders)
    return [picture._replace(label=label_of[names[picture.label]]) for picture in found]


def paths_and_labels(pictures: Collection[Picture]) -> list[tuple[Path, int]]:
    """Return paths and labels, sorted."""
    return sorted((Path(picture.place.path), picture.label) for picture in pictures)
