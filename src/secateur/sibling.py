"""Step 1, build: the sibling network, the same network whose weights are read through θ(·; t)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import Doc

from secateur.functions.threshold import LearnedThreshold
from secateur.nearest import require_choices
from secateur.theta import theta_inverse
from secateur.weights.coverage import LeftOut, gather, sentence, why_not_changed, why_unknown
from secateur.weights.function import WeightFunction
from secateur.weights.reading import attach
from secateur.weights.rules import (
    is_named,
    refuse_finished,
    refuse_reshaped,
    refuse_rules,
    refuse_unmatched,
    rule_of,
)
from secateur.weights.tensors import CONVOLUTIONS, NetworkTensor, filter_axis, tensors

Granularity: TypeAlias = Literal["paper", "layer", "filter", "row", "element"]


@dataclass(frozen=True, kw_only=True)
class SiblingConfig:
    """How a weight gets its threshold; the defaults are the paper's for MNIST."""

    granularity: Annotated[
        Granularity,
        Doc(
            "what shares one threshold: a layer, a filter (output unit), a row (first index), an element; "
            "the paper: filters of convolutions, whole layers otherwise"
        ),
    ] = "paper"
    alpha: Annotated[float, Doc("α, the sharpness of θ")] = 100.0
    init_quantile: Annotated[float, Doc("p, the share of weights that start below their threshold")] = 0.1
    init: Annotated[
        Literal["theta", "inverse"],
        Doc("start from θ(W) (the paper), or from θ⁻¹(W), which keeps the function of a trained network"),
    ] = "theta"

    def __post_init__(self) -> None:
        require_choices(self, granularity=get_args(Granularity), init=("theta", "inverse"))
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha must be positive and finite, got {self.alpha}")
        if not 0 <= self.init_quantile < 1:
            raise ValueError(f"init_quantile must lie in [0, 1), got {self.init_quantile}")


LayerRules: TypeAlias = Mapping[str | type[nn.Module], SiblingConfig | None]


