"""Questions about the nodes of a graph, and about the modules that they call."""

from __future__ import annotations

import operator
from collections.abc import Container

from torch import fx, nn


def has_children(module: nn.Module) -> bool:
    """Return whether a module has modules in it."""
    return next(module.children(), None) is not None


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has forward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def module_of(graph: fx.GraphModule, node: object) -> nn.Module | None:
    """Return the module that a node calls."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    return graph.get_submodule(str(node.target))


def counts_samples(node: object, x: fx.Node) -> bool:
    """Return whether a node is x.size(0) or x.shape[0]."""
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
    """Return whether a node writes into what it reads, judging by its name."""
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
    """Return whether nothing is changed in place from one node to another, other than by `own` nodes."""
    node = first
    while node is not last:
        node = node.next
        if node not in own and changes_in_place(node):
            return False
    return True


def read_directly(graph: fx.GraphModule) -> set[str]:
    """Name the modules whose tensors the forward pass also reads as attributes, in ways that we do not know."""
    return {str(node.target).rpartition(".")[0] for node in graph.graph.nodes if node.op == "get_attr"}
