"""A threshold that follows from a budget: a layer reads exactly the weights that would survive the cut now.

The layer reads θ̄(w; t), and the gradients by w and by t are those of the paper's θ. What is trained is what is kept,
and a weight below t can come back. In the last part of a training the choice is fixed, and the weights that are kept
may take any value, below t too. `secateur.Pruner` sets t; formulas are at the head of `secateur.pruner.controller`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from secateur.functions.mask import masked
from secateur.functions.threshold import LearnedThreshold, learned_thresholds
from secateur.rate import plain_bits
from secateur.theta import hard_theta
from secateur.theta_autograd import alpha_of, hard_theta_with_slopes
from secateur.weights.function import FunctionGroup

# αt, the sharpness of θ in units of t. On LeNet-300-100 at 62× 4 and 8 did equally well on validation images (two seeds
# each); 20 was worse on the one seed that was tried.
SHARPNESS = 8.0


class SolvedThreshold(LearnedThreshold):
    """A layer reads the weights with |w| ≥ threshold = scale · unit · exp(relative), or those that are fixed.

    `unit` is the root mean square of the weights at the beginning, `relative` is learned for this layer or filter, and
    `scale` is the same in all layers: it is solved so that the network as a whole meets its budget.
    """

    cutoff = 0.0
    is_soft = False
    solved: Tensor  # what the threshold was set to: an optimizer that trains all parameters alike moves that
    unit: Tensor
    relative: Tensor
    moments: Tensor  # of the gradient by `relative`: its mean, its mean square, and the means of g and h
    gradient: Tensor  # ∂L₀/∂t, added up since the last update
    counts: Tensor  # steps so far, by `Pruner.step`, and updates so far
    start: Tensor  # ln(ratio) of the network that the ramp began with
    fixed: Tensor  # whether `mask`, not the threshold, says which weights are kept
    mask: Tensor  # uint8: multiplying by it costs less than half of multiplying by a bool
    calibration: Tensor  # bytes of the file as it was last written ÷ those that were estimated
    pressure: Tensor  # price of a bit of a value ÷ that of a bit of a place, since the places are fixed

    def __init__(self, weight: Tensor, shape: tuple[int, ...]) -> None:
        kind = torch.promote_types(weight.dtype, torch.float32)
        zeros = torch.zeros(shape, dtype=kind, device=weight.device)
        super().__init__(zeros, SHARPNESS)
        self.register_buffer("solved", zeros.clone())
        self.register_buffer("unit", _size_at_start(weight.detach().to(kind)))
        self.register_buffer("relative", zeros.clone())
        self.register_buffer("moments", torch.zeros(4, *shape, dtype=kind, device=weight.device))
        self.register_buffer("gradient", zeros.clone())
        self.register_buffer("start", torch.zeros((), dtype=torch.float64))
        self.register_buffer("fixed", torch.tensor(False))
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.uint8))
        self.register_buffer("calibration", torch.ones((), dtype=torch.float64))
        self.register_buffer("pressure", torch.ones((), dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
        self.is_fixed = False  # `fixed` without a look into a tensor

    @torch.no_grad()
    def fix(self, kept: Tensor) -> None:
        """Keep these weights for good, whatever values they take from here on."""
        self.mask.copy_(kept)
        self.fixed.fill_(True)
        self.is_fixed = True

    @torch.no_grad()
    def release(self, weight: Tensor) -> None:
        """Let the threshold decide again which weights are kept; those that were cut are zero from now on."""
        weight.mul_(self.mask)
        self.fixed.fill_(False)
        self.is_fixed = False

    def kept(self, weight: Tensor) -> Tensor:
        """Return which weights would be kept now."""
        return self.mask.bool() if self.is_fixed else weight.detach().abs() >= self.threshold.detach()

    def _load_from_state_dict(self, state_dict, prefix, *others):  # type: ignore[no-untyped-def]  # torch's signature
        super()._load_from_state_dict(state_dict, prefix, *others)
        self.is_fixed = bool(self.fixed)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weights with |w| ≥ threshold; the others are zero, and all of them have θ's gradient."""
        if self.is_fixed:
            out: Tensor = _Fixed.apply(weight, self.threshold, self.mask)  # type: ignore[no-untyped-call]  # torch's
            return out
        if not torch.is_grad_enabled() or torch.compiler.is_exporting():
            return hard_theta(weight, self.threshold)
        return hard_theta_with_slopes(weight, self.threshold, self.alpha)

    def penalty(self, weight: Tensor) -> None:
        """Return nothing: the multiplier of Σ|θ| follows from the budget, and acts on `relative` alone."""

    def settle(self, weight: Tensor) -> Tensor:
        """Return the weights that are kept, and exact zeros for the others."""
        self._refuse_divergence(weight)
        kept = torch.where(self.kept(weight), weight.detach(), 0.0)
        if not kept.any() and not self.allow_empty:
            raise ValueError(
                f"would lose all of its {weight.numel():,} weights: the threshold was not set since they shrank; call "
                "Pruner.step() after every step of the optimizer"
            )
        return kept

    @property
    def current_alpha(self) -> float:
        """α, which follows the threshold."""
        return alpha_of(self.threshold, self.alpha).item()

    def mean_gradient(self, steps: int) -> Tensor:
        """Return the mean ∂L₀/∂t since the last update; one that overflowed under a loss scaler counts as 0."""
        return (self.gradient / steps).nan_to_num(0.0, 0.0, 0.0)

    def groups(self, rho: float) -> list[FunctionGroup]:
        """Return the threshold at a learning rate of zero: its gradient is wanted, and `Pruner` sets it."""
        return [FunctionGroup([self.threshold], 0.0, False)]

    def after_step(self, weight: Tensor) -> None:
        """Remember the gradient by the threshold until the next update, and undo what the optimizer did to it."""
        threshold = self.threshold
        if threshold.grad is not None:
            self.gradient.add_(threshold.grad)  # `+=` would assign the buffer anew, which takes as long as all the rest
        threshold.copy_(self.solved)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the weights that would be kept, as they are; no gradient can change these."""
        with torch.no_grad():
            return plain_bits(torch.where(self.kept(weight), weight, 0.0))

    def is_stuck(self, weight: Tensor) -> bool:
        """Return False: the threshold is where the budget wants it."""
        return False

    def extra_repr(self) -> str:
        """Show the sharpness and the number of thresholds."""
        return f"sharpness={self.alpha:g}, thresholds={self.threshold.numel()}"


def _size_at_start(weight: Tensor) -> Tensor:
    """Return the root mean square of the weights; of a layer that starts at zero, that of torch's usual start."""
    size = weight.square().mean().sqrt()
    inputs = max(weight[:1].numel(), 1)
    return torch.where(size > 0, size, 1 / math.sqrt(3 * inputs))


class _Fixed(torch.autograd.Function):
    """weight · mask, with a gradient of zero by the threshold: distributed training stops where there is none."""

    @staticmethod
    def forward(ctx, weight, threshold, mask):  # type: ignore[no-untyped-def]  # torch's protocol
        ctx.save_for_backward(threshold, mask)
        return masked(weight, mask)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch's protocol
        threshold, mask = ctx.saved_tensors
        grad = grad.to_dense() if grad.is_sparse else grad  # sparse: of an Embedding with sparse=True
        return grad * mask, torch.zeros_like(threshold), None


def solved_thresholds(model: torch.nn.Module) -> dict[str, SolvedThreshold]:
    """Return the solved thresholds of a network by tensor name, those of tied tensors once, under their first name."""
    return {name: each for name, each in learned_thresholds(model).items() if isinstance(each, SolvedThreshold)}
