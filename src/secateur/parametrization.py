"""How a layer is made to read a tensor through a function, and how that is undone without a trace.

This is `torch.nn.utils.parametrize` with its edges rounded off: recurrent layers see the function, tied tensors
stay one tensor, plain checkpoints load, and removal gives back the class, the key order and the ties even on a
deep copy. The functions themselves live with the steps that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList


class Reading(NamedTuple):
    """One tensor that a module reads through functions: `module.parametrizations[name]`."""

    owner: str
    module: nn.Module
    name: str
    chain: ParametrizationList

    @property
    def full_name(self) -> str:
        """The tensor's name in the plain model, such as "fc1.weight"."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def original(self) -> Tensor:
        """The stored tensor that the functions are applied to."""
        original = self.chain.original
        assert isinstance(original, Tensor)
        return original


def attach(module: nn.Module, name: str, function: nn.Module) -> None:
    """Let `module` read its tensor `name` through `function` from now on."""
    order = tuple(module._parameters)
    # unsafe: torch would otherwise run the function once to check shapes that we know to be right.
    parametrize.register_parametrization(module, name, function, unsafe=True)
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    _read_directly(type(module), name)
    if not hasattr(parametrizations, "plain_order"):
        parametrizations.plain_order = order  # type: ignore[assignment]  # a plain attribute, not a module
        module.register_load_state_dict_pre_hook(_accept_plain_tensors)
        if isinstance(module, nn.RNNBase):
            _follow_flat_weights(module)


def readings(model: nn.Module, kind: type[nn.Module]) -> Iterator[Reading]:
    """Yield every tensor that is read through a function of this kind; tied tensors appear once per reader."""
    for owner, module in model.named_modules():
        if parametrize.is_parametrized(module):
            parametrizations = module.parametrizations
            assert isinstance(parametrizations, nn.ModuleDict)
            for name, chain in parametrizations.items():
                assert isinstance(chain, ParametrizationList)
                if any(isinstance(function, kind) for function in chain):
                    yield Reading(owner, module, name, chain)


def detach(model: nn.Module, kind: type[nn.Module], plain_value: Callable[[Reading], Tensor]) -> None:
    """Replace each reading of this kind by a plain parameter that holds `plain_value(reading)`, in place.

    Class, key order and ties come back as they were. Written by hand because torch's own removal works on the
    class, which a deep copy shares with its original, applies the function twice to tied tensors and moves the
    weight behind the bias.
    """
    written: set[int] = set()
    for reading in list(readings(model, kind)):
        original = reading.original
        if id(original) not in written:
            with torch.no_grad():
                original.copy_(plain_value(reading))
            written.add(id(original))
        _restore(reading.module, reading.name, original)


def _restore(module: nn.Module, name: str, original: Tensor) -> None:
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    order = getattr(parametrizations, "plain_order", ())
    assert isinstance(order, tuple)
    del parametrizations[name]
    parametrized_class = type(module)
    plain_class = parametrized_class.__bases__[0]
    if len(parametrizations):
        # Another tensor of this module is still parametrized, maybe by somebody else: keep its property only, in
        # a class of our own, since the present one may belong to other copies of this module as well.
        members = {key: value for key, value in vars(parametrized_class).items() if key != name}
        module.__class__ = type(parametrized_class.__name__, (plain_class,), members)
    else:
        module.__class__ = plain_class
        del module.parametrizations
        _forget_hooks(module)
    registry: dict[str, nn.Parameter | None] = module._parameters
    registry[name] = original if isinstance(original, nn.Parameter) else nn.Parameter(original)
    ranks = {key: rank for rank, key in enumerate(order)}
    for key in sorted(registry, key=lambda key: ranks.get(key, len(ranks))):
        registry[key] = registry.pop(key)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def _read_directly(parametrized_class: type[nn.Module], name: str) -> None:
    """Shorten the way from a tensor's property to its one function, which a small layer feels at every step.

    Torch goes through two containers and the call of a module to get there. Whatever is not the plain case still goes
    its way: a cache, a compiler, several functions, a buffer, a hook on their list.
    """
    by_torch = vars(parametrized_class)[name]

    def read(module: nn.Module) -> Tensor:
        value: Tensor
        if not (parametrize._cache_enabled or torch.compiler.is_compiling()):
            chain: Any = module._modules["parametrizations"]._modules[name]  # type: ignore[union-attr]  # never None
            functions, original = chain._modules, chain._parameters.get("original")
            if len(functions) == 1 and original is not None and not (chain._forward_hooks or chain._forward_pre_hooks):
                value = functions["0"](original)
                return value
        value = by_torch.fget(module)
        return value

    setattr(parametrized_class, name, property(read, by_torch.fset))


def _accept_plain_tensors(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Let a checkpoint of the plain model load: its tensor fills `original`, what we learned beside it stays."""
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    for name, chain in parametrizations.items():
        if prefix + name not in state_dict:
            continue
        below = f"{prefix}parametrizations.{name}."
        own: Mapping[str, Tensor] = chain.state_dict()
        for key, value in own.items():
            state_dict.setdefault(below + key, value)
        state_dict[below + "original"] = state_dict.pop(prefix + name)


def _follow_flat_weights(module: nn.RNNBase) -> None:
    """Let a recurrent layer, which reads a list of its weights, fill that list for the length of a forward.

    Torch refills it whenever a weight is another object, which is every time, computes the function twice for it
    and keeps the results, after which the module cannot be deep-copied. The parametrized class is ours to change.
    """
    parametrized_class = type(module)
    parametrized_class._init_flat_weights = _empty_flat_weights  # type: ignore[assignment]  # a method by any name
    parametrized_class._update_flat_weights = _fill_flat_weights  # type: ignore[assignment]  # likewise
    module._init_flat_weights()
    module.register_forward_hook(_empty_flat_weights, always_call=True)


def _empty_flat_weights(module: nn.RNNBase, *_: object) -> None:
    # As long as before: torch writes into it when a bias is replaced.
    module._flat_weights = [None] * len(module._flat_weights_names)
    module._flat_weight_refs = []


def _fill_flat_weights(module: nn.RNNBase) -> None:
    module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


def _forget_hooks(module: nn.Module) -> None:
    ours = {_accept_plain_tensors, _empty_flat_weights}
    drop_hooks(module, lambda hook: getattr(hook, "hook", hook) in ours)


def drop_hooks(module: nn.Module, is_ours: Callable[[Any], bool]) -> None:
    """Take hooks away by what they are: the handles that torch gives do not know of deep copies."""
    for hooks in (module._load_state_dict_pre_hooks, module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if is_ours(hook)]:
            del hooks[key]
            module._forward_hooks_always_called.pop(key, None)
