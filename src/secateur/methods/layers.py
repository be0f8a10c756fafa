"""Linear layers and convolutions of a network, one kind or the other, and the dropouts that belong to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from secateur.weights.tensors import tensors

Kind: TypeAlias = Literal["fc", "conv"]

# In the order in which a round goes through them.
KINDS: dict[Kind, type[nn.Module]] = {"fc": nn.Linear, "conv": _ConvNd}


def kinds(model: nn.Module) -> list[Kind]:
    """Name the kinds of layer that a network has, in the order in which a round cuts them."""
    return [kind for kind in KINDS if any(True for _ in layers(model, kind))]


def layers(model: nn.Module, kind: Kind) -> Iterator[tuple[str, Tensor]]:
    """Yield the weight of every layer of a kind by the layer's name; a tied one once."""
    for tensor in tensors(model):
        for owner, layer, name in tensor.places:
            if name == "weight" and isinstance(layer, KINDS[kind]):
                yield owner, tensor.read()
                break


@contextmanager
def others_fixed(model: nn.Module, kind: Kind) -> Iterator[None]:
    """Keep the layers of the other kind as they are, biases too, while those of this kind are retrained."""
    own = {id(parameter) for parameter in _parameters(model, kind)}
    others = [
        parameter
        for other in KINDS
        if other != kind
        for parameter in _parameters(model, other)
        if parameter.requires_grad and id(parameter) not in own
    ]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def _parameters(model: nn.Module, kind: Kind) -> list[nn.Parameter]:
    return [
        parameter for layer in model.modules() if isinstance(layer, KINDS[kind]) for parameter in layer.parameters()
    ]


class Dropout(NamedTuple):
    """A dropout of the network that was trained, and the layer whose units it drops."""

    name: str
    ratio: float
    layer: str
    connections: int


def read_dropouts(model: nn.Module) -> list[Dropout]:
    """Return the dropouts of a network, each with the last layer that stands before it."""
    found = []
    weights = {name: weight for kind in KINDS for name, weight in layers(model, kind)}
    before = None
    for name, module in model.named_modules():
        if name in weights:
            before = name
        elif isinstance(module, _DropoutNd) and before is not None:
            found.append(Dropout(name, module.p, before, int(weights[before].count_nonzero())))
    return found


def dropout_ratio(original: float, connections_before: int, connections_left: int) -> float:
    """Return D_r = D_o · √(C_r ÷ C_o): fewer connections overfit less (equation 2)."""
    return original * math.sqrt(connections_left / connections_before)


def adjust_dropout_(model: nn.Module, dropouts: list[Dropout]) -> None:
    """Set every dropout to what is right for the connections that its layer still has."""
    weights = {name: weight for kind in KINDS for name, weight in layers(model, kind)}
    for dropout in dropouts:
        module = model.get_submodule(dropout.name)
        assert isinstance(module, _DropoutNd)
        left = int(weights[dropout.layer].count_nonzero())
        module.p = dropout_ratio(dropout.ratio, dropout.connections, left)
