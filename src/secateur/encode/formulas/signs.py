"""Signs with scales: ±scale, or 0, one scale for the whole tensor or for each of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from secateur.encode.formulas.formula import FLOATS, ComputedTensor, Formula, Part, require_float


@dataclass(frozen=True)
class Signs(Formula):
    """W[i, …] = sign[i, …] · scale[i], or · scale[0] if there is one `scales` for all; signs are −1, 0 and 1."""

    name: ClassVar[str] = "signs"
    scales: int

    def parts(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Return scales and signs."""
        rows, columns = require_float(dtype, shape, least=1)
        if self.scales not in (1, rows):
            raise ValueError(f"a matrix of {rows:,} × {columns:,} cannot have {self.scales:,} scales")
        return Part("scale", dtype, (self.scales,)), Part("sign", torch.int8, shape)

    def compute(self, parts: Sequence[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the scales with their signs."""
        scale, sign = parts
        if sign.min() < -1 or sign.max() > 1:
            raise ValueError("a sign is neither −1 nor 0 nor 1")
        if len(scale) > 1:
            scale = scale.view(-1, *(1,) * (len(shape) - 1))
        return torch.where(sign == 0, torch.zeros((), dtype=dtype), torch.where(sign < 0, -scale, scale))

    def working_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the memory of the signed scales and of what is compared."""
        return 12 * torch.Size(shape).numel()


_FEW = 4  # non-zeros of a row on average, below which scales would cost more than they save


def as_signs(tensor: Tensor) -> ComputedTensor | None:
    """Return a plain tensor as signs with a scale for each row, if it is that exactly and has different scales.

    With a single scale it has two levels, which codecs know how to write.
    """
    if tensor.dtype not in FLOATS or tensor.dim() < 2 or tensor.numel() < max(_FEW * len(tensor), 1):
        return None
    matrix = tensor.detach().reshape(len(tensor), -1)
    if not (_is_scaled(matrix[:_FEW]) and _is_scaled(matrix)):  # most tensors are seen through after a few rows
        return None
    scale = matrix.abs().amax(1)
    if len(scale.unique()) < 2 or int(torch.count_nonzero(matrix)) < _FEW * len(tensor):
        return None
    signs = matrix.sign().to(torch.int8).view(tensor.shape)
    return ComputedTensor(Signs(len(scale)), (scale, signs), tensor.shape, tensor.dtype)


def _is_scaled(matrix: Tensor) -> bool:
    """Return whether every row has one magnitude except zero, and no zero a sign."""
    size, is_zero = matrix.abs(), matrix == 0
    has_one = bool(((size == size.amax(1, keepdim=True)) | is_zero).all())
    return has_one and not bool((matrix.signbit() & is_zero).any())
