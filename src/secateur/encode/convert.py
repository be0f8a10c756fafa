"""From a safetensors file to a .cut file and back, and whether the two are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import data, models
from secateur.atomic import require_file, write_atomically
from secateur.encode.bounds import FormatError
from secateur.encode.container import MAX_BYTES, Architecture, open_archive, to_bytes
from secateur.encode.files import load, warn_of_negative_zeros
from secateur.encode.levels import to_bits
from secateur.encode.records import layout_of
from secateur.measure import error_rate


@dataclass(frozen=True)
class Verification:
    """What a check of a file found: how it differs from its original, and how often the network is wrong."""

    path: str
    bytes: int
    tensors: int
    elements: int
    differences: tuple[str, ...] | None  # None: there was nothing to compare with
    error: float | None = None
    original_error: float | None = None
    test_images: int = 0

    @property
    def is_equal(self) -> bool:
        """Tell whether nothing differs from the original, as far as there is one."""
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


def pack(source: Path, target: Path, *, codec: str = "smallest") -> int:
    """Write the tensors of a safetensors file to a .cut file, without loss; return its size in bytes.

    Metadata goes along; a network of ours that it names becomes the file's architecture.
    """
    _require_apart(source, target)
    tensors, metadata = read_safetensors(source)
    warn_of_negative_zeros(tensors)
    architecture = None
    if metadata.get("network") in models.MODELS:
        architecture = Architecture(metadata.pop("network"))
        # In the network's own order, in which a name resembles the one before.
        order = [name for name, _, _ in layout_of(architecture.name) or () if name in tensors]
        tensors = {name: tensors[name] for name in dict.fromkeys([*order, *tensors])}
    content = to_bytes(tensors, codec=codec, metadata=metadata, architecture=architecture)
    write_atomically(target, content)
    return len(content)


def unpack(source: Path, target: Path, *, max_bytes: int = MAX_BYTES) -> int:
    """Write the tensors of a .cut file to a safetensors file; return its size in bytes."""
    _require_apart(source, target)
    with open_archive(source, max_bytes) as archive:
        # Here tied tensors are written one by one, which the reader does not reckon with.
        total = sum(record.size * record.dtype.itemsize for record in archive.records)
        if total > max_bytes:
            raise FormatError(f"unpacked it takes {total:,} bytes, more than max_bytes = {max_bytes:,} allows")
        for record in archive.records:
            _require_storable(record.name, record.dtype)
        metadata = dict(archive.metadata)
        if archive.architecture is not None and archive.architecture.is_ours:
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


def verify(
    path: Path,
    *,
    against: Path | None = None,
    data_set: str | None = None,
    data_root: Path | None = None,
    max_bytes: int = MAX_BYTES,
) -> Verification:
    """Decode every tensor of a file; compare each, bit by bit, with the original; count errors on test images."""
    originals, _ = read_safetensors(against) if against is not None else ({}, {})
    differences: list[str] = []
    elements = 0
    with open_archive(path, max_bytes) as archive:
        for record, tensor in archive.read_all():
            elements += record.size
            if against is not None and not _same(tensor, originals.get(record.name)):
                differences.append(record.name)
        stored = {record.name for record in archive.records}
        size, count = archive.size, len(archive.records)
    differences += [name for name in originals if name not in stored]
    found = Verification(str(path), size, count, elements, None if against is None else tuple(differences))
    if data_set is None:
        return found
    return _with_errors(found, path, originals, data_set, data_root, max_bytes)


def _with_errors(
    found: Verification,
    path: Path,
    originals: dict[str, Tensor],
    data_set: str,
    data_root: Path | None,
    max_bytes: int,
) -> Verification:
    scaling, _ = read_inputs(path)
    model = load(path, max_bytes=max_bytes).float()  # like the images
    images = data.load(data_set, "test", data_root)
    wanted = tuple(getattr(model, "input_shape", ()))
    if wanted != tuple(images.images.shape[1:]):
        raise ValueError(f"{path} takes images of shape {wanted}, {data_set} has {tuple(images.images.shape[1:])}")
    inputs = scaling(images.images)
    error = error_rate(model, inputs, images.labels)
    original = _error_with(model, originals, inputs, images.labels) if _fits(originals, model) else None
    return replace(found, error=error, original_error=original, test_images=len(images.labels))


def read_inputs(path: Path) -> tuple[data.Scaling, str]:
    """Return the scaling that the inputs of a file's network need, and the name of its data set."""
    with open_archive(path) as archive:
        metadata = archive.metadata
    try:
        return data.Scaling(float(metadata["mean"]), float(metadata["std"])), metadata["data"]
    except (KeyError, ValueError):
        raise ValueError(f"{path} does not say how its inputs are scaled: pack the model of a run") from None


def _fits(state: dict[str, Tensor], model: nn.Module) -> bool:
    """Tell whether a model can hold these tensors; what differs is reported already."""
    return {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in model.state_dict().items()}


def _error_with(model: nn.Module, state: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> float:
    model.load_state_dict(state)
    return error_rate(model, inputs, labels)


def _same(tensor: Tensor, original: Tensor | None) -> bool:
    if original is None or (tensor.dtype, tensor.shape) != (original.dtype, original.shape):
        return False
    return bool((to_bits(tensor) == to_bits(original)).all()) if tensor.numel() else True