@dataclass(frozen=True)
class Target:
    """One tensor that will be, or is, read through θ."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    thresholds: int
    config: SiblingConfig

    @property
    def name(self) -> str:
        """The first of the names that tied tensors have."""
        return self.names[0]

    @property
    def weights(self) -> int:
        """The number of weights in the tensor."""
        return math.prod(self.shape)


def build_sibling(
    model: nn.Module, config: SiblingConfig | None = None, *, layers: LayerRules | None = None
) -> nn.Module:
    """Let every chosen weight of `model` be read through θ with a threshold of its own, in place; return the model.

    `layers` overrides `config` by module type, by module name or by tensor name (patterns as in fnmatch), `None`
    leaving a layer alone; of several that match, a tensor name beats a module name beats a type, and the longer
    name or the nearer type wins. Tensors of layers we do not know, biases, and weights that are frozen
    (`requires_grad=False`) are included by naming them. A warning says which large tensors are left out, and why.
    """
    for tensor, rule in chosen_tensors(model, config or SiblingConfig(), layers or {}):
        weight = tensor.stored
        threshold = _initial_threshold(weight.detach(), threshold_shape(tensor, rule.granularity), rule)
        if rule.init == "inverse":
            with torch.no_grad():
                weight.copy_(theta_inverse(weight, threshold, rule.alpha))
        attach(tensor, LearnedThreshold(threshold, rule.alpha))
    return model


def chosen_tensors(
    model: nn.Module, config: SiblingConfig, layers: LayerRules
) -> list[tuple[NetworkTensor, SiblingConfig]]:
    """Return the tensors to prune, each with its rule; raise a ValueError for a model that cannot be pruned like this.

    Raised before the first change: a refused model stays as it was. A warning says what is left out.
    """
    chosen, others = _choose(model, config, layers)
    for tensor, _ in chosen:
        _refuse_unusable(tensor)
    if others:
        warnings.warn(sentence(model, others), stacklevel=3)
    return chosen


def targets(
    model: nn.Module, config: SiblingConfig | None = None, *, layers: LayerRules | None = None
) -> tuple[Target, ...]:
    """Return what `build_sibling` would prune, without touching the model."""
    return tuple(
        Target(tensor.names, tuple(tensor.stored.shape), math.prod(threshold_shape(tensor, rule.granularity)), rule)
        for tensor, rule in _choose(model, config or SiblingConfig(), layers or {})[0]
    )


def left_out(
    model: nn.Module, config: SiblingConfig | None = None, *, layers: LayerRules | None = None
) -> tuple[LeftOut, ...]:
    """Return the large tensors that `build_sibling` would leave out unasked, by kind and with the reason."""
    return _choose(model, config or SiblingConfig(), layers or {})[1]


def _choose(
    model: nn.Module, config: SiblingConfig, layers: LayerRules
) -> tuple[list[tuple[NetworkTensor, SiblingConfig]], tuple[LeftOut, ...]]:
    """Return each tensor to prune once, with its rule, and what is left out."""
    refuse_finished(model)
    _refuse_siblings(model)
    refuse_rules(layers, "a SiblingConfig or None", lambda rule: rule is None or isinstance(rule, SiblingConfig))
    everything = [tensor for tensor in tensors(model) if tensor.is_parameter]
    refuse_unmatched(model, everything, layers)
    chosen: list[tuple[NetworkTensor, SiblingConfig]] = []
    known: dict[NetworkTensor, str] = {}
    unknown: dict[NetworkTensor, str] = {}
    for tensor in everything:
        rule, is_asked_for = rule_of(tensor, config, layers), is_named(tensor, layers)
        if rule is None:
            reason = None if is_asked_for else why_unknown(tensor)
            unknown.update({tensor: reason} if reason else {})
        elif reason := why_not_changed(tensor, is_named=is_asked_for):
            known[tensor] = reason
        else:
            chosen.append((tensor, rule))
    others = gather(everything, known, unknown)
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has nothing to prune: no Linear, convolution, Embedding, attention or recurrent "
            "weight is left by the rules; name tensors of your own layers with "
            'layers={"name.pattern": SiblingConfig()}' + (f". {sentence(model, others)}" if others else "")
        )
    return chosen, others


def threshold_shape(tensor: NetworkTensor, granularity: Granularity) -> tuple[int, ...]:
    """Return a shape that broadcasts over the weight, one entry per threshold."""
    weight = tensor.stored
    if granularity == "paper":
        granularity = "filter" if isinstance(tensor.places[0].module, CONVOLUTIONS) else "layer"
    if granularity == "element":
        return tuple(weight.shape)
    if granularity == "layer":
        return (1,) * weight.dim()
    axis = filter_axis(tensor.places[0]) if granularity == "filter" else 0
    return tuple(length if dim == axis else 1 for dim, length in enumerate(weight.shape))


def _initial_threshold(weight: Tensor, shape: tuple[int, ...], config: SiblingConfig) -> Tensor:
    """Return thresholds with exactly ⌊p·n⌋ of the n weights of each group strictly below (fewer when values tie)."""
    kind = torch.promote_types(weight.dtype, torch.float32)
    rank = math.floor(config.init_quantile * (weight.numel() // math.prod(shape)))
    if rank == 0:  # the smallest weight as a threshold would have no weight below it either, but halve that weight
        return torch.zeros(shape, dtype=kind, device=weight.device)
    shared = [dim for dim, length in enumerate(shape) if length == 1]
    grouped = weight.abs().to(kind).permute([d for d in range(weight.dim()) if d not in shared] + shared)
    grouped = grouped.reshape(math.prod(shape), -1)
    # kthvalue, since torch.quantile refuses more than 16 M elements.
    return grouped.kthvalue(rank + 1, dim=1).values.reshape(shape)


def _refuse_siblings(model: nn.Module) -> None:
    for tensor in tensors(model):
        if tensor.has(WeightFunction):
            raise ValueError(
                f'layer "{tensor.places[0].owner}" is parametrized already ("{tensor.name}" is read through '
                f"{type(tensor.functions[0]).__name__}): build the sibling once, from the plain model"
            )


def _refuse_unusable(tensor: NetworkTensor) -> None:
    name, weight = tensor.name, tensor.stored
    if is_lazy(weight):
        raise ValueError(f'"{name}" has no shape yet: run one batch through the lazy model first')
    if not weight.is_floating_point():
        raise ValueError(
            f'"{name}" holds {weight.dtype}: thresholds need floating-point weights; prune before you convert'
        )
    if weight.is_meta:
        raise ValueError(f'"{name}" is on the meta device and has no values: load them first')
    if weight.numel() == 0:
        raise ValueError(f'"{name}" is empty, shape {tuple(weight.shape)}: leave it out with layers={{"{name}": None}}')
    if not torch.isfinite(weight).all():
        raise ValueError(f'"{name}" holds NaN or infinite values: there is no quantile to start a threshold from')
    refuse_reshaped(tensor)
    if not weight.any():
        warnings.warn(f'"{name}" is all zeros: its threshold starts at 0 and learns once they move', stacklevel=3)
