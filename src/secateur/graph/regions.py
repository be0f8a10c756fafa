"""The largest parts of a model whose forward pass can be traced."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, fx, nn

from secateur.graph.layers import LAYERS
from secateur.graph.nodes import has_children, has_hooks, module_of
from secateur.graph.trace import UntraceableError, trace

_SKIPS = "it may leave out padding, unless it is built with enable_nested_tensor=False"


@dataclass(frozen=True)
class Region:
    """A part of a model that could be traced: where it stands in the model, "" for the whole, and its graph.

    A part that `is_layer` itself is the only one in its graph, and called "0" there.
    """

    path: str
    graph: fx.GraphModule
    is_layer: bool = False

    def name_of(self, layer: str) -> str:
        """Return the name in the model of a layer of the graph, or of a layer that is called like its weight."""
        if not self.path:
            return layer
        if self.is_layer or layer == "weight" or layer.startswith("weight@"):
            return self.path + layer[layer.find("@") :] * ("@" in layer)
        return f"{self.path}.{layer}"


@dataclass
class Regions:
    """The parts that could be traced, and why others could not: by the names of the parts."""

    found: list[Region] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def regions(
    model: nn.Module,
    given: int | None,
    of_parts: Mapping[str, int] | None = None,
    may_be_called: Collection[str] = (),
) -> Regions:
    """Return the largest parts of a model that can be traced and hold weights.

    Torch's own modules are not looked into by a trace, such as the layers of a transformer: they have parts of their
    own, and so has what cannot be traced, which is called if `may_be_called` names it. The model is called with `given`
    inputs (None if it cannot be traced as a whole), its parts with as many as `of_parts` says; a part that it does not
    name is not called as a whole, so that only its parts are looked at.
    """
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)}).eval()
    made = Regions()
    made.found += _regions(shared, "", given, of_parts, may_be_called, made.reasons)
    return made


def _regions(
    model: nn.Module,
    path: str,
    given: int | None,
    of_parts: Mapping[str, int] | None,
    may_be_called: Collection[str],
    reasons: dict[str, str],
) -> Iterator[Region]:
    is_layer, prefix = type(model) in LAYERS, f"{path}." if path else ""
    is_torchs = type(model).__module__.startswith("torch.nn") and not has_children(model)
    if all(parameter.dim() < 2 for parameter in model.parameters()) or (is_torchs and not is_layer):
        return
    # A graph calls the hooks of the modules in it, but not those of modules that it was traced through.
    hooked = has_hooks(model) or any(has_hooks(module) for module in model.modules() if has_children(module))
    graph, opaque = None, dict[str, str]()
    if hooked:
        reasons[path] = "it has hooks"
    elif given is None:
        reasons[path] = "it is called with other arguments than tensors, or in several ways"
    else:
        own = {name.removeprefix(prefix) for name in may_be_called if name.startswith(prefix)}
        try:
            graph = trace(model, given, own, opaque)
        except UntraceableError as error:
            reasons[path] = str(error)
            if not has_children(model):  # it may be a layer that looks at the size of its input
                graph, is_layer = trace(nn.Sequential(model).eval(), given, ("0",)), True
    reasons.update({prefix + name: reason for name, reason in opaque.items()})
    if graph is None:
        # An encoder that is called by itself may be given a mask, and then padding may not come out as zeros.
        inside = {} if _skips_padding(model) else dict(model.named_children())
        if _skips_padding(model):
            reasons[path] = _SKIPS
    else:
        yield Region(path, graph, is_layer)
        called = {str(node.target): node for node in graph.graph.nodes if node.op == "call_module"}
        reasons.update({prefix + name: _SKIPS for name, node in called.items() if _takes_mask(graph, node)})
        inside = {
            f"{name}.{child}": part
            for name, node in called.items()
            if not _takes_mask(graph, node)
            for child, part in graph.get_submodule(name).named_children()
        }
    for name, part in inside.items():
        inner = prefix + name
        yield from _regions(
            part, inner, 1 if of_parts is None else of_parts.get(inner), of_parts, may_be_called, reasons
        )


def _takes_mask(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a transformer is given a mask of what is padding, and would leave that out of all it computes."""
    masks = (*node.args[2:], *(value for name, value in node.kwargs.items() if name.endswith("key_padding_mask")))
    return _skips_padding(module_of(graph, node)) and any(mask is not None for mask in masks)


def _skips_padding(module: nn.Module | None) -> bool:
    return isinstance(module, nn.TransformerEncoder) and bool(module.use_nested_tensor)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
