"""A learned threshold: a layer reads θ(weight; threshold), the sibling network of the paper."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secateur.rate import plain_bits
from secateur.theta_autograd import is_current, project_, theta, theta_with_norm
from secateur.weights.function import FunctionGroup, WeightFunction
from secateur.weights.tensors import tensors

# Where |∂Σ|θ|/∂t| per weight is below this, every weight is so far from the threshold that it cannot move any more.
_STUCK_SLOPE = 1e-12
# A threshold whose penalty has a gradient this many times the task's does not follow the task. With the paper's
# settings the largest layers of the LeNets come to about a thousand, small ones to less than a hundred: what makes
# thresholds useless is that nearly all of them are drowned, and so end alike.
_DROWNED, _NEARLY_ALL = 100, 0.9


class LearnedThreshold(WeightFunction):
    """A layer reads θ(weight; threshold) wherever it reads its weight; the threshold is trained like any parameter.

    `cutoff`, `survivors` and `allow_empty` say what `settle` returns; `secateur.prune` sets them.
    """

    prunes = True
    is_soft: bool = True  # whether weights below the threshold are read as something else than zero
    threshold: nn.Parameter
    alpha: float
    cutoff: float = 1e-3
    survivors: Literal["theta", "raw"] = "theta"
    allow_empty: bool = False
    # Σ|θ| of the last forward, for the penalty of the same step, and the threshold that it was computed with.
    _left: tuple[Tensor, Tensor] | None = None
    penalties: int = 0  # how often the penalty was computed
    # The sizes of the penalty's and of the task's gradient by the threshold, added up wherever they were compared.
    _compared: tuple[float, float] = (0.0, 0.0)

    def __init__(self, threshold: Tensor, alpha: float) -> None:
        super().__init__()
        self.threshold, self.alpha = nn.Parameter(threshold), alpha

    def forward(self, weight: Tensor) -> Tensor:
        """Return θ(weight; threshold), and keep its norm for the penalty while gradients are recorded."""
        if torch.compiler.is_exporting():
            return theta(weight, self.threshold, self.alpha)
        if not torch.is_grad_enabled():
            self._left = None  # as in reentrant checkpointing, where the norm kept is that of an earlier step
            return theta(weight, self.threshold, self.alpha)
        threshold = self.threshold
        mapped, norm = theta_with_norm(weight, threshold, self.alpha, project=True)
        self._left = norm, threshold
        return mapped

    def penalty(self, weight: Tensor) -> Tensor | None:
        """Return Σ|θ|, whose gradient reaches the threshold alone: that of the last forward if it is still valid.

        A norm serves once. Each tensor counts once, however often the forward has read it.
        """
        left, self._left = self._left, None
        if left is not None and is_current(*left, self.threshold):
            return left[0]
        # Of a copy: a compiled forward that follows projects the stored threshold, which would count as a change.
        return theta_with_norm(weight.detach(), self.threshold.clone(), self.alpha)[1]

    def compare_gradients(self, weight: Tensor, lambda_t: float) -> None:
        """Compare the gradients of the penalty and of the task by the threshold in the backward that follows."""
        slope = lambda_t * self.norm_slope(weight)

        def compare(grad: Tensor) -> None:
            handle.remove()
            penalty, task = self._compared
            self._compared = penalty + slope.norm().item(), task + (grad - slope).norm().item()

        handle = self.threshold.register_hook(compare)

    @property
    def penalty_to_task(self) -> float:
        """How many times as large as the task's gradient by the threshold the penalty's was; NaN if not compared."""
        penalty, task = self._compared
        return penalty / task if task else math.nan

    def norm_slope(self, weight: Tensor) -> Tensor:
        """Return ∂Σ|θ|/∂t for the given weights."""
        threshold = self.threshold.detach().clone().requires_grad_()
        with torch.enable_grad():
            norm = theta_with_norm(weight.detach(), threshold, self.current_alpha)[1]
        [slope] = torch.autograd.grad(norm, threshold)
        return slope

    @property
    def current_alpha(self) -> float:
        """α, which does not change here."""
        return self.alpha

    def settle(self, weight: Tensor) -> Tensor:
        """Return the weights with |θ| ≥ `cutoff`, as θ or at their raw values, and exact zeros for the others."""
        self._refuse_divergence(weight)
        threshold = self.threshold.detach()
        with torch.no_grad():
            mapped = theta(weight, threshold, self.alpha)
        kept = mapped.abs() >= max(self.cutoff, torch.finfo(mapped.dtype).tiny)
        if not kept.any() and not self.allow_empty:
            raise ValueError(
                f"would lose all of its {weight.numel():,} weights (threshold {_range(threshold)}, largest |θ| "
                f"{mapped.abs().max().item():.2g} < cutoff {self.cutoff:g}): train with a smaller rho"
                f"{self._lost_rho()}, lambda_t or rate term or for fewer epochs, or allow it: "
                "prune(…, allow_empty=True)"
            )
        return torch.where(kept, mapped if self.survivors == "theta" else weight, torch.zeros_like(weight))

    def _refuse_divergence(self, weight: Tensor) -> None:
        if not torch.isfinite(self.threshold).all():
            raise ValueError(f"has the threshold {_range(self.threshold)}: training diverged, lower rho or lr")
        if not torch.isfinite(weight).all():
            raise ValueError("holds NaN or infinite weights: training diverged, lower the learning rate")

    def _lost_rho(self) -> str:
        """Remind of the groups without which thresholds train at the weights' own learning rate, unless they exist."""
        if self.optimizer_groups is not None:
            return ""
        return " (it needs an optimizer with the groups of secateur.parameter_groups)"

    def groups(self, rho: float) -> list[FunctionGroup]:
        """Return the threshold at ρ times the weights' learning rate, without decay."""
        if type(self.threshold) is not nn.Parameter:
            # A sharded threshold (DTensor) is another object during forward, so the stored one is not projected there.
            self.threshold.register_post_accumulate_grad_hook(project_)
        return [FunctionGroup([self.threshold], rho, False)]

    def after_step(self, weight: Tensor) -> None:
        """Set stored thresholds below zero to zero, as every reader reads them; a forward in training does the same."""
        project_(self.threshold)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the weights that would be kept, as they are; no gradient can change these."""
        with torch.no_grad():
            return plain_bits(theta(weight, self.threshold, self.alpha), self.cutoff)

    def is_stuck(self, weight: Tensor) -> bool:
        """Return whether no threshold gets a gradient any more, because every weight is too far from it."""
        slope = self.norm_slope(weight)
        return bool((slope.abs() * slope.numel() < _STUCK_SLOPE * weight.numel()).all())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_left": None}  # part of a graph that no copy belongs to

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # torch's signature
        """Move with the model, but stay in float32 when it goes to half precision: steps of t are tiny."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            half = moved.dtype in (torch.bfloat16, torch.float16)
            return tensor.to(moved.device, torch.float32) if half else moved

        return super()._apply(at_least_float32, recurse)  # type: ignore[no-untyped-call]  # torch's

    def extra_repr(self) -> str:
        """Show α and the number of thresholds."""
        return f"alpha={self.alpha:g}, thresholds={self.threshold.numel()}"


