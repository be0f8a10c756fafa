"""A mask whose zeros are trained on: a weight that was cut by mistake grows back (Dynamic Network Surgery)."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.functions.mask import FixedMask, masked

_BELOW, _ABOVE = 0.9, 1.1  # of a threshold: between them a weight stays in or out, as it is


class SplicedMask(FixedMask):
    """A layer reads weight · mask; the gradient by what it reads goes to every weight, also to those it does not read.

    `mean` and `deviation` are those of |w| when surgery begins; the threshold is mean + c · deviation.
    """

    mean: Tensor
    deviation: Tensor
    threshold: Tensor

    def __init__(self, weight: Tensor) -> None:
        size = weight.detach().abs()
        super().__init__(torch.ones_like(size, dtype=torch.uint8))
        self.register_buffer("mean", size.mean())
        self.register_buffer("deviation", size.std(correction=0).clamp(min=torch.finfo(size.dtype).tiny))
        self.register_buffer("threshold", torch.zeros_like(self.mean))

    def forward(self, weight: Tensor) -> Tensor:
        """Return weight · mask, with the gradient of the weight itself."""
        return weight + (masked(weight, self.mask) - weight).detach()

    def deviations(self, weight: Tensor) -> Tensor:
        """Return, for every weight, the c for which it is at the threshold."""
        return (weight.abs() - self.mean) / self.deviation

    def set_threshold(self, c: Tensor, weight: Tensor) -> None:
        """Set the threshold to mean + c · deviation, or lower, so that the largest weight is always read."""
        wanted = (self.mean + c * self.deviation).clamp(min=0)
        self.threshold.copy_(torch.minimum(wanted, _BELOW * weight.abs().max()))

    def update(self, weight: Tensor) -> None:
        """Cut weights below 0.9 thresholds, splice those above 1.1 thresholds; leave the others as they are."""
        size = weight.abs()
        self.mask.masked_fill_(size < _BELOW * self.threshold, 0)
        self.mask.masked_fill_(size > _ABOVE * self.threshold, 1)
