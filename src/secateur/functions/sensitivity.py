"""How much the loss depends on a connection, without training it: what SNIP ranks weights by."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.functions.scored import ScoredFunction


class ConnectionSensitivity(ScoredFunction):
    """A layer reads weight · c, where c is 1; |Σ ∂L/∂c| over all batches so far is the score of a connection.

    With c = 1, ∂L/∂c = w · ∂L/∂w: the gradient of the stored weight says it all, if no step moves the weight.
    """

    slope: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("slope", torch.zeros_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight: every connection is there."""
        return weight

    def after_step(self, weight: Tensor) -> None:
        """Add up the gradient by c."""
        if weight.grad is not None:
            self.slope.addcmul_(weight, weight.grad)

    def scores(self, weight: Tensor) -> Tensor:
        """Return |Σ ∂L/∂c|."""
        return self.slope.abs()
