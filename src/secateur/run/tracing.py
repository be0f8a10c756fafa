"""The forward pass of a network as a graph of torch.fx: of the whole, or of its largest parts that can be traced."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import has_side_effect

from secateur.run.layers import Layer
from secateur.run.trial import fresh, writes
from secateur.symbolic import TRACING, symbolic_trace


def trace(model: nn.Module, given: int = 1) -> fx.GraphModule | None:
    """Return the graph of a model in evaluation mode, or None if its forward cannot be traced.

    `given` inputs are taken to be tensors; other arguments of the forward keep their defaults.
    """
    inner = (
        nn.Sequential(model).train(model.training)
        if type(model).__module__.startswith("torch.nn") and not _has_children(model)
        else model
    )
    state = [(buffer, writes(buffer)) for buffer in inner.buffers()]
    try:
        graph = _trace(inner, given)
    except Exception:  # a forward may raise anything when it is given a tracer
        return None
    # What a forward writes into its buffers is written while it is traced, and missing in the graph.
    same = [(buffer, writes(buffer)) for buffer in inner.buffers()]
    unchanged = len(same) == len(state) and all(
        one is other and times == before for (one, times), (other, before) in zip(same, state, strict=True)
    )
    return graph if unchanged else None


def _trace(model: nn.Module, given: int) -> fx.GraphModule:
    parameters = list(inspect.signature(model.forward).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    fixed = [one for one in positional[given:] if one.default is not one.empty]
    if not fixed and not any(one.kind is one.KEYWORD_ONLY for one in parameters):
        return symbolic_trace(model)
    # Not `concrete_args`: those graphs cannot be copied without spoiling all tracing that comes after.
    tracer = _TracerOfGiven(positional[:given], fixed)
    with TRACING:
        graph = tracer.trace(model)
    graph._tracer_cls = fx.Tracer  # who unpickles the graph traces its own forward, with all arguments
    return fx.GraphModule(model, graph, type(model).__name__)


class _TracerOfGiven(fx.Tracer):
    """Traces a forward with its first arguments only; the others stay arguments, and must have their defaults.

    Arguments that can only be given by name are no arguments of the graph.
    """

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
    """A part of a model that could be traced: where it stands in the model, "" for the whole, and its graph.

    A part that `is_layer` itself is the only one in its graph, and called "0" there.
    """

    path: str
    graph: fx.GraphModule
    is_layer: bool = False

    def name_of(self, layer: str) -> str:
        """Return the name in the model of a layer of the graph."""
        if not self.path:
            return layer
        return self.path if self.is_layer else f"{self.path}.{layer}"


def regions(model: nn.Module, given: int, of_parts: Mapping[str, int] | None = None) -> list[Region]:
    """Return the largest parts of a model that can be traced and hold layers of ours.

    Torch's own modules are not looked into by a trace, such as the layers of a transformer: they have parts of their
    own. The model is called with `given` inputs, its parts with as many as `of_parts` says; a part that it does not
    name is not called as a whole, so that only its parts are looked at.
    """
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)}).eval()
    return list(_regions(shared, "", given, of_parts))


def _regions(model: nn.Module, path: str, given: int | None, of_parts: Mapping[str, int] | None) -> Iterator[Region]:
    if not any(Layer.of_kind(module) for module in model.modules()):
        return
    # A graph calls the hooks of the modules in it, but forgets those of modules that it was traced through.
    watched = has_hooks(model) or any(has_hooks(module) for module in model.modules() if _has_children(module))
    graph = None if watched or given is None else trace(model, given)
    if graph is None:
        # Whoever calls an encoder by itself may give it a mask: nobody can tell whether what is padded will be zero.
        inside = {} if _skips_padding(model) else dict(model.named_children())
    else:
        yield Region(path, graph, Layer.of_kind(model))
        called = {str(node.target): node for node in graph.graph.nodes if node.op == "call_module"}
        inside = {
            f"{name}.{child}": part
            for name, node in called.items()
            if not _takes_mask(graph, node)
            for child, part in graph.get_submodule(name).named_children()
        }
    for name, part in inside.items():
        inner = f"{path}.{name}" if path else name
        yield from _regions(part, inner, 1 if of_parts is None else of_parts.get(inner), of_parts)


def _takes_mask(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Tell whether a transformer is given a mask of what is padding, and would leave that out of all it computes."""
    masks = (*node.args[2:], *(value for name, value in node.kwargs.items() if name.endswith("key_padding_mask")))
    return _skips_padding(module_of(graph, node)) and any(mask is not None for mask in masks)


def _skips_padding(module: nn.Module | None) -> bool:
    return isinstance(module, nn.TransformerEncoder) and bool(module.use_nested_tensor)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def has_hooks(module: nn.Module) -> bool:
    """Tell whether somebody looks on when a module is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def module_of(graph: fx.GraphModule, node: object) -> nn.Module | None:
    """Return the module that a node calls."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    return graph.get_submodule(str(node.target))


def counts_samples(node: object, x: fx.Node) -> bool:
    """Tell whether a node is x.size(0) or x.shape[0]."""
    if not isinstance(node, fx.Node):
        return False
    if node.target is operator.getitem:
        shape = node.args[0]
        return bool(node.args[1] == 0) and isinstance(shape, fx.Node) and _is_shape(shape, x)
    return node.target == "size" and node.args == (x, 0)


def _is_shape(node: fx.Node, x: fx.Node) -> bool:
    return (node.target is getattr and node.args == (x, "shape")) or (node.target == "size" and node.args == (x,))


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


class _Shapes(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"], n.meta["dtype"] = (
            (tuple(result.shape), result.dtype) if isinstance(result, Tensor) else (None, None)
        )
        return result


def note_shapes(graph: fx.GraphModule, inputs: tuple[Any, ...]) -> None:
    """Let every node know the shape of its result."""
    _Shapes(graph).run(*fresh(inputs))
