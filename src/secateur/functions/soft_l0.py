"""A sigmoid of the squared weight around a learned threshold, whose sum is a soft count of weights (LTP)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.functions.scored import ScoredFunction


class SoftCount(ScoredFunction):
    """A layer reads w · m with m = σ((w² − τ) / T), where τ = threshold · unit and T = temperature · Var|w|.

    `unit` is the mean square of the weights at the start, so that one learning rate serves layers of any scale.
    """

    unit: Tensor

    def __init__(self, weight: Tensor, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.threshold = nn.Parameter(weight.new_zeros(()))
        self.register_buffer("unit", weight.square().mean().clamp(min=torch.finfo(weight.dtype).tiny))

    def mask(self, weight: Tensor) -> Tensor:
        """Return m."""
        width = self.temperature * weight.detach().abs().var(correction=0) + torch.finfo(weight.dtype).tiny
        return torch.sigmoid((weight.square() - self.threshold * self.unit) / width)

    def forward(self, weight: Tensor) -> Tensor:
        """Return w · m; m counts as a constant in the gradient by w, which is next to infinite around τ otherwise."""
        return weight * self.mask(weight.detach())

    def penalty(self, weight: Tensor) -> Tensor:
        """Return Σ m, whose gradient reaches the threshold and the weights around it."""
        return self.mask(weight).sum()

    def after_step(self, weight: Tensor) -> None:
        """Keep τ at zero or above."""
        self.threshold.clamp_(min=0)

    def scores(self, weight: Tensor) -> Tensor:
        """Return |w| − √τ."""
        return weight.abs() - (self.threshold.detach() * self.unit).clamp(min=0).sqrt()
