"""Features of pictures: what a part of a network answers, computed once and kept on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from os import fsync
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

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


class Extraction(NamedTuple):
    """A function of pictures, the shape of what it returns, and the file to keep this in."""

    features: Callable[[Tensor], Tensor]
    shape: Shape
    path: Path


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
    [found] = cached_together([Extraction(features, shape, path)], inputs, dtype=dtype, progress=progress)
    return found


def cached_together(
    wanted: Sequence[Extraction],
    inputs: Inputs,
    *,
    dtype: FeatureType = "float16",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Features]:
    """Return several kinds of features of the same pictures, as `cached_features` does; each picture is read once."""
    missing = {each.path: each for each in wanted if not each.path.exists()}
    if missing:
        with ExitStack() as stack:
            contexts = (_continued(each, _kind(each, dtype)) for each in missing.values())
            rows = [stack.enter_context(context) for context in contexts]
            _require_room(rows, len(inputs))
            _append(rows, inputs, progress)
    return [_mapped(each.path, _kind(each, dtype), inputs) for each in wanted]


def _kind(wanted: Extraction, dtype: FeatureType) -> np.dtype:
    return np.dtype([("label", "<i4"), ("values", np.dtype(dtype).newbyteorder("<"), wanted.shape)])


def _mapped(path: Path, kind: np.dtype, inputs: Inputs) -> Features:
    if path.stat().st_size != len(inputs) * kind.itemsize:
        expected = f"{len(inputs):,} rows of {kind.itemsize:,} bytes"
        raise DataError(f"{path} has {path.stat().st_size:,} bytes instead of {expected}: delete it")
    return Features(np.memmap(path, kind, "r"), inputs.images.classes, range(len(inputs)))


@dataclass(eq=False)
class _Rows:
    """A file of features that is being written."""

    features: Callable[[Tensor], Tensor]
    kind: np.dtype
    path: Path
    file: FileIO
    done: int

    def add(self, inputs: Tensor, labels: Tensor) -> None:
        dtype = torch.float16 if self.kind["values"].base.itemsize == 2 else torch.float32
        with torch.no_grad():
            values = self.features(inputs).to(dtype)
        if not bool(values.isfinite().all()):
            bits, most = torch.finfo(dtype).bits, torch.finfo(dtype).max
            raise DataError(f"features that are NaN or beyond ±{most:,.6g} do not fit into {bits} bits")
        rows = np.empty(len(labels), self.kind)
        rows["label"] = labels.numpy()
        rows["values"] = values.reshape(len(labels), *self.kind["values"].shape).numpy()
        rest = memoryview(rows.tobytes())
        with _writing(self.path):
            while rest:
                rest = rest[self.file.write(rest) :]
        self.done += len(labels)


@contextmanager
def _continued(wanted: Extraction, kind: np.dtype) -> Iterator[_Rows]:
    """Open a file under another name, after the rows it already has; it is finished if all goes well."""
    path = wanted.path
    partial = path.with_name(f".{path.name}.partial")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("ab", buffering=0)  # so that closing it after an error writes nothing more
    with file:
        with _writing(path):
            _lock(file, path)
            if path.exists():  # and what was opened may be this file
                raise DataError(f"{path} has just been written by another process: run this again")
            # What a full disk or a kill has left of a batch is computed again: the same picture in a batch of another
            # size may give other bits.
            done = file.tell() // kind.itemsize // PICTURES_AT_A_TIME * PICTURES_AT_A_TIME
            file.truncate(done * kind.itemsize)
        yield _Rows(wanted.features, kind, path, file, done)
        with _writing(path):
            fsync(file.fileno())
            if os.name == "nt":  # where an open file cannot be renamed, and there is no lock to keep
                file.close()
            partial.replace(path)


def _require_room(files: Sequence[_Rows], pictures: int) -> None:
    """Raise a DataError if the disk of some files has no room for what they lack."""
    missing: Counter[int] = Counter()
    for rows in files:
        missing[rows.path.parent.stat().st_dev] += (pictures - rows.done) * rows.kind.itemsize
    for folder in {rows.path.parent for rows in files}:
        needed, free = missing[folder.stat().st_dev], shutil.disk_usage(folder).free
        if needed > free:
            raise DataError(f"{folder} needs {needed:,} more bytes for features, and its disk has {free:,}: make room")


def _append(files: Sequence[_Rows], inputs: Inputs, progress: Callable[[int, int], None]) -> None:
    """Write the rows that files do not have yet; some may have more of them than others."""
    start = min(rows.done for rows in files)
    for pixels, labels in read_batches(inputs.images, torch.arange(start, len(inputs)).split(PICTURES_AT_A_TIME)):
        scaled = inputs.scaling(pixels)
        for rows in files:
            if rows.done == start:
                rows.add(scaled, labels)
        start += len(labels)
        progress(start, len(inputs))


def unwritable(path: Path, error: OSError) -> DataError:
    """Return the error that says why a file cannot be written, and what to do."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room for it and run this again" if is_full else "choose another folder for data sets"
    return DataError(f"{path} cannot be written ({error.strerror or error}): {remedy}")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the system into one that names the file that is written."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def _lock(file: FileIO, path: Path) -> None:
    """Refuse to write a file that another process is writing; without locks, on Windows, there is no such check."""
    with suppress(ModuleNotFoundError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{path} is being written by another process: wait until it has finished") from None
