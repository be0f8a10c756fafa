"""Hard thresholds, one for every row of a weight, with a gradient from a surrogate of the step (DST)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secateur.functions.scored import ScoredFunction


class RowThreshold(ScoredFunction):
    """A layer reads w · 1[|w| > t], with one t for each of its filters (output units)."""

    def __init__(self, weight: Tensor, shape: tuple[int, ...], least: float) -> None:
        super().__init__()
        self.least = least
        self.threshold = nn.Parameter(weight.new_zeros(shape))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weights above their thresholds; the others have a gradient too, through the step."""
        step: Tensor = _Step.apply(weight.abs() - self.threshold)  # type: ignore[no-untyped-call]  # torch's
        return weight * step

    def penalty(self, weight: Tensor) -> Tensor:
        """Return Σ exp(−t), which raises thresholds, the less the higher they are."""
        return torch.exp(-self.threshold).sum()

    def after_step(self, weight: Tensor) -> None:
        """Set the thresholds of a layer to zero that reads less than the least share of its weights."""
        if (weight.abs() > self.threshold).sum() < self.least * weight.numel():
            self.threshold.zero_()

    def scores(self, weight: Tensor) -> Tensor:
        """Return |w| − t."""
        return weight.abs() - self.threshold.detach()


class _Step(torch.autograd.Function):
    """1[x > 0]; backward 2 − 4|x| for |x| ≤ 0.4, 0.4 up to |x| = 1, and 0 beyond."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        size = ctx.saved_tensors[0].abs()
        slope = torch.where(size <= 0.4, 2 - 4 * size, torch.where(size <= 1, 0.4, 0.0))
        return grad * slope
