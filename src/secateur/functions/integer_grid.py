"""A grid of integers: a layer reads multiples of a scale that follows the largest weight."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.functions.grid import Grid, round_to_levels
from secateur.functions.quantizer import Quantizer
from secateur.rate import SIDE_BITS, grid_bits


class IntegerGrid(Quantizer):
    """Symmetric integers: a layer reads scale · level with scale = max|w| / largest, of the tensor or of each channel.

    The scale follows the weights. The gradient passes straight through.
    """

    def __init__(self, largest: int, cutoff: float, axis: int | None) -> None:
        super().__init__()
        self.largest, self.cutoff, self.axis = largest, cutoff, axis

    def forward(self, weight: Tensor) -> Tensor:
        """Return the nearest multiple of the scale."""
        levels = self.levels(weight)
        out: Tensor = Grid.apply(weight, self.scale(weight), levels, self.largest)  # type: ignore[no-untyped-call]  # torch's
        return out

    def scale(self, weight: Tensor) -> Tensor:
        """Return the distance of two levels, in a shape that broadcasts over the weight."""
        shared = [dim for dim in range(weight.dim()) if dim != self.axis]
        largest = weight.detach().abs().amax(shared, keepdim=True) if shared else weight.detach().abs()
        scale = (largest / self.largest).clamp(min=torch.finfo(weight.dtype).tiny)
        return torch.where(largest == 0, 1.0, scale)  # a channel of zeros may have any scale that fits float16

    def levels(self, weight: Tensor) -> Tensor:
        """Return the whole numbers that the scale is multiplied by, without gradient."""
        return round_to_levels(weight.detach(), self.scale(weight), self.largest, self.cutoff, True)

    def few_values(self, weight: Tensor) -> Tensor:
        """Return the multiples of the scale."""
        return self.levels(weight) * self.side(self.scale(weight))

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the levels, with a gradient to the weights."""
        scale = self.scale(weight)
        levels = self.levels(weight)
        return SIDE_BITS * scale.numel() + grid_bits(
            weight / scale, levels, self.largest, zeros_are_fixed=self.cutoff == 0
        )

    def extra_repr(self) -> str:
        """Show the range and the axis of the scales."""
        return f"largest={self.largest}, axis={self.axis}"
