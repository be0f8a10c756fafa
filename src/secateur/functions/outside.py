"""Pruning layers of other packages as weight functions: their module makes of the weight what a layer reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from secateur.functions.scored import ScoredFunction


class OutsideFunction(ScoredFunction):
    """A layer reads `module(weight)`; masks, gradients and the term of the loss are those of the module.

    `score` computes the scores of weights from the module and the weight, `cost` the module's term of the loss. With
    `shrinks`, the module reads weights as sign(w) · score.
    """

    def __init__(
        self,
        module: nn.Module,
        score: Callable[[nn.Module, Tensor], Tensor],
        cost: Callable[[nn.Module], Tensor] | None = None,
        *,
        shrinks: bool = False,
    ) -> None:
        super().__init__()
        self.module, self._score, self._cost, self._shrinks = module, score, cost, shrinks

    def forward(self, weight: Tensor) -> Tensor:
        """Return what the module makes of the weight."""
        read: Tensor = self.module(weight)
        return read

    def scores(self, weight: Tensor) -> Tensor:
        """Return the score of every weight: above zero, the module keeps it."""
        with torch.no_grad():
            return self._score(self.module, weight).view_as(weight)

    def values(self, weight: Tensor) -> Tensor:
        """Return the weights as the module reads them; those that it would cut stay as they are."""
        scores = self.scores(weight)
        return torch.where(scores > 0, weight.sign() * scores, weight) if self._shrinks else weight

    def penalty(self, weight: Tensor) -> Tensor | None:
        """Return the module's term of the loss."""
        return None if self._cost is None else self._cost(self.module)
