"""Rules for single layers, `layers={…}`: which rule a tensor obeys, and which rules are refused.

A key is a module type, a module name or a tensor name, with patterns as in fnmatch; None leaves a layer as it is. A
tensor name beats a module name, which beats a type; a longer name beats a shorter one, a nearer type a farther one.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from secateur.weights.tensors import NetworkTensor, Place, is_weight

Rule = TypeVar("Rule")

_BY_TYPE, _BY_MODULE, _BY_TENSOR = range(3)


class _Rank(NamedTuple):
    """How specific a rule is; of several that match, the one of the highest rank applies."""

    kind: int
    nearness: int
    length: int


def rule_of(
    tensor: NetworkTensor,
    default: Rule,
    layers: Mapping[str | type[nn.Module], Rule | None],
    *,
    weights_only: bool = True,
) -> Rule | None:
    """Return the one rule for a tensor, or None if it stays as it is.

    By default only weights have a rule; `weights_only=False` asks for the rule of any tensor.
    """
    best = [_best(place, layers) for place in tensor.places]
    has_default = not weights_only or any(
        is_weight(place, asked_for=key is not None) for place, key in zip(tensor.places, best, strict=True)
    )
    rules = []
    for place, key in zip(tensor.places, best, strict=True):
        if key is None:
            rules.append(default if has_default else None)
        else:
            names_tensor = _rank(key, place).kind == _BY_TENSOR  # type: ignore[union-attr]  # it matches
            rules.append(layers[key] if names_tensor or has_default else None)
    if any(rule != rules[0] for rule in rules):
        names = " and ".join(f'"{name}"' for name in tensor.names)
        raise ValueError(f"{names} are one tied tensor, but the rules treat them differently: give them one rule")
    return rules[0]


def is_named(tensor: NetworkTensor, layers: Mapping[str | type[nn.Module], Rule | None]) -> bool:
    """Return whether a rule matches a tensor or its layer."""
    return any(_best(place, layers) is not None for place in tensor.places)


def _best(place: Place, layers: Mapping[str | type[nn.Module], Rule | None]) -> str | type[nn.Module] | None:
    """Return the key of the most specific rule for a place, or None if no rule matches."""
    ranked = [(rank, key) for key in layers if (rank := _rank(key, place)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _rank(key: str | type[nn.Module], place: Place) -> _Rank | None:
    if isinstance(key, type):
        if not isinstance(place.module, key):
            return None
        return _Rank(_BY_TYPE, -type(place.module).__mro__.index(key), 0)
    length = sum(character not in "*?[]" for character in key)
    is_exact = int(key in (place.full_name, place.owner))
    if fnmatch.fnmatchcase(place.owner, key):
        return _Rank(_BY_MODULE, is_exact, length)
    if fnmatch.fnmatchcase(place.full_name, key):
        return _Rank(_BY_TENSOR, is_exact, length)
    return None


def refuse_rules(
    layers: Mapping[str | type[nn.Module], Rule | None], wanted: str, is_rule: Callable[[object], bool]
) -> None:
    """Raise a ValueError for rules of a wrong type, and for keys that are neither a name nor a type."""
    for key, rule in layers.items():
        if not isinstance(key, str | type):
            raise ValueError(f"layers is a mapping from names or types, got the key {key!r}")
        if not is_rule(rule):
            named = f'"{key}"' if isinstance(key, str) else key.__name__
            raise ValueError(f"layers[{named}] must be {wanted}, got {rule!r}")


def refuse_unmatched(model: nn.Module, tensors: Iterable[NetworkTensor], keys: Iterable[str | type[nn.Module]]) -> None:
    """Raise a ValueError for a rule that matches no layer and no tensor of the model."""
    modules = dict(model.named_modules())
    names = [*modules, *(name for tensor in tensors for name in tensor.names)]
    for key in keys:
        if isinstance(key, str) and not any(fnmatch.fnmatchcase(name, key) for name in names):
            near = difflib.get_close_matches(key, names, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise ValueError(f'no layer or tensor matches "{key}"{hint}')
        if isinstance(key, type) and not any(isinstance(module, key) for module in modules.values()):
            raise ValueError(f"the model has no layer of type {key.__name__}")


def refuse_finished(model: nn.Module) -> None:
    """Raise an error for a network with layers that cannot be changed: compiled by torch.jit, or packed as integers."""
    for name, module in model.named_modules():
        where = f'layer "{name}"' if name else "the network"
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(f"{where} is compiled by torch.jit: start from the Python module, and compile the result")
        if type(module).__module__.startswith("torch.ao.nn.") and "quantized" in type(module).__module__:
            raise TypeError(
                f"{where} is a {type(module).__name__} that holds packed integers: start from the float network, and "
                "convert the result"
            )


def refuse_reshaped(tensor: NetworkTensor) -> None:
    """Raise a ValueError for a tensor that layers read in different shapes from the same memory."""
    first = tensor.places[0].originals[0]
    for place in tensor.places[1:]:
        other = place.originals[0]
        if other is not first and (other.shape, other.stride()) != (first.shape, first.stride()):
            raise ValueError(
                f'"{tensor.name}" and "{place.full_name}" share memory in different shapes, {tuple(first.shape)} and '
                f"{tuple(other.shape)}: no function fits both; give one of them a copy of its own, or leave them out"
            )
