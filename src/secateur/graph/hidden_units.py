"""Hidden units, which can be reordered or removed without changing what a network computes.

Units have no order of their own: where layer B reads nothing but layer A, through functions of each unit alone, row k
of A and column k of B can move together. Sorted by how many weights they have, units make a smaller file, since
neighbouring rows are then alike. A unit that no layer reads need not be computed.

Such pairs are found by tracing the forward pass (torch.fx): two linear layers, two convolutions, or a convolution whose
images, in batches, are flattened for a linear layer. Everything else stays as it is.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.graph.nodes import has_hooks
from secateur.graph.trace import symbolic_trace

# What acts on each number alone, and what acts on the pixels of an image: neither mixes the channels of a convolution.
_EACH = {
    *(torch.relu, torch.tanh, torch.sigmoid, "relu", "tanh", "sigmoid", "contiguous"),
    *(F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.hardtanh, F.relu6, F.tanh, F.sigmoid, F.dropout),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.Identity),
    nn.Dropout,
}
_LEAVES_NO_ZERO = {torch.sigmoid, "sigmoid", F.sigmoid, nn.Sigmoid, F.hardtanh, nn.Hardtanh}  # the last two may not
_PIXELS = {F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}
_FLATTEN = {torch.flatten, "flatten", nn.Flatten}


@dataclass(frozen=True)
class HiddenUnits:
    """Units made by one layer and read by one other, which has one or more columns for each: pixels, once flattened."""

    maker: nn.Linear | nn.Conv2d
    reader: nn.Linear | nn.Conv2d
    keeps_zeros: bool  # whether what lies between makes zeros of zeros

    def read_weights(self) -> Tensor:
        """View the reader's weight as (rows, units, the rest)."""
        return self.reader.weight.detach().view(len(self.reader.weight), len(self.maker.weight), -1)

    def weights_of_each(self) -> tuple[Tensor, Tensor]:
        """Count the weights into each unit, and out of it."""
        into = self.maker.weight.detach().flatten(1).count_nonzero(1)
        return into, self.read_weights().count_nonzero((0, 2))


def hidden_units(model: nn.Module) -> list[HiddenUnits]:
    """Find the units between two layers of `model`, in the order of its forward pass."""
    try:
        graph = symbolic_trace(model).graph
    except Exception:  # a forward may raise anything when it is given a tracer
        return []
    layers = dict(model.named_modules())
    used = Counter(node.target for node in graph.nodes if node.op == "call_module")
    # A tensor that the forward also reads as an attribute may be used in any way.
    used.update(str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr")
    memory = Counter(parameter.data_ptr() for _, parameter in model.named_parameters(remove_duplicate=False))

    def movable(node: fx.Node) -> nn.Linear | nn.Conv2d | None:
        layer = _layer(node, layers)
        if layer is None or used[node.target] > 1 or has_hooks(layer):
            return None
        return layer if all(memory[parameter.data_ptr()] == 1 for parameter in layer.parameters()) else None

    found: list[HiddenUnits] = []
    for node in graph.nodes:
        maker = movable(node)
        between, end = _follow(node, layers) if maker is not None else ([], None)
        reader = movable(end) if end is not None else None
        if maker is not None and reader is not None:
            found += _pair(maker, reader, between)
    return found


def without_dead_units(model: nn.Module) -> nn.Module:
    """Return a copy in which a hidden unit that no layer reads has no weights and no bias; the function is the same."""
    plain = copy.deepcopy(model)
    for units in reversed(hidden_units(plain)):  # from the output on: a layer may lose its only readers
        dead = units.weights_of_each()[1] == 0
        with torch.no_grad():
            units.maker.weight[dead] = 0
            if units.maker.bias is not None:
                units.maker.bias[dead] = 0
    return plain


def with_sorted_units(model: nn.Module) -> nn.Module:
    """Return a copy whose hidden units are sorted by their weights, most first; the function is the same."""
    plain = copy.deepcopy(model)
    for units in hidden_units(plain):
        into, out_of = units.weights_of_each()
        order = torch.argsort((2 * into + 1) * (2 * out_of + 1), descending=True, stable=True)
        with torch.no_grad():
            units.maker.weight.copy_(units.maker.weight[order])
            if units.maker.bias is not None:
                units.maker.bias.copy_(units.maker.bias[order])
            moved = units.read_weights()[:, order]
            units.reader.weight.copy_(moved.reshape(units.reader.weight.shape))
    return plain


def _layer(node: fx.Node, layers: dict[str, nn.Module]) -> nn.Linear | nn.Conv2d | None:
    """Return the layer that a node calls, if its rows are its units and its weight and bias are its own."""
    layer = layers.get(str(node.target)) if node.op == "call_module" else None
    if type(layer) is not nn.Linear and not (type(layer) is nn.Conv2d and layer.groups == 1):
        return None
    return layer if set(layer._parameters) == {"weight", "bias"} else None


def _follow(start: fx.Node, layers: dict[str, nn.Module]) -> tuple[list[object], fx.Node | None]:
    """Follow the single path from a layer to the next one, and return what lies between."""
    between: list[object] = []
    for node in _only_users(start):
        module = layers.get(str(node.target)) if node.op == "call_module" else None
        if _layer(node, layers) is not None:
            return between, node
        kind: object = node.target if module is None else type(module)
        if (kind in _FLATTEN and not _keeps_images_apart(node, module)) or (module is not None and has_hooks(module)):
            break
        between.append(kind)
    return between, None


def _only_users(node: fx.Node) -> Iterator[fx.Node]:
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.all_input_nodes != [node]:
            return
        yield user
        node = user


def _keeps_images_apart(node: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.Flatten):
        return module.start_dim == 1 and module.end_dim == -1
    return node.args[1:] == (1,) and not node.kwargs


def _pair(maker: nn.Linear | nn.Conv2d, reader: nn.Linear | nn.Conv2d, between: list[object]) -> Iterator[HiddenUnits]:
    """Yield the units, if each stays by itself on the way: batches of vectors, of images, or of images made vectors."""
    made, read = len(maker.weight), reader.weight.shape[1]
    if isinstance(maker, nn.Linear):
        fits = isinstance(reader, nn.Linear) and read == made and set(between) <= _EACH
    elif isinstance(reader, nn.Conv2d):
        fits = read == made and set(between) <= _EACH | _PIXELS
    else:
        flattened = [kind for kind in between if kind in _FLATTEN]
        fits = len(flattened) == 1 and read % made == 0 and set(between) <= _EACH | _PIXELS | _FLATTEN
    if fits:
        yield HiddenUnits(maker, reader, not set(between) & _LEAVES_NO_ZERO)
