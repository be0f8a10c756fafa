"""Fusion: the layers of a graph, each with what can be computed in the same call, and sequences of them."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.graph.nodes import changes_in_place, counts_samples, has_hooks, module_of, read_directly, undisturbed
from secateur.run.sparse_layer import Activation, Flattens, Pool, SparseLayer, flattened
from secateur.run.sparse_weight import SparseWeight

_ACTIVATIONS: dict[object, Activation] = {
    **dict.fromkeys((nn.ReLU, F.relu, torch.relu, "relu", "relu_", F.relu_, torch.relu_), "relu"),
    **dict.fromkeys((nn.ReLU6, F.relu6), "relu6"),
    **dict.fromkeys((nn.SiLU, F.silu), "silu"),
    **dict.fromkeys((nn.Hardswish, F.hardswish), "hardswish"),
}
_CLAMPS: dict[object, dict[str, float]] = {
    **{name: {"min": -math.inf, "max": math.inf} for name in (torch.clamp, torch.clamp_, "clamp", "clamp_")},
    **{name: {"min_val": -1.0, "max_val": 1.0} for name in (F.hardtanh, F.hardtanh_)},
}
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_FLATTEN = {torch.flatten, "flatten"}
_RESHAPE = {"view", "reshape", torch.reshape}


@dataclass
class FusedLayer:
    """A layer with what follows it and can be done in the same call."""

    name: str  # of the layer's module
    layer: SparseLayer
    module: nn.Module
    source: fx.Node
    nodes: list[fx.Node]
    residual: fx.Node | None = None
    flattens: Flattens | None = None
    frame: tuple[int, int, int, int] | None = None  # zeros around what a convolution reads, as torch orders them

    @property
    def output(self) -> fx.Node:
        """What the rest of the network reads."""
        return self.nodes[-1]

    def dense(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the same as the network did, with the dense layer."""
        x = flattened(x, self.flattens, self.layer.inputs)
        if self.frame is not None:
            x = F.pad(x, self.frame[: 2 * (self.layer.dimensions - 1)])
        return self.layer.finish(self.module(x), residual)


def fused_layers(graph: fx.GraphModule, weights: Mapping[str, SparseWeight] | None = None) -> list[FusedLayer]:
    """Find the layers of a graph, in its order, each with the activation, pooling or residual that only it feeds."""
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    read = read_directly(graph)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    found: list[FusedLayer] = []
    taken: set[fx.Node] = set()
    for node in graph.graph.nodes:
        module = module_of(graph, node)
        name = str(node.target)
        if module is None or calls[name] > 1 or name in read or has_hooks(module) or node.kwargs or len(node.args) != 1:
            continue
        source = node.args[0]
        layer = SparseLayer.of(module, (weights or {}).get(name))
        if layer is None or not isinstance(source, fx.Node):
            continue
        fused = FusedLayer(name, layer, module, source, [node])
        _take_flatten(graph, fused)
        _take_frame(graph, fused)
        _take_rest(graph, fused, order, taken)
        taken.update(fused.nodes)
        found.append(fused)
    return found


def _take_flatten(graph: fx.GraphModule, fused: FusedLayer) -> None:
    node = fused.source
    if fused.layer.window is not None or len(node.users) > 1 or not node.args or not isinstance(node.args[0], fx.Node):
        return
    module = module_of(graph, node)
    flat = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
    if node.op in ("call_function", "call_method"):
        dims = {"start_dim": 0, "end_dim": -1} | dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))
        flat = node.target in _FLATTEN and dims | node.kwargs == {"start_dim": 1, "end_dim": -1}
    if flat:
        fused.source, fused.flattens = node.args[0], "samples"
    elif node.op in ("call_function", "call_method") and node.target in _RESHAPE:
        arguments = (*node.args[1:], *node.kwargs.values())
        kind = _reshapes(arguments, node.args[0], fused.layer.inputs)
        if kind is not None:
            fused.source, fused.flattens = node.args[0], kind


def _take_frame(graph: fx.GraphModule, fused: FusedLayer) -> None:
    """Let a convolution add the zeros itself that are put around its input."""
    node, window = fused.source, fused.layer.window
    if window is None or len(node.users) > 1 or not node.args or not isinstance(node.args[0], fx.Node):
        return
    module = module_of(graph, node)
    if isinstance(module, nn.ZeroPad1d | nn.ZeroPad2d) and not has_hooks(module):
        given: dict[str, Any] = {"pad": module.padding}
    elif node.target is F.pad:
        given = dict(zip(("pad", "mode", "value"), node.args[1:], strict=False)) | dict(node.kwargs)
    else:
        return
    sides = given.get("pad")
    if given.get("mode", "constant") != "constant" or given.get("value") not in (None, 0) or fused.layer.dimensions < 2:
        return
    if not isinstance(sides, list | tuple) or len(sides) > 2 * (fused.layer.dimensions - 1):
        return
    if all(isinstance(side, int) and side >= 0 for side in sides):
        left, right, top, bottom = (*sides, 0, 0, 0, 0)[:4]
        fused.source, fused.frame = node.args[0], (left, right, top, bottom)
        fused.layer = replace(fused.layer, window=window.framed_by(fused.frame))


