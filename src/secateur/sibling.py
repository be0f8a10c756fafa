"""Step 1, build: the sibling network, the same network whose weights are read through θ(·; t)."""

from __future__ import annotations

import difflib
import fnmatch
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize
from typing_extensions import Doc

from secateur.nearest import require_choices
from secateur.parametrization import attach
from secateur.theta import theta_inverse
from secateur.threshold import LearnedThreshold, read_ahead

Granularity: TypeAlias = Literal["paper", "layer", "filter", "row", "element"]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
PRUNABLE_LAYERS = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    *_CONVOLUTIONS,
)


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
Rule = TypeVar("Rule")


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
    name or the nearer type wins. Tensors of layers we do not know, and biases, are included by naming them.
    """
    chosen = list(_tensors(model, config or SiblingConfig(), layers or {}))
    for places, _ in chosen:  # all of them before the first change: a refused model stays as it was
        _refuse_unusable(places[0].full_name, places[0].parameter)
    for places, rule in chosen:
        weight = places[0].parameter
        shape = _threshold_shape(places[0].module, weight, rule.granularity)
        threshold = _initial_threshold(weight.detach(), shape, rule)
        if rule.init == "inverse":
            with torch.no_grad():
                weight.copy_(theta_inverse(weight, threshold, rule.alpha))
        function = LearnedThreshold(threshold, rule.alpha)
        for place in places:
            attach(place.module, place.name, function)
    read_ahead(model)
    return model


def targets(
    model: nn.Module, config: SiblingConfig | None = None, *, layers: LayerRules | None = None
) -> tuple[Target, ...]:
    """Return what `build_sibling` would prune, without touching the model."""
    found = []
    for places, rule in _tensors(model, config or SiblingConfig(), layers or {}):
        weight = places[0].parameter
        shape = _threshold_shape(places[0].module, weight, rule.granularity)
        found.append(Target(tuple(p.full_name for p in places), tuple(weight.shape), math.prod(shape), rule))
    return tuple(found)


class Place(NamedTuple):
    """Where a tensor hangs: a module and the name it has there."""

    owner: str
    module: nn.Module
    name: str

    @property
    def full_name(self) -> str:
        """The tensor's name in the plain model, such as "fc1.weight"."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def chain(self) -> parametrize.ParametrizationList | None:
        """The functions through which the tensor is read, if there are any."""
        if not parametrize.is_parametrized(self.module, self.name):
            return None
        assert isinstance(self.module.parametrizations, nn.ModuleDict)
        chain = self.module.parametrizations[self.name]
        assert isinstance(chain, parametrize.ParametrizationList)
        return chain

    @property
    def parameter(self) -> nn.Parameter:
        """The stored parameter, which functions may stand before."""
        parameter = self.module._parameters[self.name] if self.chain is None else self.chain.original
        assert isinstance(parameter, nn.Parameter)
        return parameter


def places(model: nn.Module) -> list[list[Place]]:
    """Return every parameter of the plain model once, with all the places where it hangs; tied ones have several."""
    servants: set[nn.Module] = set()
    found: dict[int, list[Place]] = {}
    for owner, module in model.named_modules():
        if module in servants:  # it serves a parametrization: what it holds is no tensor of the plain model
            continue
        names = [name for name, parameter in module._parameters.items() if parameter is not None]
        if parametrize.is_parametrized(module):
            assert isinstance(module.parametrizations, nn.ModuleDict)
            servants.update(module.parametrizations.modules())
            # A chain over several tensors (weight norm) has no `original`: it is nobody's but its maker's.
            names = [n for n, chain in module.parametrizations.items() if hasattr(chain, "original")] + names
        for place in (Place(owner, module, name) for name in names):
            found.setdefault(id(place.parameter), []).append(place)
    return list(found.values())


def _tensors(
    model: nn.Module, config: SiblingConfig, layers: LayerRules
) -> Iterator[tuple[list[Place], SiblingConfig]]:
    """Yield each tensor to prune once, with all the places where it hangs and its rule."""
    _refuse_parametrized(model)
    refuse_rules(layers, "a SiblingConfig or None", lambda rule: rule is None or isinstance(rule, SiblingConfig))
    everything = places(model)
    refuse_unmatched(model, everything, layers)
    chosen = [(tied, rule_of_tied(tied, config, layers)) for tied in everything]
    if all(rule is None for _, rule in chosen):
        raise ValueError(
            f"{type(model).__name__} has nothing to prune: no Linear, convolution, Embedding, attention or recurrent "
            'weight is left by the rules; name tensors of your own layers with layers={"name.pattern": SiblingConfig()}'
        )
    for tied, rule in chosen:
        if rule is not None:
            yield tied, rule


def rule_of_tied(
    tied: list[Place],
    config: Rule,
    layers: Mapping[str | type[nn.Module], Rule | None],
    *,
    weights_only: bool = True,
) -> Rule | None:
    """Return the one rule for a tensor that hangs in these places, or None if it stays as it is.

    Only weights have a rule by default; `weights_only=False` asks for the rule of any tensor.
    """
    rules = [_rule(place, config, layers, weights_only) for place in tied]
    if any(rule != rules[0] for rule in rules):
        names = " and ".join(f'"{place.full_name}"' for place in tied)
        raise ValueError(f"{names} are one tied tensor, but the rules treat them differently: give them one rule")
    return rules[0]


