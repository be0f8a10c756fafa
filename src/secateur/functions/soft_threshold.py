"""Soft thresholding with a learned threshold: every weight is drawn to zero by as much (STR)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.functions.scored import ScoredFunction


class SoftThreshold(ScoredFunction):
    """A layer reads sign(w) · relu(|w| − σ(s)), with one s for the layer."""

    def __init__(self, weight: Tensor, start: float) -> None:
        super().__init__()
        self.s = nn.Parameter(weight.new_full((), start))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weights shrunk by the threshold; those below it are zero."""
        return torch.sign(weight) * torch.relu(weight.abs() - torch.sigmoid(self.s))

    def penalty(self, weight: Tensor) -> Tensor:
        """Return s²: the weight decay that raises a negative s, and with it the threshold."""
        return self.s.square()

    def scores(self, weight: Tensor) -> Tensor:
        """Return |w| − σ(s)."""
        return weight.abs() - torch.sigmoid(self.s.detach())

    def values(self, weight: Tensor) -> Tensor:
        """Return what the layer reads, so that a cut where the threshold is changes nothing; below it, the weight."""
        read = self.forward(weight)
        return torch.where(read == 0, weight, read)