def _reshapes(arguments: tuple[Any, ...], x: fx.Node, features: int) -> Flattens | None:
    """Return how a reshape makes vectors of x, if it leaves every sample its own."""
    if len(arguments) == 1 and isinstance(arguments[0], tuple | list):
        arguments = tuple(arguments[0])
    shape = x.meta.get("shape")
    if len(arguments) != 2 or shape is None or int(np.prod(shape[1:])) != features:
        return None
    first, second = arguments
    if counts_samples(first, x) and second in (-1, features):
        return "samples"
    return "features" if first == -1 and second == features else None


def _take_rest(graph: fx.GraphModule, fused: FusedLayer, order: dict[fx.Node, int], taken: set[fx.Node]) -> None:
    """Add the residual, the activation and the pooling that follow, as long as nothing else reads the output."""
    while len(fused.output.users) == 1:
        node = next(iter(fused.output.users))
        module = module_of(graph, node)
        if node in taken or (module is not None and has_hooks(module)):
            return
        # All of it will be computed at its last node: what it reads must not have changed until there.
        if not undisturbed(fused.nodes[0], node, [*fused.nodes, node]):
            return
        activation = _activation(node, module)
        if activation is not None and fused.layer.activation == "none" and fused.layer.pool is None:
            fused.layer = replace(fused.layer, activation=activation)
        elif (pool := _pool(node, module)) is not None and fused.layer.window is not None and fused.layer.pool is None:
            if not isinstance(fused.module, nn.Conv2d) or fused.residual is not None or fused.layer.is_depthwise:
                return
            fused.layer = replace(fused.layer, pool=pool)
        elif (other := _residual(node, fused)) is not None and _may_take(fused, other, order):
            fused.residual = other
        else:
            return
        fused.nodes.append(node)


def _may_take(fused: FusedLayer, other: fx.Node, order: dict[fx.Node, int]) -> bool:
    plain = fused.residual is None and fused.layer.activation == "none" and fused.layer.pool is None
    return plain and order[other] < order[fused.output]


def _activation(node: fx.Node, module: nn.Module | None) -> Activation | None:
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    if module is None and node.target is F.gelu:
        return "gelu" if node.kwargs.get("approximate", "none") == "none" else "gelu_tanh"
    bounds = _bounds(node, module)
    if bounds is not None:
        return "relu" if bounds == (0, math.inf) else "relu6" if bounds == (0, 6) else None
    return _ACTIVATIONS.get(node.target if module is None else type(module))


def _bounds(node: fx.Node, module: nn.Module | None) -> tuple[float, float] | None:
    """Return what a clamp limits numbers to, if they are constants."""
    if type(module) is nn.Hardtanh:
        return module.min_val, module.max_val
    usual = _CLAMPS.get(node.target) if module is None else None
    if usual is None:
        return None
    given = {**usual, **dict(zip(usual, node.args[1:], strict=False)), **node.kwargs}
    least, most = (one if given[name] is None else given[name] for name, one in usual.items())
    return (least, most) if isinstance(least, int | float) and isinstance(most, int | float) else None


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


def _residual(node: fx.Node, fused: FusedLayer) -> fx.Node | None:
    """Return what is added to the layer's output, if its shape is the same."""
    if node.op == "call_module" or node.target not in _ADD or node.kwargs or len(node.args) != 2:
        return None
    other = next((one for one in node.args if one is not fused.output), None)
    if not isinstance(other, fx.Node) or other.meta.get("shape") != fused.output.meta.get("shape"):
        return None
    if other.meta.get("dtype") is not torch.float32 or (changes_in_place(node) and node.args[0] is other):
        return None
    return other if other.meta.get("shape") is not None else None


def sequences(found: Sequence[FusedLayer]) -> Iterator[list[FusedLayer]]:
    """Yield the longest sequences of layers that feed each other and nothing else."""
    sequence: list[FusedLayer] = []
    for fused in found:
        before = sequence[-1] if sequence else None
        joined = before is not None and before.residual is None and _feeds(before, fused)
        own = {node for one in (*sequence, fused) for node in one.nodes}
        joined = joined and undisturbed(sequence[0].nodes[0], fused.output, own)
        if sequence and not joined:
            yield sequence
            sequence = []
        sequence.append(fused)
    if sequence:
        yield sequence


def _feeds(before: FusedLayer, fused: FusedLayer) -> bool:
    if fused.source is not before.output or len(before.output.users) != 1:
        return False
    # Vectors of images are what the next layer reads, in both; but not the last dimension of something larger.
    if fused.flattens:
        return len(before.output.meta["shape"]) == 1 + before.layer.dimensions
    return before.layer.dimensions == fused.layer.dimensions
