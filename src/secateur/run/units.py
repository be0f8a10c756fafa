"""The layers of a graph, each with what can be done in the same call, and those that follow each other."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.run.layers import Activation, Flattens, Layer, Pool, flattened
from secateur.run.simplify import read_by_themselves
from secateur.run.tracing import changes_in_place, counts_samples, has_hooks, module_of, undisturbed
from secateur.run.weights import SparseWeight

_RELU = {F.relu, torch.relu, "relu", "relu_", F.relu_, torch.relu_}
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_FLATTEN = {torch.flatten, "flatten"}
_RESHAPE = {"view", "reshape", torch.reshape}


@dataclass
class Unit:
    """A layer with what follows it and can be done in the same call."""

    name: str  # of the layer's module
    layer: Layer
    module: nn.Module
    source: fx.Node
    nodes: list[fx.Node]
    residual: fx.Node | None = None
    flattens: Flattens | None = None

    @property
    def output(self) -> fx.Node:
        """What the rest of the network reads."""
        return self.nodes[-1]

    def dense(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the same as the network did, with the dense layer."""
        return self.layer.finish(self.module(flattened(x, self.flattens, self.layer.inputs)), residual)


def units(graph: fx.GraphModule, weights: Mapping[str, SparseWeight] | None = None) -> list[Unit]:
    """Find the layers of a graph, in its order, each with the activation, pooling or residual that only it feeds."""
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    read = read_by_themselves(graph)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    found: list[Unit] = []
    taken: set[fx.Node] = set()
    for node in graph.graph.nodes:
        module = module_of(graph, node)
        name = str(node.target)
        if module is None or calls[name] > 1 or name in read or has_hooks(module) or node.kwargs or len(node.args) != 1:
            continue
        source = node.args[0]
        layer = Layer.of(module, (weights or {}).get(name))
        if layer is None or not isinstance(source, fx.Node):
            continue
        unit = Unit(name, layer, module, source, [node])
        _take_flatten(graph, unit)
        _take_rest(graph, unit, order, taken)
        taken.update(unit.nodes)
        found.append(unit)
    return found


def _take_flatten(graph: fx.GraphModule, unit: Unit) -> None:
    node = unit.source
    if unit.layer.window is not None or len(node.users) > 1 or not node.args or not isinstance(node.args[0], fx.Node):
        return
    module = module_of(graph, node)
    flat = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
    if node.op in ("call_function", "call_method"):
        dims = {"start_dim": 0, "end_dim": -1} | dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))
        flat = node.target in _FLATTEN and dims | node.kwargs == {"start_dim": 1, "end_dim": -1}
    if flat:
        unit.source, unit.flattens = node.args[0], "samples"
    elif node.op in ("call_function", "call_method") and node.target in _RESHAPE:
        arguments = (*node.args[1:], *node.kwargs.values())
        kind = _reshapes(arguments, node.args[0], unit.layer.inputs)
        if kind is not None:
            unit.source, unit.flattens = node.args[0], kind


def _reshapes(arguments: tuple[Any, ...], x: fx.Node, features: int) -> Flattens | None:
    """Tell how a reshape makes vectors of x, if it leaves every sample its own."""
    if len(arguments) == 1 and isinstance(arguments[0], tuple | list):
        arguments = tuple(arguments[0])
    shape = x.meta.get("shape")
    if len(arguments) != 2 or shape is None or int(np.prod(shape[1:])) != features:
        return None
    first, second = arguments
    if counts_samples(first, x) and second in (-1, features):
        return "samples"
    return "features" if first == -1 and second == features else None


def _take_rest(graph: fx.GraphModule, unit: Unit, order: dict[fx.Node, int], taken: set[fx.Node]) -> None:
    """Let the unit grow by the residual, the activation and the pooling that follow, as long as no one else looks."""
    while len(unit.output.users) == 1:
        node = next(iter(unit.output.users))
        module = module_of(graph, node)
        if node in taken or (module is not None and has_hooks(module)):
            return
        # All of it will be computed where its last part stands: what it reads must still be the same there.
        if not undisturbed(unit.nodes[0], node, [*unit.nodes, node]):
            return
        activation = _activation(node, module)
        if activation is not None and unit.layer.activation == "none" and unit.layer.pool is None:
            unit.layer = replace(unit.layer, activation=activation)
        elif (pool := _pool(node, module)) is not None and unit.layer.window is not None and unit.layer.pool is None:
            if not isinstance(unit.module, nn.Conv2d) or unit.residual is not None:
                return
            unit.layer = replace(unit.layer, pool=pool)
        elif (other := _residual(node, unit)) is not None and _may_take(unit, other, order):
            unit.residual = other
        else:
            return
        unit.nodes.append(node)


def _may_take(unit: Unit, other: fx.Node, order: dict[fx.Node, int]) -> bool:
    plain = unit.residual is None and unit.layer.activation == "none" and unit.layer.pool is None
    return plain and order[other] < order[unit.output]


def _activation(node: fx.Node, module: nn.Module | None) -> Activation | None:
    if type(module) is nn.ReLU or (module is None and node.target in _RELU):
        return "relu"
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    if module is None and node.target is F.gelu:
        return "gelu" if node.kwargs.get("approximate", "none") == "none" else "gelu_tanh"
    return None


def _pool(node: fx.Node, module: nn.Module | None) -> Pool | None:
    if type(module) is nn.MaxPool2d:
        given: dict[str, Any] = {name: getattr(module, name) for name in _POOL}
    elif module is None and node.target is F.max_pool2d:
        given = dict(zip(_POOL, node.args[1:], strict=False)) | dict(node.kwargs)
    else:
        return None
    size, stride = _square(given.pop("kernel_size")), given.pop("stride", None)
    stride = size if stride is None else _square(stride)
    usual = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    if any(value not in (usual[name], (usual[name],) * 2) for name, value in given.items()):
        return None
    return Pool(size, stride) if size is not None and stride is not None else None


_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _square(value: Any) -> int | None:
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return value if isinstance(value, int) and value > 0 else None


def _residual(node: fx.Node, unit: Unit) -> fx.Node | None:
    """Return what is added to the unit's output, if its shape is the same."""
    if node.op == "call_module" or node.target not in _ADD or node.kwargs or len(node.args) != 2:
        return None
    other = next((one for one in node.args if one is not unit.output), None)
    if not isinstance(other, fx.Node) or other.meta.get("shape") != unit.output.meta.get("shape"):
        return None
    if other.meta.get("dtype") is not torch.float32 or (changes_in_place(node) and node.args[0] is other):
        return None
    return other if other.meta.get("shape") is not None else None


def runs(found: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Yield layers that feed each other and nobody else, as long as there are any."""
    run: list[Unit] = []
    for unit in found:
        before = run[-1] if run else None
        joined = before is not None and before.residual is None and _feeds(before, unit)
        own = {node for one in (*run, unit) for node in one.nodes}
        joined = joined and undisturbed(run[0].nodes[0], unit.output, own)
        if run and not joined:
            yield run
            run = []
        run.append(unit)
    if run:
        yield run


def _feeds(before: Unit, unit: Unit) -> bool:
    if unit.source is not before.output or len(before.output.users) != 1:
        return False
    # Vectors of images are what the next layer reads, in both; but not the last dimension of something larger.
    if unit.flattens:
        return len(before.output.meta["shape"]) == 1 + before.layer.dimensions
    return before.layer.dimensions == unit.layer.dimensions
