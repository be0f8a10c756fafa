"""A gate for every weight, σ(β·s), which becomes a step as β grows (continuous sparsification)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.functions.scored import ScoredFunction


class SmoothGate(ScoredFunction):
    """A layer reads w · σ(β·s) ÷ σ(s₀): at the start, where s = s₀ and β = 1, that is w."""

    beta: Tensor

    def __init__(self, weight: Tensor, start: float) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full_like(weight, start))
        self.register_buffer("beta", weight.new_ones(()))
        self.scale = 1 / torch.sigmoid(torch.tensor(start)).item()

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight times its gate."""
        return weight * (torch.sigmoid(self.beta * self.gate) * self.scale)

    def penalty(self, weight: Tensor) -> Tensor:
        """Return Σ σ(β·s), a smooth count of the weights that are kept."""
        return torch.sigmoid(self.beta * self.gate).sum()

    def scores(self, weight: Tensor) -> Tensor:
        """Return s."""
        return self.gate.detach()

    def values(self, weight: Tensor) -> Tensor:
        """Return what an open gate reads."""
        return weight * self.scale
