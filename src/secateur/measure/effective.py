"""The tensors that a network's layers read, whatever ties, masks and parametrizations stand in between."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


@dataclass(frozen=True)
class EffectiveTensor:
    """A tensor as its layer reads it, computed when asked for. Equal sources mean one and the same tensor."""

    source: Hashable
    is_parameter: bool
    read: Callable[[], Tensor]


def walk_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name every module of `model` once, except those that only serve a parametrization."""
    servants = {servant for module in model.modules() for servant in _parametrizations(module).modules()}
    return ((name, module) for name, module in model.named_modules() if module not in servants)


def own_tensors(layer: nn.Module) -> dict[str, EffectiveTensor]:
    """Give the parameters and persistent buffers that `layer` itself holds, by their names in a plain model.

    Parametrized tensors come first, which is where `weight` stands in a plain layer.
    """
    tensors = {}
    for name, chain in _parametrizations(layer).items():
        assert isinstance(chain, parametrize.ParametrizationList)
        originals = [*chain.parameters(recurse=False), *chain.buffers(recurse=False)]
        source = (*map(_memory, originals), *map(id, chain))
        # Not read as `layer.weight`: that would leave a tensor without gradient in `parametrize.cached()`.
        tensors[name] = EffectiveTensor(source, isinstance(originals[0], nn.Parameter), chain)

    held = {**layer._parameters, **layer._buffers}
    for name, original in list(held.items()):
        stem = name.removesuffix("_orig")
        mask = held.get(f"{stem}_mask")
        if stem != name and original is not None and mask is not None:
            # torch.nn.utils.prune: the layer reads original × mask
            source, product = (_memory(original), _memory(mask)), partial(torch.mul, original, mask)
            tensors[stem] = EffectiveTensor(source, isinstance(original, nn.Parameter), product)
            del held[name], held[f"{stem}_mask"]
    for name, tensor in held.items():
        if tensor is not None and name not in layer._non_persistent_buffers_set:
            is_parameter = isinstance(tensor, nn.Parameter)
            tensors[name] = EffectiveTensor(_memory(tensor), is_parameter, tensor.detach)
    return tensors


def distinct_tensors(model: nn.Module) -> dict[tuple[str, ...], EffectiveTensor]:
    """Give every tensor of `model` once, by all the names under which its layers read it.

    Plain tensors are tied when they lie in the same memory; parametrized ones when their originals do and
    their parametrizations are the same objects. One original behind two parametrizations makes two tensors.
    """
    names: dict[Hashable, list[str]] = {}
    tensors: dict[Hashable, EffectiveTensor] = {}
    for layer_name, layer in walk_layers(model):
        for name, tensor in own_tensors(layer).items():
            names.setdefault(tensor.source, []).append(f"{layer_name}.{name}" if layer_name else name)
            tensors.setdefault(tensor.source, tensor)
    return {tuple(names[source]): tensor for source, tensor in tensors.items()}


def _parametrizations(module: nn.Module) -> nn.ModuleDict:
    if not parametrize.is_parametrized(module):
        return nn.ModuleDict()
    assert isinstance(module.parametrizations, nn.ModuleDict)
    return module.parametrizations


def _memory(tensor: Tensor) -> Hashable:
    """Say where a tensor lies; one without memory (meta, empty) is known by itself only."""
    return (tensor.device, tensor.data_ptr(), tensor.numel()) if tensor.data_ptr() else id(tensor)
