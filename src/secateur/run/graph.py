"""The forward pass of a network as a graph, made simpler where that changes nothing, and the sparse layers in it.

A graph comes from torch.fx. What cannot be traced as a whole is traced in its largest parts that can be.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from secateur.encode.units import HiddenUnits, hidden_units
from secateur.run.layers import Activation, Layer, Pool
from secateur.run.weights import SparseWeight

Weights: TypeAlias = dict[str, SparseWeight]

_RELU = {F.relu, torch.relu, "relu", "relu_", F.relu_, torch.relu_}
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_FLATTEN = {torch.flatten, "flatten"}
_RESHAPE = {"view", "reshape", torch.reshape}
_TINY = float(np.finfo(np.float32).tiny)


def trace(model: nn.Module, given: int = 1) -> fx.GraphModule | None:
    """Return the graph of a model in evaluation mode, or None if its forward cannot be traced.

    `given` inputs are taken to be tensors; other arguments of the forward keep their defaults.
    """
    inner = (
        nn.Sequential(model) if type(model).__module__.startswith("torch.nn") and not _has_children(model) else model
    )
    parameters = list(inspect.signature(inner.forward).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    fixed = {one.name: one.default for one in positional[given:] if one.default is not inspect.Parameter.empty}
    try:
        traced = fx.symbolic_trace(inner, concrete_args=fixed or None)
    except Exception:  # a forward may raise anything when it is given a tracer
        return None
    return traced


def _has_children(model: nn.Module) -> bool:
    return next(model.children(), None) is not None


@dataclass(frozen=True)
class Region:
    """A part of a model that could be traced: where it stands in the model, "" for the whole, and its graph."""

    path: str
    graph: fx.GraphModule


def regions(model: nn.Module, given: int) -> list[Region]:
    """Return the largest parts of a model that can be traced and hold layers of ours."""
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)}).eval()
    return list(_regions(shared, "", given))


def _regions(model: nn.Module, path: str, given: int) -> Iterator[Region]:
    if not any(Layer.of_kind(module) for module in model.modules()) or _has_hooks(model):
        return
    graph = trace(model, given)
    if graph is not None:
        yield Region(path, graph)
        return
    for name, child in model.named_children():
        yield from _regions(child, f"{path}.{name}" if path else name, 1)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


# ---- simplification: what is left computes the same ----


def simplify(graph: fx.GraphModule) -> None:
    """Drop what does nothing in evaluation mode, fold batch norms, and remove units that no one can see."""
    _drop_identities(graph)
    _fold_norms(graph)
    graph.graph.lint()
    graph.recompile()
    for units in reversed(hidden_units(graph)):  # from the output on: a layer may lose its only readers
        _shrink(units)


_IDLE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Identity)
_IDLE_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


def _drop_identities(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        module = module_of(graph, node)
        if module is not None:
            idle = type(module) in _IDLE and not _has_hooks(module)
        else:
            idle = node.target in _IDLE_FUNCTIONS and node.kwargs.get("training", True) is False
        if idle and node.args and not node.kwargs.get("inplace"):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)


def _fold_norms(graph: fx.GraphModule) -> None:
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    for node in list(graph.graph.nodes):
        norm, before = module_of(graph, node), node.args[0] if node.args else None
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) or not isinstance(before, fx.Node):
            continue
        layer = module_of(graph, before)
        fits = (isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)) or (
            isinstance(layer, nn.Linear) and isinstance(norm, nn.BatchNorm1d) and Layer.of_kind(layer)
        )
        if (
            not fits
            or type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d)
            or layer is None
            or not Layer.of_kind(layer)
            or norm.running_mean is None
            or norm.training
            or len(before.users) > 1
            or calls[str(before.target)] + calls[str(node.target)] > 2
            or _has_hooks(layer)
            or _has_hooks(norm)
            or layer.weight.is_meta
        ):
            continue
        if isinstance(layer, nn.Linear):
            if layer.in_features and _is_sequence(before):
                continue  # a batch norm over (samples, channels, length) reads another dimension than the layer writes
            folded: nn.Module = fuse_linear_bn_eval(layer, norm)
        else:
            assert isinstance(layer, nn.Conv2d)
            folded = fuse_conv_bn_eval(layer, norm)
        if not all(parameter.isfinite().all() for parameter in folded.parameters()):
            continue
        graph.set_submodule(str(before.target), folded.requires_grad_(False))
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)


def _is_sequence(node: fx.Node) -> bool:
    shape = node.meta.get("shape")
    return shape is None or len(shape) != 2


def _shrink(units: HiddenUnits) -> None:
    """Remove units that are never read, and those that are always zero: their rows, and the columns that read them."""
    if units.maker.weight.is_meta or units.reader.weight.is_meta:
        return
    into, out_of = units.weights_of_each()
    bias = units.maker.bias
    silent = into == 0 if bias is None else (into == 0) & (bias.detach() == 0)
    gone = (out_of == 0) | (silent & units.keeps_zeros)
    if not gone.any() or (isinstance(units.maker, nn.Conv2d) != isinstance(units.reader, nn.Conv2d)):
        return
    kept = torch.nonzero(~gone).flatten()
    if len(kept) == 0:
        kept = kept.new_zeros(1)  # a layer without units is more trouble than it costs
    units.maker.weight = nn.Parameter(units.maker.weight.detach()[kept], requires_grad=False)
    if bias is not None:
        units.maker.bias = nn.Parameter(bias.detach()[kept], requires_grad=False)
    units.reader.weight = nn.Parameter(units.reader.weight.detach()[:, kept].contiguous(), requires_grad=False)
    for layer, size in (
        (units.maker, ("out_features", "out_channels")),
        (units.reader, ("in_features", "in_channels")),
    ):
        setattr(layer, size[isinstance(layer, nn.Conv2d)], len(kept))


def flush_denormals(graph: nn.Module) -> None:
    """Replace denormal weights by zeros, in copies: they slow down whoever multiplies with them."""
    for module in graph.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or parameter.is_meta or parameter.dtype is not torch.float32:
                continue
            denormal = (parameter.detach().abs() < _TINY) & (parameter.detach() != 0)
            if denormal.any():
                kept = torch.where(denormal, torch.zeros(()), parameter.detach())
                setattr(module, name, nn.Parameter(kept, requires_grad=False))


# ---- units ----


@dataclass
class Unit:
    """A layer with what follows it and can be done in the same call."""

    name: str  # of the layer's module
    layer: Layer
    module: nn.Module
    source: fx.Node
    nodes: list[fx.Node]
    residual: fx.Node | None = None
    flattens: bool = False
    activation_in_place: bool = field(default=False)

    @property
    def output(self) -> fx.Node:
        """What the rest of the network reads."""
        return self.nodes[-1]

    def dense(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the same as the network did, with the dense layer."""
        y: Tensor = self.module(x.flatten(1) if self.flattens else x)
        if residual is not None:
            y = y + residual
        if self.layer.activation == "relu":
            y = F.relu(y)
        elif self.layer.activation != "none":
            y = F.gelu(y, approximate="none" if self.layer.activation == "gelu" else "tanh")
        if self.layer.pool is not None:
            y = F.max_pool2d(y, self.layer.pool.size, self.layer.pool.stride)
        return y


