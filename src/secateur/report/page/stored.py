"""The weights in the files of a run, read piece by piece, so that the page of a large network needs little memory."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import safetensors
import torch
from torch import Tensor

from secateur.report.page.gather import first_line, name_in_model
from secateur.report.page.run import Layer

_PIECE = 1 << 22  # elements read at a time
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class StoredTensors:
    """The tensors of a safetensors file by the name that they have in the model, read in pieces.

    Read, not mapped: the pages of a mapped file would stay in memory until all of a large model is there. And from one
    open file: training replaces its checkpoint.
    """

    def __init__(self, file: BinaryIO) -> None:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self._file, self._start, self._size = file, 8 + length, file.seek(0, io.SEEK_END)
        is_checkpoint = any(key.startswith("model:") for key in header)
        self._entries = {name_in_model(key) if is_checkpoint else key: entry for key, entry in header.items()}

    def has(self, layer: Layer) -> bool:
        """Return whether the file has the layer's weight in its shape."""
        entry = self._entries.get(layer.name)
        if entry is None or tuple(entry["shape"]) != layer.shape or entry["dtype"] not in _DTYPES:
            return False
        begin, end = entry["data_offsets"]
        lies_within = begin >= 0 and self._start + end <= self._size
        return bool(lies_within and end - begin == layer.weights * _DTYPES[entry["dtype"]].itemsize)

    def rows(self, layer: Layer, start: int, stop: int) -> Tensor:
        """Return some rows of the weight as a matrix of 32-bit floats; NaN and infinity become zero."""
        matrix = self._read(layer, start, stop)
        return matrix if math.isfinite(largest(matrix)) else matrix.nan_to_num(0.0, 0.0, 0.0)

    def pieces(self, layer: Layer, multiple: int = 1) -> Iterator[Tensor]:
        """Yield all rows in pieces of a multiple of so many."""
        rows = layer.shape[0]
        step = max(1, _PIECE * rows // layer.weights // multiple) * multiple
        for start in range(0, rows, step):
            yield self.rows(layer, start, min(start + step, rows))

    def _read(self, layer: Layer, start: int, stop: int) -> Tensor:
        entry, columns = self._entries[layer.name], layer.weights // layer.shape[0]
        dtype = _DTYPES[entry["dtype"]]
        buffer = bytearray((stop - start) * columns * dtype.itemsize)
        self._file.seek(self._start + entry["data_offsets"][0] + start * columns * dtype.itemsize)
        if self._file.readinto(buffer) < len(buffer):  # type: ignore[attr-defined]  # BinaryIO lacks it
            raise OSError("the file became shorter while it was read")
        return torch.frombuffer(buffer, dtype=dtype).reshape(stop - start, columns).to(torch.float32)


def largest(matrix: Tensor) -> float:
    """Return the largest magnitude; NaN if any weight is NaN."""
    low, high = matrix.aminmax()
    return float(torch.maximum(-low, high))


def open_stored(path: Path, files: ExitStack, problems: list[str]) -> StoredTensors | None:
    """Open a file until `files` are closed; None if it does not exist, and None with a sentence if it is damaged."""
    try:
        with safetensors.safe_open(path, framework="pt"):
            pass  # the library has checked the header
        return StoredTensors(files.enter_context(path.open("rb")))
    except FileNotFoundError:
        return None
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        problems.append(f"{path.name} is damaged ({first_line(error)}): its weights are not shown")
        return None
