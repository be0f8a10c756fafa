"""Rounding to a grid: levels, and the gradient of step · level."""

from __future__ import annotations

import torch
from torch import Tensor


class Grid(torch.autograd.Function):
    """step · levels, with a gradient that passes straight to the weight, and LSQ's to the step."""

    @staticmethod
    def forward(ctx, weight, step, levels, largest):  # type: ignore[no-untyped-def]  # torch's protocol
        """Return step · levels in the weight's dtype."""
        ctx.save_for_backward(weight, step, levels)
        ctx.largest = largest
        return (levels * step).to(weight.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch's protocol
        """Return the gradients by the weight and by the step."""
        grad = grad.to_dense() if grad.is_sparse else grad  # sparse: of an Embedding with sparse=True
        if not ctx.needs_input_grad[1]:
            return grad, None, None, None
        weight, step, levels = ctx.saved_tensors
        ratio = weight / step
        slope = torch.where(ratio.abs() <= ctx.largest, levels - ratio, levels)
        return grad, (grad * slope).sum_to_size(step.shape), None, None


def round_to_levels(weight: Tensor, step: Tensor, largest: int, cutoff: float, keep_survivors: bool) -> Tensor:
    """Return the nearest whole multiples of `step`, up to ±`largest`; zero where |weight| < `cutoff`.

    With `keep_survivors` no other weight becomes zero: the smallest go to level ±1.
    """
    ratio = weight / step
    levels = ratio.round().clamp(-largest, largest)
    if keep_survivors:
        levels = torch.where(levels == 0, weight.sign(), levels)  # the sign of zero is zero
    if cutoff > 0:
        levels = torch.where(weight.abs() < cutoff, 0.0, levels)
    return levels + 0.0  # −0 becomes 0