def units(graph: fx.GraphModule, weights: Weights | None = None) -> list[Unit]:
    """Find the layers of a graph, in its order, each with the activation, pooling or residual that only it feeds."""
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.graph.nodes if node.op == "get_attr"}
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    found: list[Unit] = []
    taken: set[fx.Node] = set()
    for node in graph.graph.nodes:
        module = module_of(graph, node)
        name = str(node.target)
        if (
            module is None
            or calls[name] > 1
            or name in read
            or _has_hooks(module)
            or node.kwargs
            or len(node.args) != 1
        ):
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


def module_of(graph: fx.GraphModule, node: object) -> nn.Module | None:
    """Return the module that a node calls."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    return graph.get_submodule(str(node.target))


def _take_flatten(graph: fx.GraphModule, unit: Unit) -> None:
    node = unit.source
    if unit.layer.window is not None or len(node.users) > 1 or not node.args or not isinstance(node.args[0], fx.Node):
        return
    module = module_of(graph, node)
    flat = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
    if node.op in ("call_function", "call_method"):
        arguments = (*node.args[1:], *node.kwargs.values())
        flat = node.target in _FLATTEN and (arguments == (1,) or arguments == (1, -1))
        flat = flat or (node.target in _RESHAPE and _keeps_samples(arguments, node.args[0], unit.layer.inputs))
    if flat:
        unit.source, unit.flattens = node.args[0], True


def _keeps_samples(arguments: tuple[Any, ...], x: fx.Node, features: int) -> bool:
    """Tell whether a reshape to (samples, features) leaves every sample its own."""
    if len(arguments) == 1 and isinstance(arguments[0], tuple | list):
        arguments = tuple(arguments[0])
    shape = x.meta.get("shape")
    if len(arguments) != 2 or shape is None or int(np.prod(shape[1:])) != features:
        return False
    first, second = arguments
    samples = isinstance(first, fx.Node) and (
        (first.target == "size" and first.args == (x, 0))
        or (first.target is operator.getitem and first.args[1] == 0 and _is_shape(first.args[0], x))
    )
    return (samples and second in (-1, features)) or (first == -1 and second == features)


def _is_shape(node: object, x: fx.Node) -> bool:
    return isinstance(node, fx.Node) and (
        (node.target is getattr and node.args == (x, "shape")) or (node.target == "size" and node.args == (x,))
    )


def _take_rest(graph: fx.GraphModule, unit: Unit, order: dict[fx.Node, int], taken: set[fx.Node]) -> None:
    """Let the unit grow by the residual, the activation and the pooling that follow, as long as no one else looks."""
    while len(unit.output.users) == 1:
        node = next(iter(unit.output.users))
        module = module_of(graph, node)
        if node in taken or (module is not None and _has_hooks(module)):
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
    return other if other.meta.get("shape") is not None else None
