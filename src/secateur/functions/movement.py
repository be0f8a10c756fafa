"""A mask by learned scores: a weight is read if the sigmoid of its score is above a bound (movement pruning)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.functions.mask import masked
from secateur.functions.scored import ScoredFunction


class MovementMask(ScoredFunction):
    """A layer reads w · 1[S > bound]; the gradient passes the step unchanged, so that ∂L/∂S = w · ∂L/∂(read weight).

    A score grows where the weight moves away from zero, and falls where it moves towards zero.
    """

    bound: Tensor  # for scores; −∞ reads every weight
    strength: Tensor  # of the penalty

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.zeros_like(weight))
        self.register_buffer("bound", weight.new_tensor(-torch.inf))
        self.register_buffer("strength", weight.new_zeros(()))

    def forward(self, weight: Tensor) -> Tensor:
        """Return weight · mask; only weights that are read have a gradient, but every score has one."""
        kept = (self.score.detach() > self.bound).to(weight.dtype)
        passed = weight.detach() * (self.score - self.score.detach())  # zero, with the gradient by the score
        return masked(weight, kept) + passed

    def penalty(self, weight: Tensor) -> Tensor:
        """Return strength · Σ σ(S)."""
        return self.strength * torch.sigmoid(self.score).sum()

    def scores(self, weight: Tensor) -> Tensor:
        """Return S − bound."""
        return self.score.detach() - self.bound.clamp(min=torch.finfo(weight.dtype).min / 2)
