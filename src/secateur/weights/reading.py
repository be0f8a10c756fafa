"""How a layer is made to read a tensor through a function, and how that is undone without a trace.

This is `torch.nn.utils.parametrize` with its gaps closed: recurrent layers see the function, tied tensors stay one
tensor, plain checkpoints load, and settling restores the class, the key order and the ties, also on a deep copy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from secateur.weights.function import WeightFunction
from secateur.weights.tensors import NetworkTensor, tensors


def attach(tensor: NetworkTensor, function: WeightFunction) -> None:
    """Let every layer that reads `tensor` read it through `function` from now on, in place."""
    for place in tensor.places:
        if not function.reads_weight and place.originals[0].requires_grad:
            place.originals[0].requires_grad_(False)
            function.froze_weight = True
        _register(place.module, place.key, function)


def settle(model: nn.Module) -> nn.Module:
    """Return a plain copy of a network: every tensor that is read through weight functions holds its final value.

    Class, key order and ties are those of the plain network. Parametrizations of others (weight norm, spectral norm)
    are left alone unless a weight function is chained to them. The model is left as it is.
    """
    plain = copied(model)
    settle_(plain)
    return plain


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy in which tensors that shared memory are still one."""
    _refuse_shards(model)
    with torch.inference_mode(False):  # tensors copied in inference mode could not be trained
        memo: dict[int, Any] = {}
        for module in model.modules():  # torch refuses to copy what older mechanisms computed last, such as weight norm
            computed = [value for value in vars(module).values() if isinstance(value, Tensor) and not value.is_leaf]
            memo.update((id(value), value.detach().clone()) for value in computed)
        for tensor in tensors(model):
            first, *others = (place.originals[0] for place in tensor.places)
            for other in others:
                is_tied = other is not first and tensor.is_single  # by memory
                if is_tied and (other.shape, other.stride()) == (first.shape, first.stride()):
                    memo[id(other)] = copy.deepcopy(first, memo)
        return copy.deepcopy(model, memo)


def _refuse_shards(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise ValueError(
                f'"{name}" is a shard of FSDP2: load get_model_state_dict(model, '
                "options=StateDictOptions(full_state_dict=True)), of torch.distributed.checkpoint.state_dict, into a "
                "network of the same kind that is not sharded, and go on with that one"
            )


def settle_(model: nn.Module) -> None:
    """Replace every tensor that is read through weight functions by a plain one with its final value, in place.

    Written by hand because torch's own removal works on the class, which a deep copy shares with its original,
    applies the function twice to tied tensors and moves the weight behind the bias.
    """
    with torch.inference_mode(False), torch.no_grad():
        read = [tensor for tensor in tensors(model) if tensor.has(WeightFunction)]
        seen: set[int] = set()
        for tensor in read:  # one stored tensor behind two different chains becomes two
            if tensor.is_single and id(tensor.stored) in seen:
                for place in tensor.places:
                    assert place.chain is not None
                    place.chain.original = nn.Parameter(tensor.stored.clone())
            seen.update(map(id, tensor.places[0].originals))
        for tensor in read:
            plain = _settled(tensor)
            for place in tensor.places:
                _restore(place.module, place.key, plain)


def _settled(tensor: NetworkTensor) -> Tensor:
    """Return the stored tensor with its final value, or a new one if that has another shape."""
    value: tuple[Tensor, ...] = tensor.places[0].originals
    stored = value[0]
    for function in tensor.functions:
        try:
            value = (function.settle(*value) if isinstance(function, WeightFunction) else function(*value),)
        except ValueError as error:
            raise ValueError(f'"{tensor.name}" {error}') from None
    if not tensor.is_single or value[0].shape != stored.shape:
        stored = nn.Parameter(value[0], requires_grad=stored.requires_grad)
    else:
        stored.copy_(value[0])
    if any(isinstance(function, WeightFunction) and function.froze_weight for function in tensor.functions):
        stored.requires_grad_(True)
    return stored


def _register(module: nn.Module, name: str, function: nn.Module) -> None:
    order = tuple(module._parameters)
    # unsafe: torch would otherwise run the function once to check shapes that we know to be right.
    parametrize.register_parametrization(module, name, function, unsafe=True)
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    if not hasattr(parametrizations, "plain_order"):
        parametrizations.plain_order = order  # type: ignore[assignment]  # a plain attribute, not a module
        module.register_load_state_dict_pre_hook(_accept_plain_tensors)
        if isinstance(module, nn.RNNBase):
            _follow_flat_weights(module)


def _restore(module: nn.Module, name: str, original: Tensor) -> None:
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    order = getattr(parametrizations, "plain_order", ())
    assert isinstance(order, tuple)
    del parametrizations[name]
    parametrized_class = type(module)
    plain_class = parametrized_class.__bases__[0]
    if len(parametrizations):
        # Another tensor of this module is still parametrized, maybe by other code: keep its property only, in a new
        # class, since the present one may belong to other copies of this module as well.
        members = {key: value for key, value in vars(parametrized_class).items() if key != name}
        module.__class__ = type(parametrized_class.__name__, (plain_class,), members)
    else:
        module.__class__ = plain_class
        del module.parametrizations
        _remove_hooks(module)
    registry: dict[str, Any] = module._parameters if isinstance(original, nn.Parameter) else module._buffers
    registry[name] = original
    ranks = {key: rank for rank, key in enumerate(order)}
    for key in sorted(registry, key=lambda key: ranks.get(key, len(ranks))):
        registry[key] = registry.pop(key)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def _accept_plain_tensors(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Let a checkpoint of the plain model load: its tensor fills `original`, what the functions learned stays."""
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


def _remove_hooks(module: nn.Module) -> None:
    ours = {_accept_plain_tensors, _empty_flat_weights}
    # By what they are: the handles that torch returns do not know of deep copies.
    registries: tuple[dict[int, Any], ...] = (module._load_state_dict_pre_hooks, module._forward_hooks)
    for hooks in registries:
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) in ours]:
            del hooks[key]
            module._forward_hooks_always_called.pop(key, None)
