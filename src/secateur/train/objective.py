"""L = L₀ + L_wd + L_t: the paper's terms of the loss, and the learning rates of all parameters."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from secateur.functions.threshold import LearnedThreshold
from secateur.train.recipe import require_not_negative
from secateur.weights.function import ParameterGroup, WeightFunction, functions, given

_WEIGHTS = 1.0, True, False  # of the optimizer's groups: rate ÷ lr, whether it is decayed, whether by ρ
_ADDED_IN_FLOAT64 = 1 << 18
_COMPARED_FIRST, _COMPARED_EVERY = 20, 200  # steps at which the gradients of penalty and task are compared


def parameter_groups(
    sibling: nn.Module,
    *,
    lr: float,
    rho: float = 1e-2,
    lambda_wd: float = 0.0,
    decay_biases: bool = False,
    bias_lr: float = 1.0,
) -> list[ParameterGroup]:
    """Return the optimizer's groups: weights with decay, biases and norms without, thresholds at lr·ρ without.

    Parameters of quantisers (centroids, steps) are in the group of the norms, and are never decayed. Biases have a
    group of their own if `bias_lr`, their learning rate ÷ the weights', is not 1.

    ρ multiplies the learning rate, not the gradient, because Adam normalises gradients and would cancel it.
    L_wd = λ_wd·‖W‖² acts on the raw weights; its gradient is 2·λ_wd·W, hence `weight_decay = 2·λ_wd`. A model without
    thresholds gets the first two groups only, so that a dense reference trains in the same way.
    """
    require_not_negative(lr=lr, rho=rho, lambda_wd=lambda_wd, bias_lr=bias_lr)
    treatments = _treatments(sibling, rho)
    members: dict[tuple[float, bool, bool], list[nn.Parameter]] = {_WEIGHTS: [], (1.0, False, False): []}
    for name, parameter in sibling.named_parameters():
        rate, is_decayed = treatments.get(id(parameter), (1.0, parameter.dim() >= 2 or decay_biases))
        is_slowed = rate != 1
        if id(parameter) not in treatments and "bias" in name.rpartition(".")[2]:
            rate = bias_lr
        members.setdefault((rate, is_decayed, is_slowed), []).append(parameter)
    groups: dict[tuple[float, bool, bool], ParameterGroup] = {}
    for (rate, is_decayed, is_slowed), parameters in members.items():
        if parameters or (rate, is_decayed, is_slowed) == _WEIGHTS:
            decay = 2 * lambda_wd if is_decayed else 0.0
            group: ParameterGroup = {"params": parameters, "lr": lr * rate, "weight_decay": decay}
            groups[rate, is_decayed, is_slowed] = group | ({"rho": rate} if is_slowed else {})
    for function, _ in functions(sibling):
        rates = (treatments.get(id(parameter), (1.0, True)) for parameter in function.parameters())
        own = next((groups[treatment[0], treatment[1], True] for treatment in rates if treatment[0] != 1), None)
        function.optimizer_groups = None if own is None else (groups[_WEIGHTS], own)
    return list(groups.values())


def _treatments(model: nn.Module, rho: float) -> dict[int, tuple[float, bool]]:
    """Return rate ÷ lr and whether decay applies, for the parameters of functions and the tensors that they prune."""
    found: dict[int, tuple[float, bool]] = {}
    for chain in model.modules():
        if not isinstance(chain, ParametrizationList):
            continue
        for function in chain:
            if not isinstance(function, WeightFunction):  # other parametrizations, such as weight norm: no decay
                found.update((id(parameter), (1.0, False)) for parameter in function.parameters())
                continue
            for parameters, rate, is_decayed in function.groups(rho):
                found.update((id(parameter), (rate, is_decayed)) for parameter in parameters)
            if function.prunes:
                found.update((id(stored), (1.0, True)) for stored in chain.parameters(recurse=False))
    return found


def penalty(sibling: nn.Module, lambda_t: float = 1e-2) -> Tensor:
    """Return L_t = λ_t · Σ‖θ(W; t)‖₁, whose gradient reaches the thresholds and no other parameter.

    Each tensor counts once, however often a forward pass reads it. Add it to the loss before every backward; with
    gradient accumulation over k micro-batches divide it by k as you divide the loss. Weight functions of other kinds
    add their own terms, if they have any.
    """
    if not 0 <= lambda_t < math.inf:
        require_not_negative(lambda_t=lambda_t)
    found = functions(sibling)
    terms: list[tuple[Tensor, Tensor]] = []
    for function, chain in found:
        if type(function).penalty is not WeightFunction.penalty:
            weight = given(function, chain)
            term = function.penalty(weight)
            if term is not None:
                terms.append((term, weight))
            if isinstance(function, LearnedThreshold):
                _compare_now_and_then(function, weight, lambda_t)
    if not terms:
        raise ValueError(f"{type(sibling).__name__} has no thresholds to penalise: call build_sibling(model) first")
    _warn_of_lost_settings([function for function, _ in found])
    return _scaled_sum(terms, lambda_t)


def _compare_now_and_then(function: LearnedThreshold, weight: Tensor, lambda_t: float) -> None:
    """Let a threshold compare its two gradients at a few steps, so that `prune` can say if the task was drowned."""
    if torch.compiler.is_compiling():  # a counter would have it compiled anew at every step
        return
    function.penalties += 1
    is_plain = type(function.threshold) is nn.Parameter and function.threshold.requires_grad  # not a shard of FSDP2
    if function.penalties % _COMPARED_EVERY == _COMPARED_FIRST and is_plain:
        function.compare_gradients(weight, lambda_t)


def _scaled_sum(terms: list[tuple[Tensor, Tensor]], factor: float) -> Tensor:
    """Return factor · Σ terms, each given with its weight, in float32 unless a weight is float64.

    The order of additions is arbitrary, but fixed, because published logs must stay reproducible to the bit: small
    layers are added in float64 first, and a single sum is scaled in float64.
    """
    dtype = torch.float64 if any(weight.dtype is torch.float64 for _, weight in terms) else torch.float32
    small: list[Tensor] = []
    parts: list[Tensor] = []
    for term, weight in terms:
        if term.dtype is torch.float64 and weight.numel() <= _ADDED_IN_FLOAT64:
            small.append(term)
        else:
            parts.append(term.to(dtype))
    if small:
        parts.append(torch.stack(small).sum().to(dtype))
    if len(parts) == 1 and parts[0].is_cpu:  # not every device has float64
        return (parts[0].double() * factor).to(dtype)
    return torch.stack(parts).sum() * factor


def _warn_of_lost_settings(found: list[WeightFunction]) -> None:
    """Warn, once, when a scheduler has overwritten ρ, or an optimizer does not do the paper's weight decay."""
    groups = next((function.optimizer_groups for function in found if function.optimizer_groups is not None), None)
    if groups is None:
        return
    weights, own = groups
    wanted = weights["lr"] * own["rho"]
    if not math.isclose(own["lr"], wanted, rel_tol=1e-4, abs_tol=1e-30):
        message = (
            f"the thresholds' learning rate is {float(own['lr']):.3g} instead of lr·rho = {float(wanted):.3g}: "
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
    for function in found:
        function.optimizer_groups = None
