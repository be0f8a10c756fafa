"""A mask that falls smoothly with the size of a weight, around a threshold that is set from outside (PDP)."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.functions.scored import ScoredFunction


class SoftMask(ScoredFunction):
    """A layer reads w · σ((w² − t²) / τ): the softmax of (w², t²) / τ says how much of a weight is left."""

    threshold: Tensor

    def __init__(self, weight: Tensor, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.register_buffer("threshold", weight.new_zeros(()))

    def forward(self, weight: Tensor) -> Tensor:
        """Return weight · mask; before there is a threshold, the weight."""
        if not self.threshold:
            return weight
        return weight * torch.sigmoid((weight.square() - self.threshold.square()) / self.temperature)

    def set_threshold(self, threshold: Tensor, weight: Tensor) -> None:
        """Set t, or to the largest weight if that is less: a layer without a weight would pass nothing on."""
        self.threshold.copy_(torch.minimum(threshold, weight.abs().max()))

    def scores(self, weight: Tensor) -> Tensor:
        """Return |w| − t."""
        return weight.abs() - self.threshold
