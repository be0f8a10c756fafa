"""A score for every weight: what functions that learn which weights to keep have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from secateur.weights.function import FunctionGroup, WeightFunction


class ScoredFunction(WeightFunction):
    """A weight function that scores weights: those with a score above zero are kept when training is over.

    Scores of different layers are comparable, so that a common bound instead of zero keeps any number of weights of a
    network. Its own parameters are trained at ρ times the weights' learning rate, without decay.
    """

    prunes = True
    allow_empty: bool = False
    chosen: Tensor | None = None  # which weights are kept, if a method decides that instead of the sign of the scores
    pressure: Tensor  # by which a method that goes to a ratio multiplies the penalty

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pressure", torch.ones(()))

    @abstractmethod
    def scores(self, weight: Tensor) -> Tensor:
        """Return the score of every weight, without a gradient."""

    def values(self, weight: Tensor) -> Tensor:
        """Return what the weights that are kept become: themselves."""
        return weight

    def settle(self, weight: Tensor) -> Tensor:
        """Return the weights that are kept, and exact zeros for the others."""
        with torch.no_grad():
            kept = self.scores(weight) > 0 if self.chosen is None else self.chosen
            if not kept.any() and not self.allow_empty:
                raise ValueError(
                    f"would lose all of its {weight.numel():,} weights, none has a score above zero: give the method a "
                    "ratio, or a smaller penalty"
                )
            return torch.where(kept, self.values(weight), 0.0)

    def groups(self, rho: float) -> list[FunctionGroup]:
        """Return the function's own parameters at ρ times the weights' learning rate, without decay."""
        own = list(self.parameters())
        return [FunctionGroup(own, rho, False)] if own else []
