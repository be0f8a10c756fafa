"""How many bytes a network takes."""

from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from secateur.measure.effective import distinct_tensors
from secateur.measure.evaluating import evaluating


def dense_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Weigh the state dict of `model` as if nothing were compressed: no header, every zero stored, ties once.

    Each tensor weighs its own dtype, or `dtype` if one is given and it holds floating point numbers.
    Parametrized and masked tensors weigh as their layers read them: a sibling weighs what its model did.
    """

    def weigh(tensor: Tensor) -> int:
        stored_dtype = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.numel() * stored_dtype.itemsize

    with evaluating(model):
        return sum(weigh(tensor.read()) for tensor in distinct_tensors(model).values())


def file_bytes(path: str | PathLike[str]) -> int:
    """Weigh a file."""
    return Path(path).stat().st_size
