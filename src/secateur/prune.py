"""Step 3, prune: cut the sibling at γ and give back a plain network with exact zeros."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateur.parametrization import Reading, attach, detach, readings
from secateur.sibling import places
from secateur.theta import theta, theta_with_norm
from secateur.threshold import LearnedThreshold, forget_read_ahead, learned_thresholds

# Where |∂Σ|θ|/∂t| per weight is below this, every weight is so far from the threshold that it cannot move any more.
_STUCK_SLOPE = 1e-12


class FixedMask(nn.Module):
    """Parametrization: a layer reads weight · mask, so what was cut stays cut whatever an optimizer does."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with its masked entries exactly zero."""
        if weight.dim() <= 2:
            return weight * self.mask
        # A product forgets that filters of one channel are in channels-last order, and with it the order of all that
        # follows: LeNet-5 would train at two thirds of its speed. A clone remembers.
        return weight.clone().mul_(self.mask)


def prune(
    sibling: nn.Module,
    cutoff: float = 1e-3,
    *,
    survivors: Literal["theta", "raw"] = "theta",
    allow_empty: bool = False,
) -> nn.Module:
    """Return a plain copy of the sibling's network in which every weight with |θ(w)| < `cutoff` is exactly zero.

    The paper's N_p keeps θ⁻¹(θ̄(θ(W; t); γ); t), that is the raw w where it survives: `survivors="raw"`. The network
    that was trained computes with θ(w), so by default the survivors keep that and the function is preserved.
    The sibling is left as it is. A model under `keep_zeros` is folded back to a plain one in the same way.
    """
    require_cutoff(cutoff)
    if survivors not in ("theta", "raw"):
        raise ValueError(f'survivors must be "theta" or "raw", got {survivors!r}')
    _refuse_others(sibling)
    with torch.inference_mode(False):  # where a copy would be of tensors that nobody may train
        plain = copy.deepcopy(sibling)
        detach(plain, LearnedThreshold, lambda reading: _cut(reading, cutoff, survivors, allow_empty))
        forget_read_ahead(plain)
        detach(plain, FixedMask, lambda reading: reading.chain())
        _warn_if_stuck(sibling)
    return plain


def require_cutoff(cutoff: float) -> None:
    """Raise a ValueError for a γ that nothing can be compared with."""
    if not (math.isfinite(cutoff) and cutoff >= 0):
        raise ValueError(f"cutoff must be ≥ 0 and finite, got {cutoff}")


def _refuse_others(sibling: nn.Module) -> None:
    """Refuse a network that is quantised, and one without thresholds or masks."""
    for reading in readings(sibling, nn.Module):
        if any(getattr(part, "is_quantizer", False) for part in reading.chain):  # of a step that comes after this one
            raise ValueError(f'"{reading.full_name}" is quantised: freeze(model) makes the network plain')
    if not any(True for kind in (LearnedThreshold, FixedMask) for _ in readings(sibling, kind)):
        raise ValueError(
            f"{type(sibling).__name__} is not a sibling: it has no thresholds; call build_sibling(model) and train it"
        )


def keep_zeros(model: nn.Module) -> nn.Module:
    """Hold every zero of the weights at zero while `model` is fine-tuned, in place; `prune` makes it plain again.

    Tensors without a zero are left alone, and those whose zeros are held already; so are biases and norms, whose zeros
    are chance.
    """
    everything = places(model)
    for tied in everything:
        for part in tied[0].chain or ():
            if isinstance(part, LearnedThreshold):
                raise ValueError(f'"{tied[0].full_name}" has a threshold, and no zeros yet: prune the sibling first')
    found = False
    for tied in everything:
        weight, chain = tied[0].parameter, tied[0].chain or ()
        if is_lazy(weight) or weight.dim() < 2 or weight.detach().all():
            continue
        found = True
        if not any(isinstance(part, FixedMask) for part in chain):
            # uint8: multiplying by it costs less than half of multiplying by a bool.
            mask = FixedMask((weight.detach() != 0).to(torch.uint8))
            for place in tied:
                attach(place.module, place.name, mask)
    if not found:
        raise ValueError(f"{type(model).__name__} has no zero weights to keep: prune it first")
    return model


def _cut(reading: Reading, cutoff: float, survivors: str, allow_empty: bool) -> Tensor:
    function = next(part for part in reading.chain if isinstance(part, LearnedThreshold))
    weight, threshold = reading.original, function.threshold
    if not torch.isfinite(threshold).all():
        raise ValueError(
            f'"{reading.full_name}": its threshold is {_range(threshold)}: training diverged, lower rho or lr'
        )
    mapped = theta(weight, threshold, function.alpha)
    if not torch.isfinite(mapped).all():
        raise ValueError(
            f'"{reading.full_name}" holds NaN or infinite weights: training diverged, lower the learning rate'
        )
    kept = mapped.abs() >= max(cutoff, torch.finfo(mapped.dtype).tiny)
    if not kept.any() and not allow_empty:
        raise ValueError(
            f'"{reading.full_name}" would lose all of its {weight.numel():,} weights (threshold {_range(threshold)}, '
            f"largest |θ| {mapped.abs().max().item():.2g} < cutoff {cutoff:g}): train with a smaller rho or lambda_t "
            "or for fewer epochs, or allow it: prune(…, allow_empty=True)"
        )
    return torch.where(kept, mapped if survivors == "theta" else weight, torch.zeros_like(weight))


def _warn_if_stuck(sibling: nn.Module) -> None:
    """Name thresholds that no longer get a gradient: their sparsity is an accident, not learned."""
    originals = {
        id(part): reading.original for reading in readings(sibling, LearnedThreshold) for part in reading.chain
    }
    for name, function in learned_thresholds(sibling).items():
        weight = originals[id(function)]
        threshold = function.threshold.detach().requires_grad_()
        with torch.enable_grad():
            norm = theta_with_norm(weight.detach(), threshold, function.alpha)[1]
        [slope] = torch.autograd.grad(norm, threshold)
        stuck = int((slope.abs() * slope.numel() < _STUCK_SLOPE * weight.numel()).sum())
        if stuck == slope.numel():
            warnings.warn(
                f'"{name}": no threshold gets a gradient any more, every weight is far from it '
                f"({_range(function.threshold)}); its sparsity was decided by overshooting: train with a smaller rho",
                stacklevel=3,
            )


def _range(threshold: Tensor) -> str:
    low, high = threshold.min().item(), threshold.max().item()
    return f"{low:.3g}" if low == high or low != low else f"{low:.3g} to {high:.3g}"