def learned_thresholds(sibling: nn.Module) -> dict[str, LearnedThreshold]:
    """Return the thresholds of a sibling by tensor name, those of tied tensors once, under their first name."""
    found: dict[str, LearnedThreshold] = {}
    for tensor in tensors(sibling):
        function = tensor.function(LearnedThreshold)
        if function is not None and all(function is not known for known in found.values()):
            found[tensor.name] = function
    return found


def warn_of_stuck_thresholds(sibling: nn.Module, stacklevel: int) -> None:
    """Name the tensors whose thresholds get no gradient any more: their sparsity was not learned."""
    for tensor in tensors(sibling):
        function = tensor.function(LearnedThreshold)
        if function is not None and function is tensor.functions[0] and function.is_stuck(tensor.stored):
            warnings.warn(
                f'"{tensor.name}": no threshold gets a gradient any more, every weight is far from it '
                f"({_range(function.threshold)}); its sparsity was decided by overshooting: train with a smaller rho"
                f"{function._lost_rho()}",
                stacklevel=stacklevel + 1,
            )


def warn_of_soft_thresholds(sibling: nn.Module, cutoff: float, stacklevel: int) -> None:
    """Name the tensors whose weights are mostly below their threshold and mostly kept all the same: θ is too soft.

    At |w| = t/2 θ is about t·exp(−αt/2), and that is below γ for α > 2·ln(t/γ)/t.
    """
    for tensor in tensors(sibling) if cutoff else ():  # without a cut-off nothing is to be cut
        function = tensor.function(LearnedThreshold)
        if function is None or function is not tensor.functions[0] or not function.is_soft:
            continue
        weight, threshold = tensor.stored.detach(), function.threshold.detach()
        below = weight.abs() < threshold
        cut = theta(weight, threshold, function.alpha).abs() < cutoff
        if below.sum() > weight.numel() / 2 and (cut & below).sum() < below.sum() / 4:
            middle = threshold.mean().item()
            needed = 2 * math.log(max(middle / cutoff, math.e)) / middle
            warnings.warn(
                f'"{tensor.name}": {int(below.sum())} of {weight.numel()} weights are below the threshold '
                f"({_range(threshold)}), but only {int((cut & below).sum())} of them are cut: θ is too soft for "
                f"weights of this size; an alpha of about {needed:.2g} would cut them, or a budget (secateur.Pruner)",
                stacklevel=stacklevel + 1,
            )


def warn_of_drowned_task(sibling: nn.Module, stacklevel: int) -> None:
    """Say so if nearly all thresholds followed the penalty alone, because the task's gradient was next to nothing."""
    ratios = {name: function.penalty_to_task for name, function in learned_thresholds(sibling).items()}
    drowned = {name: ratio for name, ratio in ratios.items() if ratio > _DROWNED}
    if drowned and len(drowned) >= _NEARLY_ALL * len(ratios):
        middle = sorted(drowned.values())[len(drowned) // 2]
        warnings.warn(
            f"the penalty's gradient was about {middle:,.0f} times the task's for {len(drowned)} of {len(ratios)} "
            f'thresholds ("{next(iter(drowned))}" is the first): they followed lambda_t instead of the loss, all '
            "alike; use a lambda_t smaller by that much, or a budget (secateur.Pruner)",
            stacklevel=stacklevel + 1,
        )


def _range(threshold: Tensor) -> str:
    low, high = threshold.min().item(), threshold.max().item()
    return f"{low:.3g}" if low == high or low != low else f"{low:.3g} to {high:.3g}"
