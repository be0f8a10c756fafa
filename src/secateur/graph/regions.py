"""The largest parts of a model whose forward pass can be traced."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, fx, nn

from secateur.graph.layers import is_plain_layer
from secateur.graph.nodes import has_children, has_hooks, module_of
from secateur.graph.trace import trace


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


def regions(model: nn.Module, given: int | None, of_parts: Mapping[str, int] | None = None) -> list[Region]:
    """Return the largest parts of a model that can be traced and hold plain layers.

    Torch's own modules are not looked into by a trace, such as the layers of a transformer: they have parts of their
    own. The model is called with `given` inputs (None if it cannot be traced as a whole), its parts with as many as
    `of_parts` says; a part that it does not name is not called as a whole, so that only its parts are looked at.
    """
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)}).eval()
    return list(_regions(shared, "", given, of_parts))


def _regions(model: nn.Module, path: str, given: int | None, of_parts: Mapping[str, int] | None) -> Iterator[Region]:
    if not any(is_plain_layer(module) for module in model.modules()):
        return
    # A graph calls the hooks of the modules in it, but not those of modules that it was traced through.
    hooked = has_hooks(model) or any(has_hooks(module) for module in model.modules() if has_children(module))
    graph = None if hooked or given is None else trace(model, given)
    if graph is None:
        # An encoder that is called by itself may be given a mask, and then padding may not come out as zeros.
        inside = {} if _skips_padding(model) else dict(model.named_children())
    else:
        yield Region(path, graph, is_plain_layer(model))
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
    """Return whether a transformer is given a mask of what is padding, and would leave that out of all it computes."""
    masks = (*node.args[2:], *(value for name, value in node.kwargs.items() if name.endswith("key_padding_mask")))
    return _skips_padding(module_of(graph, node)) and any(mask is not None for mask in masks)


def _skips_padding(module: nn.Module | None) -> bool:
    return isinstance(module, nn.TransformerEncoder) and bool(module.use_nested_tensor)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
