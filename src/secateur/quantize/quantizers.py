"""Parametrizations that let a layer read one of few values: shared ones, or levels on a grid.

Each stands last in a tensor's chain, behind what prunes it, and leaves zeros zero and everything else non-zero. The
zero bin of `LearnedStep` behind a learned threshold is the one that moves: that is pruning, learned together with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from secateur.quantize.kmeans import Init, assign, cluster
from secateur.quantize.rate import SIDE_BITS, adaptive_bits, grid_bits, position_bits

_SMALLEST_HALF, _LARGEST_HALF = 2.0**-24, 65504.0
_ENOUGH_VALUES = 100_000  # to choose a first step by


class Quantizer(nn.Module, ABC):
    """Parametrization: a layer reads one of few values in place of each weight."""

    is_quantizer = True  # which `prune` asks for: it may not know this module

    @abstractmethod
    def forward(self, weight: Tensor) -> Tensor:
        """Return the quantised weight, with a gradient to the weight or to what it is quantised by."""

    @abstractmethod
    def frozen(self, weight: Tensor, half: bool) -> Tensor:
        """Return the quantised weight for good; `half` rounds centroids, steps and scales to float16 if they fit."""

    @abstractmethod
    def bits(self, weight: Tensor) -> Tensor:
        """Return the estimated bits of the coded tensor; its gradient is that of the rate."""


class SharedValues(Quantizer):
    """Weight sharing (Deep Compression): a layer reads centroids[assignment], and the centroids are trained.

    The gradient of a centroid is the sum over its cluster, ∂L/∂c_k = Σ_{i in k} ∂L/∂w_i. Assignments stay as k-means
    made them, and the raw weights are no longer read.
    """

    centroids: nn.Parameter
    assignment: Tensor

    def __init__(self, weight: Tensor, count: int, init: Init, seed: int, *, was_trained: bool) -> None:
        super().__init__()
        self.was_trained = was_trained  # whether the raw weight, frozen now, required a gradient
        kept = weight[weight != 0]
        centroids = cluster(kept, count, init, seed=seed) if len(kept) else weight.new_ones(count).double()
        index = torch.where(weight != 0, assign(weight, centroids) + 1, 0)  # 0 is the pruned weight
        self.centroids = nn.Parameter(centroids.to(weight.dtype))
        self.register_buffer("assignment", index.to(torch.uint8 if count < 256 else torch.int32))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the centroid of each weight's cluster, and zero where the weight was zero."""
        values = torch.cat([self.centroids.new_zeros(1), _never_zero(self.centroids)])
        # A flat gather of int32: its backward adds up each cluster.
        return values.index_select(0, self.assignment.flatten().int()).view(self.assignment.shape).to(weight.dtype)

    def frozen(self, weight: Tensor, half: bool) -> Tensor:
        """Return the centroids in their places."""
        centroids = _to_half(self.centroids) if half else self.centroids
        values = torch.cat([centroids.new_zeros(1), _never_zero(centroids)])
        return values[self.assignment.long()].to(weight.dtype)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of assignments and codebook, which no gradient can change."""
        counts = torch.zeros(len(self.centroids) + 1, dtype=torch.float64, device=self.assignment.device)
        flat = self.assignment.flatten().long()
        counts = counts.index_add(0, flat, torch.ones_like(flat).double())[1:]
        positions = position_bits(self.assignment != 0)
        return (positions + adaptive_bits(counts) + SIDE_BITS * (counts > 0).sum()).float()

    def extra_repr(self) -> str:
        """Show the number of centroids."""
        return f"centroids={len(self.centroids)}"


class LearnedStep(Quantizer):
    """A uniform quantiser with a learned step Δ: a layer reads Δ · level, and Δ and the weights are trained.

        level = sign(w) · clip(round(|w| / Δ), 1, largest)    where |w| ≥ cutoff, else 0
        ∂q/∂w = 1                                             straight through rounding, clipping and the zero bin
        ∂q/∂Δ = level − w/Δ    where |w| ≤ largest · Δ, else level

    The last is LSQ's (Esser et al. 2020). LSQ stops the gradient of clipped weights; with few levels many are, and they
    would never come back. Without `keep_survivors`, for biases, small values may round to zero. Stored is log Δ, so Δ
    stays positive and a step of Adam changes it by a share of itself; its gradient is multiplied by LSQ's
    1 / √(weights · largest), which matters to SGD, wherever it comes from: the loss or the rate.
    """

    log_step: nn.Parameter

    def __init__(self, weight: Tensor, largest: int, cutoff: float, *, keep_survivors: bool) -> None:
        super().__init__()
        self.largest, self.cutoff, self.keep_survivors = largest, cutoff, keep_survivors
        size = weight.detach().abs().to(torch.promote_types(weight.dtype, torch.float32))
        size = size[(size >= cutoff) & (size > 0)]
        step = _best_step(size, largest, keep_survivors) if len(size) else size.new_ones(())
        self.log_step = nn.Parameter(step.log())
        self.gradient_scale = 1 / math.sqrt(weight.numel() * largest)

    @property
    def step(self) -> Tensor:
        """Δ, as everything reads it."""
        fixed = self.log_step.detach()
        return (fixed + (self.log_step - fixed) * self.gradient_scale).exp()

    def forward(self, weight: Tensor) -> Tensor:
        """Return the nearest multiple of the step."""
        levels = self.levels(weight)
        out: Tensor = _Grid.apply(weight, self.step, levels, self.largest)  # type: ignore[no-untyped-call]  # torch's
        return out

    def levels(self, weight: Tensor) -> Tensor:
        """Return the whole numbers that the step is multiplied by, without gradient."""
        return _levels(weight.detach(), self.step.detach(), self.largest, self.cutoff, self.keep_survivors)

    def frozen(self, weight: Tensor, half: bool) -> Tensor:
        """Return the multiples of the step; those of a float16 up to the 8192nd are exact in float32."""
        return self.levels(weight) * (_to_half(self.step) if half else self.step)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the levels, with a gradient to the weights and to the step."""
        fixed = self.keep_survivors and self.cutoff == 0
        return SIDE_BITS + grid_bits(weight / self.step, self.levels(weight), self.largest, zeros_are_fixed=fixed)

    def extra_repr(self) -> str:
        """Show the step."""
        return f"step={self.step.item():.3g}, largest={self.largest}"


