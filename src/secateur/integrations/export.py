"""A .cut file in the formats that others read: ONNX, safetensors, and a state dict of torch."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path

import torch

from secateur.atomic import require_file, write_atomically
from secateur.encode import load_state, open_archive
from secateur.encode.container import MAX_BYTES
from secateur.encode.convert import unpack
from secateur.files import input_shape, load
from secateur.integrations.onnx import export_onnx

_SAMPLES = 4  # random inputs that an ONNX file is checked with
FORMATS = {
    ".onnx": "ONNX, checked against ONNX Runtime",
    ".safetensors": "safetensors",
    ".pt": "a state dict for torch.load(…, weights_only=True)",
}


def require_format(target: Path) -> None:
    """Raise a ValueError unless a file's name ends in one of `FORMATS`."""
    if target.suffix.lower() not in FORMATS:
        *some, last = FORMATS
        raise ValueError(f"{target} has to end in {', '.join(some)} or {last}, which says what is written")


def export(source: Path, target: Path, *, max_bytes: int = MAX_BYTES, trust: Collection[str] = ()) -> float | None:
    """Write the network in a .cut file to `target`, in the format that its name ends in, completely or not at all.

    For ONNX, return the largest difference between the outputs of ONNX Runtime and of torch. Only ONNX builds the
    network; `trust` names the modules that may be imported for one that is not ours.
    """
    require_format(target)
    if source.resolve() == require_file(target):
        raise ValueError(f"{target} is the source itself: choose another target")
    suffix = target.suffix.lower()
    if suffix == ".onnx":
        return _write_onnx(source, target, max_bytes, trust)
    if suffix == ".safetensors":
        unpack(source, target, max_bytes=max_bytes)
    else:
        content = io.BytesIO()
        torch.save(load_state(source, max_bytes=max_bytes), content)
        write_atomically(target, content.getvalue())
    return None


def _write_onnx(source: Path, target: Path, max_bytes: int, trust: Collection[str]) -> float:
    with open_archive(source, max_bytes) as archive:
        architecture, metadata = archive.architecture, archive.metadata
    if architecture is None:
        raise ValueError(
            f"{source} does not say which network it holds, and ONNX needs it: load it into a model of yours and call "
            "secateur.integrations.onnx.export_onnx(model, example, path)"
        )
    model = load(source, max_bytes=max_bytes, trust=trust)
    shape = input_shape(model, metadata, source)
    example = torch.randn(_SAMPLES, *shape, generator=torch.Generator().manual_seed(0))
    dtype = next(model.parameters()).dtype
    return export_onnx(model, example.to(dtype), target, any_batch=True)
