"""Features of pictures: what a part of a network answers, computed once and kept on the disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from os import fsync
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from secateur.data.images import DataError, Shape, read_batches
from secateur.data.inputs import Inputs

FeatureType: TypeAlias = Literal["float16", "float32"]

PICTURES_AT_A_TIME = 64


@dataclass(frozen=True, eq=False)
class Features(Dataset[tuple[Tensor, int]]):
    """Features (channels, height, width) with their labels, memory-mapped; `indices` are the rows of the file used."""

    rows: np.ndarray
    classes: tuple[str, ...]
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = self.rows[self.indices[index]]
        return torch.from_numpy(row["values"].astype(np.float32)), int(row["label"])

    def split(self, last: int) -> tuple[Features, Features]:
        """Return all rows but the last ones, and these."""
        kept = len(self) - last
        return tuple(Features(self.rows, self.classes, part) for part in (self.indices[:kept], self.indices[kept:]))  # type: ignore[return-value]  # two of them


def cached_features(
    features: Callable[[Tensor], Tensor],
    shape: Shape,
    inputs: Inputs,
    path: Path,
    *,
    dtype: FeatureType = "float16",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Features:
    """Return the features of all pictures, of this shape, from a file that is written first if it is missing.

    The name of the file has to tell what the features depend on, such as a digest of the network's weights. A file that
    is not finished has another name: it is never read, and the same call continues it, with the same batches and so
    the same bits. `progress` is told how many pictures of all are done.
    """
    kind = np.dtype([("label", "<i4"), ("values", np.dtype(dtype).newbyteorder("<"), shape)])
    if not path.exists():
        _write(features, kind, inputs, path, progress)
    if path.stat().st_size != len(inputs) * kind.itemsize:
        expected = f"{len(inputs):,} rows of {kind.itemsize:,} bytes"
        raise DataError(f"{path} has {path.stat().st_size:,} bytes instead of {expected}: delete it")
    return Features(np.memmap(path, kind, "r"), inputs.images.classes, range(len(inputs)))


def _write(
    features: Callable[[Tensor], Tensor],
    kind: np.dtype,
    inputs: Inputs,
    path: Path,
    progress: Callable[[int, int], None],
) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("ab") as file:
            _lock(file, path)
            # What a full disk or a kill has left of a batch is computed again: the same picture in a batch of another
            # size may give other bits.
            done = file.tell() // kind.itemsize // PICTURES_AT_A_TIME * PICTURES_AT_A_TIME
            file.truncate(done * kind.itemsize)
            missing, free = (len(inputs) - done) * kind.itemsize, shutil.disk_usage(path.parent).free
            if missing > free:
                raise DataError(f"{path} takes {missing:,} more bytes, and the disk has {free:,}: make room for it")
            _append(features, kind, inputs, file, done, progress)
            fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> DataError:
    """Return the error that says why a file cannot be written, and what to do."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room for it and run this again" if is_full else "choose another folder for data sets"
    return DataError(f"{path} cannot be written ({error.strerror or error}): {remedy}")


def _append(
    features: Callable[[Tensor], Tensor],
    kind: np.dtype,
    inputs: Inputs,
    file: BinaryIO,
    done: int,
    progress: Callable[[int, int], None],
) -> None:
    """Write the rows from a number on."""
    dtype = torch.float16 if kind["values"].base.itemsize == 2 else torch.float32
    batches = torch.arange(done, len(inputs)).split(PICTURES_AT_A_TIME)
    for pixels, labels in read_batches(inputs.images, batches):
        with torch.no_grad():
            values = features(inputs.scaling(pixels)).to(dtype)
        if not bool(values.isfinite().all()):
            bits, most = torch.finfo(dtype).bits, torch.finfo(dtype).max
            raise DataError(f"features that are NaN or beyond ±{most:,.6g} do not fit into {bits} bits")
        rows = np.empty(len(labels), kind)
        rows["label"], rows["values"] = labels.numpy(), values.reshape(len(labels), *kind["values"].shape).numpy()
        file.write(rows.tobytes())
        done += len(labels)
        progress(done, len(inputs))
    file.flush()


def _lock(file: BinaryIO, path: Path) -> None:
    """Refuse to write a file that another process is writing; without locks, on Windows, there is no such check."""
    with suppress(ModuleNotFoundError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{path} is being written by another process: wait until it has finished") from None