class IntegerGrid(Quantizer):
    """Symmetric integers: a layer reads scale · level with scale = max|w| / largest, of the tensor or of each channel.

    The scale follows the weights. The gradient passes straight through.
    """

    def __init__(self, largest: int, cutoff: float, axis: int | None) -> None:
        super().__init__()
        self.largest, self.cutoff, self.axis = largest, cutoff, axis

    def forward(self, weight: Tensor) -> Tensor:
        """Return the nearest multiple of the scale."""
        levels = self.levels(weight)
        out: Tensor = _Grid.apply(weight, self.scale(weight), levels, self.largest)  # type: ignore[no-untyped-call]  # torch's
        return out

    def scale(self, weight: Tensor) -> Tensor:
        """Return the distance of two levels, in a shape that broadcasts over the weight."""
        shared = [dim for dim in range(weight.dim()) if dim != self.axis]
        largest = weight.detach().abs().amax(shared, keepdim=True) if shared else weight.detach().abs()
        scale = (largest / self.largest).clamp(min=torch.finfo(weight.dtype).tiny)
        return torch.where(largest == 0, 1.0, scale)  # any scale does for a channel of zeros: one that fits float16

    def levels(self, weight: Tensor) -> Tensor:
        """Return the whole numbers that the scale is multiplied by, without gradient."""
        return _levels(weight.detach(), self.scale(weight), self.largest, self.cutoff, True)

    def frozen(self, weight: Tensor, half: bool) -> Tensor:
        """Return the multiples of the scale."""
        scale = self.scale(weight)
        return self.levels(weight) * (_to_half(scale) if half else scale)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the levels, with a gradient to the weights."""
        scale = self.scale(weight)
        levels = self.levels(weight)
        return SIDE_BITS * scale.numel() + grid_bits(
            weight / scale, levels, self.largest, zeros_are_fixed=self.cutoff == 0
        )

    def extra_repr(self) -> str:
        """Show the range and the axis of the scales."""
        return f"largest={self.largest}, axis={self.axis}"


class _Grid(torch.autograd.Function):
    """step · levels, with a gradient that passes straight to the weight, and LSQ's to the step."""

    @staticmethod
    def forward(ctx, weight, step, levels, largest):  # type: ignore[no-untyped-def]  # torch's protocol
        ctx.save_for_backward(weight, step, levels)
        ctx.largest = largest
        return (levels * step).to(weight.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch's protocol
        grad = grad.to_dense() if grad.is_sparse else grad  # sparse: of an Embedding with sparse=True
        if not ctx.needs_input_grad[1]:
            return grad, None, None, None
        weight, step, levels = ctx.saved_tensors
        ratio = weight / step
        slope = torch.where(ratio.abs() <= ctx.largest, levels - ratio, levels)
        return grad, (grad * slope).sum_to_size(step.shape), None, None


def _levels(weight: Tensor, step: Tensor, largest: int, cutoff: float, keep_survivors: bool) -> Tensor:
    ratio = weight / step
    levels = ratio.round().clamp(-largest, largest)
    if keep_survivors:
        levels = torch.where(levels == 0, weight.sign(), levels)  # the sign of zero is zero
    if cutoff > 0:
        levels = torch.where(weight.abs() < cutoff, 0.0, levels)
    return levels + 0.0  # −0 becomes 0


def _best_step(size: Tensor, largest: int, keep_survivors: bool) -> Tensor:
    """Return the step of least squared error among a hundred between max / (8 · largest) and max."""
    size = size[:: len(size) // _ENOUGH_VALUES + 1]
    candidates = size.max() / torch.logspace(0, math.log10(8 * largest), 100, dtype=size.dtype, device=size.device)
    errors = [(size - step * _levels(size, step, largest, 0.0, keep_survivors)).square().sum() for step in candidates]
    return candidates[int(torch.stack(errors).argmin())]


def _never_zero(values: Tensor) -> Tensor:
    """Lift a value that is exactly zero, or would be flushed to zero, to the smallest there is; gradients pass."""
    fixed = values.detach()
    smallest = torch.finfo(values.dtype).tiny
    lifted = torch.where(fixed.abs() < smallest, torch.copysign(torch.full_like(fixed, smallest), fixed), fixed)
    return lifted + (values - fixed)


def _to_half(values: Tensor) -> Tensor:
    """Round to float16, or leave all as they are where one would become zero or infinite."""
    size = values.abs()
    fits = bool(((size >= _SMALLEST_HALF) & (size <= _LARGEST_HALF)).all())
    return values.to(torch.float16).to(values.dtype) if fits else values
