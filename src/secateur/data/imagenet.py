"""ImageNet (ILSVRC-2012) and its small relatives Imagenette and Tiny-ImageNet, in the layouts they are published in.

The classes are WordNet synsets. A label is the position of the synset's id among the sorted ids of the set.
"""

from __future__ import annotations

import csv
import warnings
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from secateur.data.crops import CropKind
from secateur.data.downloads import cache_directory
from secateur.data.folders import Picture, folders_in, images_of, is_picture, name_hash, pictures_of
from secateur.data.images import DataError, Images, Shape, Split
from secateur.data.pictures import printable, require_pillow
from secateur.data.shards import pictures_in
from secateur.data.streams import UNREADABLE, Place

# Where the official labels of flat validation pictures are, from the folder of the set or one of those above it.
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_KAGGLE = "LOC_val_solution.csv"
# What SciPy was seen to raise on files that are not MATLAB's, and on other tables.
_MAT_ERRORS = (ValueError, TypeError, LookupError, RuntimeError, EOFError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class SynsetPictures:
    """A set of pictures whose classes are synsets: one folder for each, or shards.

    It is not downloaded: `home` is where it can be had.
    """

    name: str
    note: str
    shape: Shape  # that the pictures are cut to unless a network wants another
    synsets: Mapping[str, str] = field(repr=False)  # the names of the classes by their ids
    train_pictures: int
    test_pictures: int
    folders: tuple[str, ...]  # that it may have, below the root
    home: str

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their synsets' ids."""
        return tuple(self.synsets.values())

    def load(
        self,
        split: Split,
        root: Path | None = None,
        shape: Shape | None = None,
        *,
        crop: CropKind = "centre",
        most_unreadable: float = UNREADABLE,
        leave_out: Collection[str] = (),
    ) -> Images:
        """Return one part of the set from `root`, or a folder of its name in it; see `load_folder` for the rest.

        The default for `root` is the user's cache directory. The official validation pictures are the test part.
        """
        require_pillow()
        root = cache_directory() if root is None else root
        try:
            pictures = self._find(root, split)
        except OSError as error:
            at = printable(error.filename or root)
            raise DataError(f"{at} cannot be read: {error.strerror or error}") from error
        return images_of(
            pictures,
            self.classes,
            self.shape if shape is None else shape,
            crop=crop,
            most_unreadable=most_unreadable,
            leave_out=leave_out,
        )

    def _find(self, root: Path, split: Split) -> list[Picture]:
        places = [root / folder for folder in (self.name, *self.folders)] + [root]
        published = self.train_pictures if split == "train" else self.test_pictures
        for place in places:
            pictures = self._find_in(place, split)
            if pictures is None:
                continue
            if len(pictures) != published:
                found = f"{len(pictures):,} of the {published:,} {split} pictures"
                warnings.warn(f"{printable(place)} has {found} of {self.name}", stacklevel=5)
            return pictures
        raise self._missing(root, "nothing of it was found")

    def _find_in(self, place: Path, split: Split) -> list[Picture] | None:
        """Return the pictures of one part in a folder, or None if there is nothing like it."""
        part = place / ("train" if split == "train" else "val")
        if part.is_dir():
            # First, because the archives that it was unpacked from, which are no shards, may still lie next to it.
            folders = {name: path for name, path in folders_in(part).items() if name in self.synsets}
            files = _flat_files(part) if split == "test" and not folders else []
        else:
            folders, files = {}, []
        shards = sorted([*part.glob("*.tar"), *place.glob(f"*{part.name}*.tar")])
        if shards and not folders and not files:
            return pictures_in(shards, self.classes)
        if not part.is_dir():
            return None
        if not folders and split == "test":
            return self._flat(part, files)
        lacking = [synset for synset in self.synsets if synset not in folders]
        if lacking:
            raise self._missing(
                part, f"{len(folders):,} of {len(self.synsets):,} classes were found, {lacking[0]} was not"
            )
        return pictures_of(tuple(self.synsets), folders)

    def _flat(self, part: Path, files: list[Path]) -> list[Picture]:
        """Return pictures that lie in one folder, with labels from a file."""
        if not files:
            raise self._missing(part, "it has no pictures")
        synset_of = _synsets_of_files(part, files)
        if synset_of is None:
            wanted = f"{_DEVKIT}/{_GROUND_TRUTH} and meta.mat, {_KAGGLE}, or a folder for each class"
            raise DataError(f"{printable(part)} has {len(files):,} pictures but no labels: add {wanted}")
        label_of = {synset: label for label, synset in enumerate(self.synsets)}
        found = []
        for path in files:
            synset = synset_of.get(path.name, "")
            if synset not in label_of:
                known = f'the unknown class "{synset}"' if synset else "no label"
                raise DataError(f"{printable(path)} has {known} in the list of labels: is it that of {self.name}?")
            place = Place(str(path))
            found.append(Picture(name_hash(synset, path.name), label_of[synset], place, path.name))
        return found

    def _missing(self, where: Path, found: str) -> DataError:
        first = next(iter(self.synsets))
        size = f"{len(self.synsets):,} classes, {self.train_pictures:,} + {self.test_pictures:,} pictures"
        return DataError(
            f"{self.name} was expected in {printable(where)} as train/{first}/*.JPEG and val/{first}/*.JPEG, or as tar "
            f"shards in train and val ({size}), but {found}: get it from {self.home}, and give its folder with "
            "--data-root; for other classes, give the folder with --data"
        )


def _flat_files(part: Path) -> list[Path]:
    """Return the pictures that lie in one folder, sorted."""
    folder = part / "images" if (part / "images").is_dir() else part
    return sorted(path for path in folder.iterdir() if is_picture(path.name) and not path.name.startswith("."))


def _synsets_of_files(part: Path, files: list[Path]) -> dict[str, str] | None:
    """Return the ids of the classes of flat validation pictures by file name, from whichever list there is."""
    annotations = part / "val_annotations.txt"  # of Tiny-ImageNet
    if annotations.is_file():
        rows = [line.split("\t") for line in annotations.read_text(errors="replace").splitlines()]
        return {row[0]: row[1] for row in rows if len(row) > 1}
    for above in (part, *part.absolute().parents[:4]):
        if (above / _KAGGLE).is_file():
            return _read_kaggle(above / _KAGGLE)
        for folder in (above / _DEVKIT, above / "data", above):
            if (folder / _GROUND_TRUTH).is_file() and (folder / "meta.mat").is_file():
                return _read_devkit(folder, files)
    return None


def _read_kaggle(path: Path) -> dict[str, str]:
    """Return the ids of classes by file name from a table with one row for each picture."""
    with path.open(newline="", errors="replace") as file:
        table = csv.DictReader(file)
        try:
            columns, rows = table.fieldnames or (), list(table)
        except csv.Error as error:
            raise DataError(f"{printable(path)} is not a list of labels ({error}): download it again") from error
    if not {"ImageId", "PredictionString"} <= set(columns):
        found = f"has the columns {', '.join(columns) or 'none'} instead of ImageId and PredictionString"
        raise DataError(f"{printable(path)} {found}: download it again")
    # The class, then the corners of a box.
    return {f"{row['ImageId']}.JPEG": (row["PredictionString"] or "").partition(" ")[0] for row in rows}


def _read_devkit(folder: Path, files: list[Path]) -> dict[str, str]:
    """Return the ids of classes by file name: the n-th number of the ground truth belongs to the n-th picture."""
    numbers = (folder / _GROUND_TRUTH).read_text(errors="replace").split()
    if len(numbers) != len(files):
        what = f"{len(numbers):,} labels for {len(files):,} pictures"
        raise DataError(f"{printable(folder / _GROUND_TRUTH)} has {what}: one of them is incomplete")
    try:
        from scipy.io import loadmat  # optional, so not at the top
        from scipy.io.matlab import MatReadError
    except ModuleNotFoundError as error:
        meta = printable(folder / "meta.mat")
        raise DataError(f"{meta} is read by SciPy, which is not installed: pip install scipy") from error
    # Classes 1…1000, which are not in the order of their ids, then the synsets above them in WordNet.
    try:
        rows = loadmat(folder / "meta.mat", squeeze_me=True)["synsets"]
        synset_of = {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in rows}
    except (*_MAT_ERRORS, MatReadError) as error:
        meta, said = printable(folder / "meta.mat"), str(error) or type(error).__name__
        raise DataError(f"{meta} is not that of the devkit ({said}): unpack the devkit again") from error
    return {path.name: synset_of.get(number, "") for path, number in zip(files, numbers, strict=True)}


def _read_synsets() -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of ImageNet's classes by their ids, and those of Tiny-ImageNet's."""
    rows = [line.split(" ", 2) for line in (resources.files(__package__) / "synsets.txt").read_text().splitlines()]
    return {row[0]: row[2] for row in rows}, {row[0]: row[2] for row in rows if row[1] == "t"}


_ALL, _TINY = _read_synsets()
_TEN = (
    *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)

IMAGENET = SynsetPictures(
    name="imagenet",
    note="photographs of 1,000 classes (ILSVRC-2012), 1,281,167 for training; see --data-root",
    shape=(3, 224, 224),
    synsets=_ALL,
    train_pictures=1_281_167,
    test_pictures=50_000,
    folders=("ILSVRC/Data/CLS-LOC", "ILSVRC2012"),
    home="https://image-net.org",
)
IMAGENETTE = SynsetPictures(
    name="imagenette",
    note="photographs of ten classes of ImageNet that are easily told apart, 9,469 for training; see --data-root",
    shape=(3, 224, 224),
    synsets={synset: _ALL[synset] for synset in _TEN},
    train_pictures=9_469,
    test_pictures=3_925,
    folders=("imagenette2-320", "imagenette2", "imagenette2-160"),
    home="https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
)
TINY_IMAGENET = SynsetPictures(
    name="tiny-imagenet",
    note="photographs of 200 classes of ImageNet, 64×64 in colour, 100,000 for training; see --data-root",
    shape=(3, 64, 64),
    synsets=_TINY,
    train_pictures=100_000,
    test_pictures=10_000,
    folders=("tiny-imagenet-200",),
    home="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
)
