"""The size of a network in bytes."""

from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.measure.evaluating import evaluating
from secateur.weights.tensors import tensors


def dense_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Return the bytes of `model`'s state dict without compression: no header, every zero stored, tied tensors once.

    Each tensor has its own dtype, or `dtype` if one is given and it holds floating point numbers. Parametrized and
    masked tensors count as their layers read them: a sibling has the size of its plain model.
    """

    def weigh(tensor: Tensor) -> int:
        stored_dtype = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.numel() * stored_dtype.itemsize

    with evaluating(model):
        return sum(weigh(tensor.read()) for tensor in tensors(model))


def file_bytes(path: str | PathLike[str]) -> int:
    """Return the size of a file in bytes."""
    return Path(path).stat().st_size
