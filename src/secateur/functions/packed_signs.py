"""Signs with scales: a layer reads ±scale, the signs stay as they are, and the scales are trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from secateur.encode.formulas import ComputedTensor, Signs
from secateur.functions.computed import Computed, as_parameter


class PackedSigns(Computed):
    """A layer reads sign · scale, with one scale for the tensor or one for each row."""

    scale: nn.Parameter
    sign: Tensor

    def __init__(self, scale: Tensor, sign: Tensor) -> None:
        super().__init__()
        self.scale = as_parameter(scale)
        self.register_buffer("sign", sign.to(torch.int8))

    @classmethod
    def of(cls, tensor: ComputedTensor) -> Self:
        """Return the function with these scales and signs."""
        scale, sign = tensor.parts
        return cls(scale, sign)

    def small(self) -> ComputedTensor:
        """Return scales and signs."""
        return ComputedTensor(Signs(len(self.scale)), (self.scale, self.sign), self.sign.shape, self.scale.dtype)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the scales with their signs."""
        scale = self.scale if len(self.scale) == 1 else self.scale.view(-1, *(1,) * (self.sign.dim() - 1))
        return self.sign * scale

    def extra_repr(self) -> str:
        """Show the shape and the number of scales."""
        return f"shape={tuple(self.sign.shape)}, scales={len(self.scale)}"
