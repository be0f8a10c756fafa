"""The state of ADMM for a weight: the sparse point that it is drawn to, and the scaled dual variable."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.functions.scored import ScoredFunction


class AugmentedLagrangian(ScoredFunction):
    """A layer reads its weight; a penalty draws it to Z − U, where Z is sparse and U adds up what is missing."""

    sparse: Tensor  # Z
    dual: Tensor  # U
    rho: Tensor

    def __init__(self, weight: Tensor, rho: float) -> None:
        super().__init__()
        self.register_buffer("sparse", weight.detach().clone())
        self.register_buffer("dual", torch.zeros_like(weight))
        self.register_buffer("rho", torch.tensor(rho))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight."""
        return weight

    def penalty(self, weight: Tensor) -> Tensor:
        """Return ρ/2 · ‖W − Z + U‖²."""
        return 0.5 * self.rho * (weight - (self.sparse - self.dual)).square().sum()

    def point(self, weight: Tensor) -> Tensor:
        """Return W + U, which is projected."""
        return weight + self.dual

    def project(self, weight: Tensor, kept: Tensor) -> None:
        """Set Z to the projection of W + U on these weights."""
        self.sparse.copy_(torch.where(kept, self.point(weight), 0.0))

    def update_dual(self, weight: Tensor) -> None:
        """Add W − Z to U."""
        self.dual.add_(weight - self.sparse)

    def set_rho(self, rho: float) -> None:
        """Change ρ; the dual variable, of which U is 1/ρ, stays what it is."""
        self.dual.mul_(self.rho / rho)
        self.rho.fill_(rho)

    def scores(self, weight: Tensor) -> Tensor:
        """Return |w|: the final cut is a projection too."""
        return weight.abs()
