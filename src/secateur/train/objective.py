"""L = L₀ + L_wd + L_t: what the paper adds to the loss of a task, and which parameter gets which learning rate."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from secateur.parametrization import readings
from secateur.theta import is_spent, project_, scaled_norm
from secateur.threshold import LearnedThreshold, Norm, ParameterGroup, chains, learned_thresholds


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
        for function in functions:
            function.record.groups = groups[0], groups[-1]
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
    if not 0 <= lambda_t < math.inf:
        _refuse_negative(lambda_t=lambda_t)
    functions = chains(sibling)
    if not functions:
        raise ValueError(f"{type(sibling).__name__} has no thresholds to penalise: call build_sibling(model) first")
    _warn_of_lost_settings([function for function, _ in functions])
    return scaled_norm(_norm(functions), lambda_t)


def _norm(functions: list[tuple[LearnedThreshold, ParametrizationList]]) -> Tensor:
    """Return Σ|θ| over some tensors: as their forward left it, where it is the sum over just these."""
    left: dict[Norm | None, list[tuple[LearnedThreshold, Tensor]]] = {}
    for function, chain in functions:
        # Where torch keeps it: asking for the attribute takes longer. A buffer is kept elsewhere.
        parameter = chain._parameters.get("original")
        weight: Tensor = chain.original if parameter is None else parameter
        left.setdefault(function.take_norm(weight), []).append((function, weight))
    terms: list[Tensor] = []
    for norm, readers in left.items():
        if norm is not None and norm.tensors == len(readers) and not is_spent(norm.total):
            terms.append(norm.total)
        else:
            terms.extend(function.norm(weight) for function, weight in readers)
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def _warn_of_lost_settings(functions: list[LearnedThreshold]) -> None:
    """Say so, once, when a scheduler has overwritten ρ, or an optimizer does not do the paper's weight decay."""
    groups = functions[0].record.groups
    if groups is None:
        return
    weights, thresholds = groups
    wanted = weights["lr"] * thresholds["rho"]
    if not math.isclose(thresholds["lr"], wanted, rel_tol=1e-4, abs_tol=1e-30):
        message = (
            f"the thresholds' learning rate is {float(thresholds['lr']):.3g} instead of lr·rho = {float(wanted):.3g}: "
            "a scheduler with absolute rates (OneCycleLR(max_lr=…), eta_min) has overwritten it; give it one rate per "
            "parameter group"
        )
    elif weights.get("decoupled_weight_decay") and weights["weight_decay"]:
        message = (
            "AdamW decouples weight decay from the gradient, which is not the paper's L_wd: use Adam, or lambda_wd=0 "
            "and a weight decay of your own"
        )
    else:
        return
    warnings.warn(message, stacklevel=3)
    for function in functions:
        function.record.groups = None


def _refuse_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be ≥ 0 and finite, got {value}")
