"""Oxford 102 flowers: which of 102 species a flower belongs to."""

from __future__ import annotations

from pathlib import Path

from secateur.data.images import DataError
from secateur.data.pictures import printable
from secateur.transfer.sets.class_folders import has_parts, read_parts
from secateur.transfer.sets.entry import IncompleteError, TransferSet
from secateur.transfer.sets.lists import classification
from secateur.transfer.task import Classification


def _read(folder: Path) -> Classification:
    """Return the official split, with the validation pictures in the training part."""
    if has_parts(folder):
        return read_parts(folder)
    [labels] = _read_mat(folder / "imagelabels.mat", "labels")
    train, validation, test = _read_mat(folder / "setid.mat", "trnid", "valid", "tstid")
    if min(labels + train + validation + test) < 1:
        raise IncompleteError("imagelabels.mat or setid.mat has a number below 1")
    if max(train + validation + test) > len(labels):
        raise IncompleteError(f"imagelabels.mat has {len(labels):,} labels, fewer than setid.mat has pictures")
    classes = [str(number) for number in range(1, max(labels) + 1)]
    parts = [
        [(folder / "jpg" / f"image_{number:05d}.jpg", labels[number - 1] - 1) for number in some]
        for some in (train + validation, test)
    ]
    return classification(classes, *parts)


def _read_mat(path: Path, *names: str) -> list[list[int]]:
    """Return vectors of whole numbers from a file of MATLAB."""
    if not path.is_file():
        raise IncompleteError(f"{printable(path)} is missing")
    try:
        from scipy.io import loadmat  # optional, so not at the top
    except ModuleNotFoundError as error:
        raise DataError(f"{printable(path)} is read by SciPy, which is not installed: pip install scipy") from error
    try:
        content = loadmat(path)
        vectors = [[int(value) for value in content[name].ravel()] for name in names]
    except (ValueError, TypeError, LookupError, NotImplementedError, OSError) as error:
        raise IncompleteError(f"{printable(path)} is damaged or has no {' and '.join(names)}") from error
    if not all(vectors):
        raise IncompleteError(f"{printable(path)} has an empty list")
    return vectors


FLOWERS102 = TransferSet(
    name="flowers102",
    title="Oxford 102 flowers",
    home="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    layout="jpg/image_00001.jpg and so on, imagelabels.mat and setid.mat, "
    "or as train/CLASS/*, val/CLASS/* and test/CLASS/*",
    read=_read,
    pictures=8_189,
)
