"""Convert safetensors files to .cut files and back, and compare the two bit by bit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from secateur.atomic import require_file, write_atomically
from secateur.encode.container import MAX_BYTES, open_archive, to_bytes
from secateur.encode.errors import FormatError
from secateur.encode.layouts import layout_of
from secateur.encode.levels import to_bits
from secateur.encode.negative_zeros import warn_of_negative_zeros
from secateur.encode.preamble import Architecture


@dataclass(frozen=True)
class Comparison:
    """What a file holds, and the names of the tensors that differ from their originals."""

    path: str
    bytes: int
    tensors: int
    elements: int
    differences: tuple[str, ...] | None  # None: there was nothing to compare with

    @property
    def is_equal(self) -> bool:
        """Whether no tensor differs from its original, as far as there is one."""
        return not self.differences


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file, and its metadata."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a safetensors file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
            return tensors, dict(file.metadata() or {})
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def pack(source: Path, target: Path, *, codec: str = "smallest", networks: Collection[str] = ()) -> int:
    """Write the tensors of a safetensors file to a .cut file, without loss; return its size in bytes.

    Metadata goes along. If its entry "network" is one of `networks`, it becomes the file's architecture.
    """
    _require_apart(source, target)
    tensors, metadata = read_safetensors(source)
    _require_plain(tensors, source)
    warn_of_negative_zeros(tensors)
    architecture = None
    if metadata.get("network") in networks:
        architecture = Architecture(metadata.pop("network"))
        # In the order of the layout, which safetensors does not keep.
        order = [name for name, _, _ in layout_of(architecture.name) or () if name in tensors]
        tensors = {name: tensors[name] for name in dict.fromkeys([*order, *tensors])}
    content = to_bytes(tensors, codec=codec, metadata=metadata, architecture=architecture)
    write_atomically(target, content)
    return len(content)


def _require_plain(names: Iterable[str], source: Path) -> None:
    """Refuse the state of a sibling, which no plain network takes."""
    for name in names:
        if "parametrizations" in name.split("."):
            raise ValueError(
                f'{source} holds "{name}", which belongs to a sibling: build the sibling again, load this into it, and '
                "pack what secateur.prune makes of it"
            )


def unpack(source: Path, target: Path, *, max_bytes: int = MAX_BYTES) -> int:
    """Write the tensors of a .cut file to a safetensors file; return its size in bytes."""
    _require_apart(source, target)
    with open_archive(source, max_bytes) as archive:
        # Here tied tensors are written one by one; the reader's limit counts them once.
        total = sum(record.size * record.dtype.itemsize for record in archive.records)
        if total > max_bytes:
            raise FormatError(f"unpacked it takes {total:,} bytes, more than max_bytes = {max_bytes:,} allows")
        for record in archive.records:
            _require_storable(record.name, record.dtype)
        metadata = dict(archive.metadata)
        if archive.architecture is not None and archive.architecture.is_named:
            metadata["network"] = archive.architecture.name
        # Tied tensors share memory, which the format refuses: each gets its own.
        tensors = {r.name: tensor if r.alias_of is None else tensor.clone() for r, tensor in archive.read_all()}
    content = safetensors.torch.save(tensors, metadata=metadata or None)
    write_atomically(target, content)
    return len(content)


def _require_storable(name: str, dtype: torch.dtype) -> None:
    """Refuse what the safetensors format has no place for."""
    if name == "__metadata__" or dtype is torch.complex128:
        what = f"a tensor of {dtype}" if dtype is torch.complex128 else "a tensor of that name"
        raise ValueError(f'"{name}": a safetensors file cannot hold {what}: read it with secateur.load_state')


def _require_apart(source: Path, target: Path) -> None:
    require_file(target)
    if source.resolve() == target.resolve():
        raise ValueError(f"{target} is the source itself: choose another target")


def compare(path: Path, originals: Mapping[str, Tensor] | None, *, max_bytes: int = MAX_BYTES) -> Comparison:
    """Decode every tensor of a file and compare each, bit by bit, with the original of its name, if there are any."""
    differences: list[str] = []
    elements = 0
    with open_archive(path, max_bytes) as archive:
        for record, tensor in archive.read_all():
            elements += record.size
            if originals is not None and not _same(tensor, originals.get(record.name)):
                differences.append(record.name)
        stored = {record.name for record in archive.records}
        size, count = archive.size, len(archive.records)
    differences += [name for name in originals or {} if name not in stored]
    return Comparison(str(path), size, count, elements, None if originals is None else tuple(differences))


def _same(tensor: Tensor, original: Tensor | None) -> bool:
    if original is None or (tensor.dtype, tensor.shape) != (original.dtype, original.shape):
        return False
    return bool((to_bits(tensor) == to_bits(original)).all()) if tensor.numel() else True
