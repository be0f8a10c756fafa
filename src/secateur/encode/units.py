"""Hidden units, which may change places or go without changing what a network computes.

Units have no order of their own: where layer B reads nothing but layer A, through functions of each unit alone, row k
of A and column k of B can move together. Sorted by how many weights they have, units make a smaller file, since rows
beside each other are then alike. A unit that nobody reads need not be computed.

Such pairs are found by tracing the forward pass (torch.fx). What cannot be traced, or is not understood, stays as it
is.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

# What acts on each unit alone. Pooling and flattening keep the units of a convolution in order and apart.
_FUNCTIONS = {
    *(torch.relu, torch.tanh, torch.sigmoid, torch.flatten),
    *(F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.hardtanh, F.relu6, F.tanh, F.sigmoid),
    *(F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.dropout),
}
_METHODS = {"relu", "tanh", "sigmoid", "flatten", "contiguous"}
_MODULES = (
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.Identity),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Flatten),
)


@dataclass(frozen=True)
class HiddenUnits:
    """Units made by one layer and read by one other, which has `spread` columns for each: pixels, once flattened."""

    maker: nn.Linear | nn.Conv2d
    reader: nn.Linear | nn.Conv2d
    spread: int

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
        graph = fx.symbolic_trace(model).graph
    except Exception:  # a forward may raise anything when it is given a tracer
        return []
    layers = dict(model.named_modules())
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    memory = Counter(parameter.data_ptr() for _, parameter in model.named_parameters(remove_duplicate=False))
    found: list[HiddenUnits] = []
    for node in graph.nodes:
        maker = _layer(node, layers)
        reader_node, flattened = _follow(node, layers) if maker is not None else (None, False)
        reader = _layer(reader_node, layers) if reader_node is not None else None
        if maker is None or reader is None or reader_node is None:
            continue
        used_once = calls[node.target] == calls[reader_node.target] == 1
        if used_once and not any(memory[p.data_ptr()] > 1 for p in (*maker.parameters(), *reader.parameters())):
            found += _pair(maker, reader, flattened)
    return found


def without_dead_units(model: nn.Module) -> nn.Module:
    """Return a copy in which a hidden unit that nobody reads has no weights and no bias; the function is the same."""
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
    layer = layers.get(str(node.target)) if node.op == "call_module" else None
    if type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1):
        return layer
    return None


def _follow(start: fx.Node, layers: dict[str, nn.Module]) -> tuple[fx.Node | None, bool]:
    """Go on from a layer to the next one, as long as there is one way only and each unit stays by itself."""
    flattened = False
    for node in _only_users(start):
        if _layer(node, layers) is not None:
            return node, flattened
        kind = layers.get(str(node.target)) if node.op == "call_module" else None
        flattens = node.target in ("flatten", torch.flatten) or isinstance(kind, nn.Flatten)
        if flattens and not _keeps_images_apart(node, kind):
            return None, flattened
        flattened |= flattens
        known = node.op == "call_function" and node.target in _FUNCTIONS
        known |= node.op == "call_method" and node.target in _METHODS
        if not known and not isinstance(kind, _MODULES):
            return None, flattened
    return None, flattened


def _only_users(node: fx.Node) -> Iterator[fx.Node]:
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.all_input_nodes != [node]:
            return
        yield user
        node = user


def _keeps_images_apart(node: fx.Node, kind: nn.Module | None) -> bool:
    if isinstance(kind, nn.Flatten):
        return kind.start_dim == 1 and kind.end_dim == -1
    return node.args[1:] == (1,) and not node.kwargs


def _pair(maker: nn.Linear | nn.Conv2d, reader: nn.Linear | nn.Conv2d, flattened: bool) -> Iterator[HiddenUnits]:
    made, read = len(maker.weight), reader.weight.shape[1]
    from_pixels = isinstance(maker, nn.Conv2d) and isinstance(reader, nn.Linear)
    if from_pixels == flattened and read % made == 0 and (from_pixels or read == made):
        yield HiddenUnits(maker, reader, read // made)
