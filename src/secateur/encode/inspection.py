"""Inspect a .cut file tensor by tensor, and compare its size with other formats."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
from torch import Tensor

from secateur.encode import nncodec_sizes
from secateur.encode.codecs import CODECS
from secateur.encode.container import MAX_BYTES, Archive, open_archive, to_bytes
from secateur.encode.levels import Values, find_levels, find_values, to_bits, view_2d
from secateur.encode.preamble import Architecture
from secateur.encode.records import TensorRecord


@dataclass(frozen=True)
class TensorReport:
    """What a file spends on one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    weights: int
    nonzero: int  # of a tensor that is computed from smaller ones: the numbers that are stored
    levels: int | None  # distinct values except zero; None if values are stored as they are or computed
    values: str
    codec: str
    bytes: int
    dense_bytes: int
    entropy_bytes: float  # see entropy_bits
    tied_to: str | None = None
    is_computed: bool = False  # from smaller tensors, as `values` says

    @property
    def bits_per_weight(self) -> float:
        """Bits of the stream for each element."""
        return 8 * self.bytes / self.weights if self.weights else 0.0

    @property
    def bits_per_nonzero(self) -> float:
        """Bits of the stream for each element that is not zero."""
        return 8 * self.bytes / self.nonzero if self.nonzero else 0.0


@dataclass(frozen=True)
class FileReport:
    """What a file holds."""

    path: str
    bytes: int
    header_bytes: int
    architecture: Architecture | None
    metadata: Mapping[str, str]
    tensors: tuple[TensorReport, ...]

    @property
    def dense_bytes(self) -> int:
        """The uncompressed size of the tensors; tied ones count once."""
        return sum(t.dense_bytes for t in self.tensors if t.tied_to is None)


def inspect(path: Path, *, max_bytes: int = MAX_BYTES) -> FileReport:
    """Decode a file and report on every tensor."""
    with open_archive(path, max_bytes) as archive:
        tensors = tuple(_report(archive, record, tensor) for record, tensor in archive.read_all())
        return FileReport(
            str(path), archive.size, archive.header_bytes, archive.architecture, archive.metadata, tensors
        )


def entropy_bits(tensor: Tensor) -> float:
    """Return the bits of independent positions and values: n·H(kept or not) + kept·H(value).

    A codec can only go below it by using neighbours. Where most values appear once, H(value) would measure nothing but
    their number, so the entropy of each byte of the values counts instead.
    """
    bits = to_bits(tensor)
    values = bits[bits != 0]
    position_bits = _entropy(np.array([len(values), bits.size - len(values)]))
    counts = np.unique(values, return_counts=True)[1]
    if 4 * len(counts) <= len(values):
        return position_bits + _entropy(counts)
    return position_bits + sum(_entropy(np.bincount(plane)) for plane in values.view("u1").reshape(len(values), -1).T)


def _entropy(counts: npt.NDArray[np.integer]) -> float:
    """Return −Σ c·log₂(c / Σc), the bits of a text with these counts."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def sizes(tensors: Mapping[str, Tensor], *, nncodec: Path | None = None) -> dict[str, int]:
    """Return the size of the same tensors in every format, in bytes: whole files where the format is a file.

    Compressors get the plain numbers, one tensor after the other. CSR has 32-bit columns and row starts; tensors with
    less than two dimensions stay dense. The entropy bound (see entropy_bits) is without codebooks and header. `nncodec`
    is the interpreter of an environment that has NNCodec; its streams count, the best of several settings for every
    tensor, with our codebooks, and raw bytes where there are no levels.
    """
    plain = b"".join(to_bits(tensor).tobytes() for tensor in tensors.values())
    found = {"dense": len(plain), "gzip": len(gzip.compress(plain, 9))}
    found |= _zstd(plain)
    found["lzma"] = len(lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME))
    found["safetensors"] = len(safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()}))
    found["csr"] = sum(map(_csr_bytes, tensors.values()))
    for codec in (*(codec.name for codec in CODECS), "smallest"):
        found[codec] = len(to_bytes(tensors, codec=codec))
    if nncodec is not None:
        found["nncodec"] = _nncodec_bytes(tensors, nncodec)
    found["entropy bound"] = round(sum(map(entropy_bits, tensors.values())) / 8)
    return found


def _report(archive: Archive, record: TensorRecord, tensor: Tensor) -> TensorReport:
    bits = to_bits(tensor)
    has_levels = record.formula is None and record.coding.kind not in (Values.RAW, Values.BITS)
    parts = None if record.formula is None else archive.read_parts(record)
    codecs = dict.fromkeys(part.codec for part in record.parts) if parts is not None else (record.codec,)
    return TensorReport(
        record.name,
        str(record.dtype).removeprefix("torch."),
        record.shape,
        record.size,
        _count_kept(tensor) if parts is None else parts.stored,
        len(np.unique(bits[bits != 0])) if has_levels else None,
        record.codec if parts is not None else record.coding.kind.name.lower().replace("_", " "),
        " + ".join(codecs),
        0 if record.alias_of is not None else record.length,
        bits.nbytes,
        sum(map(entropy_bits, (tensor,) if parts is None else parts.parts)) / 8,
        record.alias_of,
        parts is not None,
    )


def _count_kept(tensor: Tensor) -> int:
    """Count the elements that are not zero in every bit; one may take several words."""
    bits = to_bits(tensor).reshape(-1)
    return int(bits.reshape(tensor.numel(), -1).any(1).sum()) if tensor.numel() else 0


def _csr_bytes(tensor: Tensor) -> int:
    bits = to_bits(tensor)
    if tensor.dim() < 2:
        return int(bits.nbytes)
    rows, _ = view_2d(tuple(tensor.shape))
    return (tensor.itemsize + 4) * _count_kept(tensor) + 4 * (rows + 1)


def _zstd(plain: bytes) -> dict[str, int]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        return {}
    return {"zstd": len(zstandard.ZstdCompressor(level=19).compress(plain))}


def _nncodec_bytes(tensors: Mapping[str, Tensor], python: Path) -> int:
    levels, others = {}, 0
    for name, tensor in tensors.items():
        bits = to_bits(tensor)
        found = next(find_levels(*find_values(bits), tensor.dtype, tuple(tensor.shape)), None) if bits.any() else None
        if found is None:
            others += bits.nbytes if bits.any() else 0
        else:
            levels[name] = found.matrix
            others += len(found.table)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "levels.npz"
        np.savez(path, **{f"t{index}": matrix for index, matrix in enumerate(levels.values())})  # type: ignore[arg-type]
        command = [str(python), str(Path(nncodec_sizes.__file__)), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"{python} cannot run NNCodec: {said}")
    streams: list[int] = json.loads(done.stdout)
    return others + sum(streams)