def _rule(
    place: Place, config: Rule, layers: Mapping[str | type[nn.Module], Rule | None], weights_only: bool
) -> Rule | None:
    """Return the most specific rule for a tensor, or None if it stays as it is."""
    best: tuple[tuple[int, int, int], Rule | None] | None = None
    for key, rule in layers.items():
        rank = _specificity(key, place)
        if rank is not None and (best is None or rank > best[0]):
            best = rank, rule
    by_default = not weights_only or _is_weight(place, asked_for=best is not None)
    if best is None:
        return config if by_default else None
    names_tensor = best[0][0] == 2
    return best[1] if names_tensor or by_default else None


def _specificity(key: str | type[nn.Module], place: Place) -> tuple[int, int, int] | None:
    """Rank a rule that matches this place; None if it does not match."""
    if isinstance(key, type):
        return (0, -type(place.module).__mro__.index(key), 0) if isinstance(place.module, key) else None
    literal = sum(character not in "*?[]" for character in key)
    exact = int(key in (place.full_name, place.owner))
    if fnmatch.fnmatchcase(place.owner, key):
        return 1, exact, literal
    if fnmatch.fnmatchcase(place.full_name, key):
        return 2, exact, literal
    return None


def _is_weight(place: Place, asked_for: bool) -> bool:
    """Tell weights from biases; layers of unknown type count only if a rule asks for them."""
    parameter = place.parameter
    if isinstance(parameter, UninitializedParameter):
        return isinstance(place.module, PRUNABLE_LAYERS) and "weight" in place.name
    return (
        parameter.dim() >= 2 and (asked_for or isinstance(place.module, PRUNABLE_LAYERS)) and "bias" not in place.name
    )


def _threshold_shape(module: nn.Module, weight: Tensor, granularity: Granularity) -> tuple[int, ...]:
    """Return a shape that broadcasts over the weight, one entry per threshold."""
    if granularity == "paper":
        granularity = "filter" if isinstance(module, _CONVOLUTIONS) else "layer"
    if granularity == "element":
        return tuple(weight.shape)
    if granularity == "layer":
        return (1,) * weight.dim()
    # A transposed convolution stores (input channels, filters ÷ groups, …); everything else stores filters first.
    axis = 1 if granularity == "filter" and isinstance(module, _TRANSPOSED) else 0
    return tuple(length if dim == axis else 1 for dim, length in enumerate(weight.shape))


def _initial_threshold(weight: Tensor, shape: tuple[int, ...], config: SiblingConfig) -> Tensor:
    """Return thresholds with exactly ⌊p·n⌋ of the n weights of each group strictly below (fewer when values tie)."""
    kind = torch.promote_types(weight.dtype, torch.float32)
    rank = math.floor(config.init_quantile * (weight.numel() // math.prod(shape)))
    if rank == 0:  # the smallest weight as a threshold would have none below, either, but halve that weight
        return torch.zeros(shape, dtype=kind, device=weight.device)
    shared = [dim for dim, length in enumerate(shape) if length == 1]
    grouped = weight.abs().to(kind).permute([d for d in range(weight.dim()) if d not in shared] + shared)
    grouped = grouped.reshape(math.prod(shape), -1)
    # kthvalue, since torch.quantile refuses more than 16 M elements.
    return grouped.kthvalue(rank + 1, dim=1).values.reshape(shape)


def _refuse_parametrized(model: nn.Module) -> None:
    for owner, module in model.named_modules():
        if parametrize.is_parametrized(module):
            raise ValueError(
                f'layer "{owner}" is parametrized already (a sibling, or weight or spectral norm): build it once, '
                "from the plain model"
            )


def refuse_rules(
    layers: Mapping[str | type[nn.Module], Rule | None], wanted: str, is_rule: Callable[[object], bool]
) -> None:
    """Raise a ValueError for rules that are none, or that are kept under something other than a name or a type."""
    for key, rule in layers.items():
        if not isinstance(key, str | type):
            raise ValueError(f"layers is a mapping from names or types, got the key {key!r}")
        if not is_rule(rule):
            named = f'"{key}"' if isinstance(key, str) else key.__name__
            raise ValueError(f"layers[{named}] must be {wanted}, got {rule!r}")


def refuse_unmatched(
    model: nn.Module, everything: Iterable[list[Place]], keys: Iterable[str | type[nn.Module]]
) -> None:
    """Raise a ValueError for a rule that no layer or tensor of the model answers to."""
    modules = dict(model.named_modules())
    names = [*modules, *(place.full_name for tied in everything for place in tied)]
    for key in keys:
        if isinstance(key, str) and not any(fnmatch.fnmatchcase(name, key) for name in names):
            near = difflib.get_close_matches(key, names, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise ValueError(f'no layer or tensor matches "{key}"{hint}')
        if isinstance(key, type) and not any(isinstance(module, key) for module in modules.values()):
            raise ValueError(f"the model has no layer of type {key.__name__}")


def _refuse_unusable(name: str, weight: Tensor) -> None:
    if isinstance(weight, UninitializedParameter):
        raise ValueError(f'"{name}" has no shape yet: run one batch through the lazy model first')
    if not weight.is_floating_point():
        raise ValueError(f'"{name}" holds {weight.dtype}: thresholds need floating-point weights')
    if weight.numel() == 0:
        raise ValueError(f'"{name}" is empty, shape {tuple(weight.shape)}: leave it out with layers={{"{name}": None}}')
    if not torch.isfinite(weight).all():
        raise ValueError(f'"{name}" holds NaN or infinite values: there is no quantile to start a threshold from')
    if not weight.any():
        warnings.warn(f'"{name}" is all zeros: its threshold starts at 0 and learns once they move', stacklevel=4)
