"""The forward pass of a network as a graph, made simpler where that changes nothing, and the sparse layers in it.

A graph comes from torch.fx. What cannot be traced as a whole is traced in its largest parts that can be.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import has_side_effect
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from secateur.encode.units import HiddenUnits, hidden_units
from secateur.run.layers import Activation, Layer, Pool
from secateur.run.weights import TINY, SparseWeight

Weights: TypeAlias = dict[str, SparseWeight]

_RELU = {F.relu, torch.relu, "relu", "relu_", F.relu_, torch.relu_}
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_FLATTEN = {torch.flatten, "flatten"}
_RESHAPE = {"view", "reshape", torch.reshape}


def trace(model: nn.Module, given: int = 1) -> fx.GraphModule | None:
    """Return the graph of a model in evaluation mode, or None if its forward cannot be traced.

    `given` inputs are taken to be tensors; other arguments of the forward keep their defaults.
    """
    inner = (
        nn.Sequential(model).train(model.training)
        if type(model).__module__.startswith("torch.nn") and not _has_children(model)
        else model
    )
    try:
        return _trace(inner, given)
    except Exception:  # a forward may raise anything when it is given a tracer
        return None


def _trace(model: nn.Module, given: int) -> fx.GraphModule:
    parameters = list(inspect.signature(model.forward).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    fixed = [one for one in positional[given:] if one.default is not one.empty]
    if not fixed:
        return fx.symbolic_trace(model)
    # Not `concrete_args`: those graphs cannot be copied without spoiling all tracing that comes after.
    tracer = _TracerOfGiven(positional[:given], fixed)
    graph = tracer.trace(model)
    graph._tracer_cls = fx.Tracer  # who unpickles the graph traces its own forward, with all arguments
    return fx.GraphModule(model, graph, type(model).__name__)


class _TracerOfGiven(fx.Tracer):
    """Traces a forward with its first arguments only; the others stay arguments, and must have their defaults."""

    def __init__(self, given: Sequence[inspect.Parameter], fixed: Sequence[inspect.Parameter]) -> None:
        super().__init__()
        self.given, self.fixed = given, fixed

    def create_args_for_root(self, root_fn: Any, *_: object) -> tuple[Any, list[Any]]:
        """Return the function to trace, and what it is given."""

        def made(one: inspect.Parameter) -> fx.Proxy:
            return self.create_proxy("placeholder", one.name, () if one.default is one.empty else (one.default,), {})

        given = [made(one) for one in self.given]
        for proxy, one in [(made(one), one) for one in self.fixed]:
            self.create_proxy("call_function", require_default, (proxy, one.default, one.name), {})
        return root_fn, [self.root, *given]


@has_side_effect
def require_default(value: Any, default: Any, name: str) -> Any:
    """Refuse an argument that the network was not compiled for."""
    if isinstance(value, fx.Proxy):  # a compiled network that was pickled is traced anew
        return value.tracer.create_proxy("call_function", require_default, (value, default, name), {})
    if value is not default and (isinstance(value, Tensor) or value != default):
        raise ValueError(f"the network was compiled for {name}={default!r}: give it in the example to change that")
    return None


def _has_children(model: nn.Module) -> bool:
    return next(model.children(), None) is not None


@dataclass(frozen=True)
class Region:
    """A part of a model that could be traced: where it stands in the model, "" for the whole, and its graph."""

    path: str
    graph: fx.GraphModule


def regions(model: nn.Module, given: int, of_parts: Mapping[str, int] | None = None) -> list[Region]:
    """Return the largest parts of a model that can be traced and hold layers of ours.

    The model is called with `given` inputs, its parts with as many as `of_parts` says, or one.
    """
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)}).eval()
    return list(_regions(shared, "", given, of_parts or {}))


def _regions(model: nn.Module, path: str, given: int, of_parts: Mapping[str, int]) -> Iterator[Region]:
    if not any(Layer.of_kind(module) for module in model.modules()):
        return
    # A graph calls the hooks of the modules in it, but forgets those of modules that it was traced through.
    watched = _has_hooks(model) or any(_has_hooks(module) for module in model.modules() if _has_children(module))
    graph = None if watched else trace(model, given)
    if graph is not None:
        yield Region(path, graph)
        return
    for name, child in model.named_children():
        inner = f"{path}.{name}" if path else name
        yield from _regions(child, inner, of_parts.get(inner, 1), of_parts)


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
    calls.update(_read_by_themselves(graph))
    for node in list(graph.graph.nodes):
        norm, before = module_of(graph, node), node.args[0] if node.args else None
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) or not isinstance(before, fx.Node):
            continue
        layer = module_of(graph, before)
        # A batch norm over (samples, channels, length) reads another dimension than a linear layer writes.
        fits = (type(layer), type(norm)) == (nn.Conv2d, nn.BatchNorm2d) or (
            (type(layer), type(norm)) == (nn.Linear, nn.BatchNorm1d) and len(before.meta.get("shape") or ()) == 2
        )
        if (
            not fits
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
            folded: nn.Module = fuse_linear_bn_eval(layer, norm)
        else:
            assert isinstance(layer, nn.Conv2d)
            folded = fuse_conv_bn_eval(layer, norm)
        if not all(parameter.isfinite().all() for parameter in folded.parameters()):
            continue
        graph.set_submodule(str(before.target), folded.requires_grad_(False))
        node.replace_all_uses_with(before)
        graph.graph.erase_node(node)


def _read_by_themselves(graph: fx.GraphModule) -> set[str]:
    """Name the modules whose tensors the forward pass also reads in ways that we do not know."""
    return {str(node.target).rpartition(".")[0] for node in graph.graph.nodes if node.op == "get_attr"}


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
            denormal = (parameter.detach().abs() < TINY) & (parameter.detach() != 0)
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

    @property
    def output(self) -> fx.Node:
        """What the rest of the network reads."""
        return self.nodes[-1]

    def dense(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the same as the network did, with the dense layer."""
        return self.layer.finish(self.module(x.flatten(1) if self.flattens else x), residual)


def units(graph: fx.GraphModule, weights: Weights | None = None) -> list[Unit]:
    """Find the layers of a graph, in its order, each with the activation, pooling or residual that only it feeds."""
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    read = _read_by_themselves(graph)
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


_IN_PLACE = {getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
_IN_PLACE |= {operator.iand, operator.ior, operator.ixor, operator.imatmul, operator.setitem, operator.delitem}


def changes_in_place(node: fx.Node) -> bool:
    """Tell whether a node writes into what it reads, as far as its name says."""
    if node.op == "call_module":
        module = node.graph.owning_module and module_of(node.graph.owning_module, node)
        return bool(getattr(module, "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__")
    # A flag given by position may be any other flag: then it is taken for this one.
    flagged = bool(node.kwargs.get("inplace")) or "out" in node.kwargs or any(one is True for one in node.args)
    return named or flagged or node.target in _IN_PLACE


def undisturbed(first: fx.Node, last: fx.Node, own: Container[fx.Node]) -> bool:
    """Tell whether nothing is changed in place from one node to another, other than by `own` nodes."""
    node = first
    while node is not last:
        node = node.next
        if node not in own and changes_in_place(node):
            return False
    return True


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
