"""L = L₀ + L_wd + L_t: what the paper adds to the loss of a task, and which parameter gets which learning rate."""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from secateur.parametrization import readings
from secateur.sibling import LearnedThreshold, learned_thresholds
from secateur.theta import project_

# torch's own word for it: a dictionary that the optimizer keeps and that schedulers write to.
ParameterGroup: TypeAlias = dict[str, Any]

_groups_of: WeakKeyDictionary[nn.Module, tuple[ParameterGroup, ParameterGroup]] = WeakKeyDictionary()


def parameter_groups(
    sibling: nn.Module, *, lr: float, rho: float = 1e-2, lambda_wd: float = 0.0, decay_biases: bool = False
) -> list[ParameterGroup]:
    """Return the optimizer's groups: weights with decay, biases and norms without, thresholds at lr·ρ without.

    What a quantiser learns (centroids, steps) goes with the biases and is never decayed: it has no zero to return to.

    ρ multiplies the learning rate, not the gradient, which Adam would divide away again. L_wd = λ_wd·‖W‖² acts on
    the raw weights; its gradient is 2·λ_wd·W, hence `weight_decay = 2·λ_wd`. A model without thresholds gets the
    first two groups only, so that a dense reference trains in the same way.
    """
    _refuse_negative(lr=lr, rho=rho, lambda_wd=lambda_wd)
    functions = learned_thresholds(sibling).values()
    thresholds = [function.threshold for function in functions]
    own = {id(threshold) for threshold in thresholds}
    pruned = {id(reading.original) for reading in readings(sibling, LearnedThreshold)}
    of_functions = {
        id(parameter)
        for module in sibling.modules()
        if isinstance(module, nn.utils.parametrize.ParametrizationList)
        for function in module
        for parameter in function.parameters()
    }
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in sibling.parameters():
        if id(parameter) not in own:
            is_weight = parameter.dim() >= 2 or id(parameter) in pruned
            is_decayed = (is_weight or decay_biases) and id(parameter) not in of_functions
            (decayed if is_decayed else free).append(parameter)
    groups: list[ParameterGroup] = [{"params": decayed, "lr": lr, "weight_decay": 2 * lambda_wd}]
    if free:
        groups.append({"params": free, "lr": lr, "weight_decay": 0.0})
    if thresholds:
        groups.append({"params": thresholds, "lr": lr * rho, "weight_decay": 0.0, "rho": rho})
        _groups_of[sibling] = groups[0], groups[-1]
        for threshold in thresholds:
            if type(threshold) is not nn.Parameter:
                # A sharded threshold (DTensor) is another object during forward, so it cannot be projected there.
                threshold.register_post_accumulate_grad_hook(project_)
    return groups


def penalty(sibling: nn.Module, lambda_t: float = 1e-2) -> Tensor:
    """Return L_t = λ_t · Σ‖θ(W; t)‖₁, whose gradient reaches the thresholds and exactly nothing else.

    Each tensor counts once, however often the forward read it. Add it to the loss of every backward; with gradient
    accumulation over k micro-batches divide it by k as you divide the loss.
    """
    _refuse_negative(lambda_t=lambda_t)
    functions = _functions_with_weights(sibling)
    if not functions:
        raise ValueError(f"{type(sibling).__name__} has no thresholds to penalise: call build_sibling(model) first")
    _warn_of_lost_settings(sibling)
    norms, thresholds = zip(*(function.norm(weight) for function, weight in functions), strict=True)
    loss: Tensor = _Penalty.apply(lambda_t, norms, *thresholds)  # type: ignore[no-untyped-call]  # torch's apply
    return loss


class _Penalty(torch.autograd.Function):
    """λ_t · Σ|θ| as a function of the thresholds alone; θ's forward has left value and slope."""

    @staticmethod
    def forward(ctx, lambda_t, norms, *thresholds):  # type: ignore[no-untyped-def]  # torch's protocol
        ctx.lambda_t, ctx.slopes = lambda_t, [norm.slope for norm in norms]
        value = lambda_t * sum([norm.value for norm in norms])
        kind = torch.promote_types(thresholds[0].dtype, torch.float32)
        return value.to(kind) if isinstance(value, Tensor) else torch.scalar_tensor(value, dtype=kind)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # torch's protocol
        scale = grad * ctx.lambda_t
        return None, None, *[slope * scale for slope in ctx.slopes]


def _functions_with_weights(sibling: nn.Module) -> list[tuple[LearnedThreshold, Tensor]]:
    """Return every threshold function once, with its stored weight.

    By hand, since this runs every step: torch's `modules()` takes twice as long.
    """
    found: dict[LearnedThreshold, Tensor] = {}
    modules: list[nn.Module | None] = [sibling]
    while modules:
        module = modules.pop()
        if isinstance(module, ParametrizationList):
            for part in module._modules.values():
                if isinstance(part, LearnedThreshold):
                    found[part] = module.original
        elif module is not None:
            modules.extend(module._modules.values())
    return list(found.items())


def _warn_of_lost_settings(sibling: nn.Module) -> None:
    """Say so when a scheduler has overwritten ρ, or an optimizer does not do the paper's weight decay."""
    if sibling not in _groups_of:
        return
    weights, thresholds = _groups_of[sibling]
    wanted = weights["lr"] * thresholds["rho"]
    if not math.isclose(thresholds["lr"], wanted, rel_tol=1e-4, abs_tol=1e-30):
        warnings.warn(
            f"the thresholds' learning rate is {float(thresholds['lr']):.3g} instead of lr·rho = {float(wanted):.3g}: "
            "a scheduler with absolute rates (OneCycleLR(max_lr=…), eta_min) has overwritten it; give it one rate per "
            "parameter group",
            stacklevel=3,
        )
        del _groups_of[sibling]
    elif weights.get("decoupled_weight_decay") and weights["weight_decay"]:
        warnings.warn(
            "AdamW decouples weight decay from the gradient, which is not the paper's L_wd: use Adam, or lambda_wd=0 "
            "and a weight decay of your own",
            stacklevel=3,
        )
        del _groups_of[sibling]


def _refuse_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be ≥ 0 and finite, got {value}")
