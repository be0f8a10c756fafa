"""Products with weights, written as torch's own layers: a layer is what it computes, not what it is called.

A forward pass may write a linear layer as `F.linear`, `addmm`, `matmul` or `@`, with its weight transposed or a part of
a larger one; a convolution as `F.conv2d`, in a subclass that pads its input; and it may call one layer several times.
Here each of them becomes a module of its own, so that all that follows has to know three kinds of layers only.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.graph.layers import LAYERS, convolution_of, is_plain_layer, linear_of
from secateur.graph.nodes import has_children, has_hooks, module_of, read_directly
from secateur.graph.recording import recorded_product
from secateur.graph.trace import require_size

_MATMULS = {torch.matmul, torch.mm, operator.matmul, "matmul", "mm"}
_CONVOLUTIONS = {F.conv1d: (nn.Conv1d, 1), F.conv2d: (nn.Conv2d, 2)}
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ADDS = {operator.add, torch.add, "add"}
# What rearranges a weight, or takes a part of it, and reads nothing else.
_VIEWS = {
    *(torch.t, torch.transpose, torch.permute, torch.chunk, torch.split, torch.unbind, torch.reshape, torch.narrow),
    *(torch.squeeze, torch.unsqueeze, torch.flatten, operator.getitem, getattr),
    *("t", "transpose", "permute", "chunk", "split", "unbind", "reshape", "view", "narrow", "squeeze", "unsqueeze"),
    *("flatten", "contiguous", "detach"),
}


@dataclass(frozen=True)
class Use:
    """A use of a weight: how it is called, like the layer or the weight, with "@2" for the second; and the weight."""

    name: str
    weight: Tensor  # as the network has it: whole, and not transposed


def as_layers(graph: fx.GraphModule) -> dict[str, Use]:
    """Write all products with weights as calls of plain layers, each of a module of its own.

    Nodes have the shapes of their results in `meta`. Returned are the uses of weights, by the layer's place in the
    graph.
    """
    rewriting = _Rewriting(graph)
    for node in list(graph.graph.nodes):
        if node.op == "call_module":
            rewriting.split_frame(node) or rewriting.open_layer(node)
        elif node.op in ("call_function", "call_method"):
            rewriting.product(node)
    rewriting.part_calls()
    graph.graph.lint()
    graph.recompile()
    return rewriting.numbered()


class _Rewriting:
    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.uses: dict[str, Use] = {}  # that new modules stand for, by their place

    # Which weights there are.

    def weight(self, node: object) -> tuple[Any, str] | None:
        """Return the part of a parameter that a node reads, and the parameter's name."""
        if not isinstance(node, fx.Node):
            return None
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            found = getattr(self.graph.get_submodule(owner), name, None)
            return (found, str(node.target)) if isinstance(found, nn.Parameter) else None
        if node.op not in ("call_function", "call_method") or node.target not in _VIEWS:
            return None
        if len(node.all_input_nodes) != 1 or node.args[:1] != (node.all_input_nodes[0],):
            return None
        if node.target is getattr and node.args[1] not in ("T", "mT"):
            return None
        source = self.weight(node.args[0])
        if source is None or (isinstance(source[0], Tensor) and source[0].is_meta):
            return None
        whole, path = source
        if node.op == "call_method":
            return getattr(whole, str(node.target))(*node.args[1:], **node.kwargs), path
        assert callable(node.target)
        return node.target(whole, *node.args[1:], **node.kwargs), path

    def matrix(self, node: object) -> tuple[Tensor, str] | None:
        found = self.weight(node)
        return found if found is not None and isinstance(found[0], Tensor) and found[0].dim() == 2 else None

    def vector(self, node: object, size: int) -> Tensor | None:
        found = self.weight(node)
        return found[0] if found is not None and isinstance(found[0], Tensor) and found[0].shape == (size,) else None

    # What is computed with them.

    def product(self, node: fx.Node) -> None:
        """Write a function of an input and a weight as a layer."""
        if node.target is F.linear:
            given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
            found = self.matrix(given["weight"])
            if found is not None:
                self.linear(node, given["input"], *found, given.get("bias"))
        elif node.target in _CONVOLUTIONS:
            self.convolution(node, dict(zip(_CONVOLUTION, node.args, strict=False)) | dict(node.kwargs))
        elif node.target in (torch.addmm, "addmm") and len(node.args) == 3 and not node.kwargs:
            found = self.matrix(node.args[2])
            if found is not None:
                self.linear(node, node.args[1], found[0].t(), found[1], node.args[0])
        elif node.target in _MATMULS and len(node.args) == 2 and not node.kwargs:
            x, other = node.args
            found = self.matrix(other)
            if found is not None:
                self.linear(node, x, found[0].t(), found[1], None)
            elif (found := self.matrix(x)) is not None and isinstance(other, fx.Node):
                self.multiply_from_left(node, other, *found)

    def linear(self, node: fx.Node, x: Any, weight: Tensor, name: str, bias: Any) -> None:
        if self.weight(x) is not None:  # a product of weights alone
            return
        added: fx.Node | None = None
        if bias is None and len(node.users) == 1:
            [user] = node.users
            if user.target in _ADDS and len(user.args) == 2 and not user.kwargs:
                other = user.args[1] if user.args[0] is node else user.args[0]
                added, bias = (user, other) if self.vector(other, len(weight)) is not None else (None, None)
        offset = None if bias is None else self.vector(bias, len(weight))
        if bias is not None and offset is None:
            return
        self.call(added or node, x, linear_of(weight, offset), name)

    def multiply_from_left(self, node: fx.Node, x: fx.Node, weight: Tensor, name: str) -> None:
        """Write W @ x as a convolution of lines by single pixels, which multiplies the columns of x."""
        if len(x.meta.get("shape") or ()) in (2, 3):
            self.call(node, x, convolution_of(nn.Conv1d, weight.unsqueeze(2), None, {}), name)

    def convolution(self, node: fx.Node, given: dict[str, Any]) -> None:
        kind, dimensions = _CONVOLUTIONS[node.target]  # type: ignore[index]  # it is one of them
        x, bias, found = given.pop("input"), given.pop("bias", None), self.weight(given.pop("weight"))
        if found is None or found[0].dim() != dimensions + 2 or any(isinstance(one, fx.Node) for one in given.values()):
            return
        offset = None if bias is None else self.vector(bias, len(found[0]))
        if bias is not None and offset is None:
            return
        made = self.call(node, x, convolution_of(kind, found[0], offset, given), found[1])
        self.split_frame(made)

    # How it is written.

    def call(self, node: fx.Node, x: Any, layer: nn.Module, name: str) -> fx.Node:
        """Replace a node by a call of a layer, whose weight is, or is made of, the parameter of this name."""
        owner, _, own = name.rpartition(".")
        source = getattr(self.graph.get_submodule(owner), own)
        path = self.place(Use(name.removesuffix(".weight"), source), layer)
        with self.graph.graph.inserting_before(node):
            made = self.graph.graph.call_module(path, (x,))
        made.meta = dict(node.meta)
        before = node.all_input_nodes
        node.replace_all_uses_with(made)
        self.graph.graph.erase_node(node)
        for one in before:
            _erase_unused(one)
        return made

    def place(self, use: Use, layer: nn.Module) -> str:
        """Add a layer to the graph's modules, and return where."""
        path = use.name.replace(".", "_")
        while hasattr(self.graph, path):
            path += "_"
        self.graph.add_submodule(path, layer.eval())
        self.uses[path] = use
        return path

    def use(self, path: str) -> Use:
        """Return what a layer stands for."""
        return self.uses.get(path) or Use(path, self.graph.get_parameter(f"{path}.weight"))

    def numbered(self) -> dict[str, Use]:
        """Return all uses, with a number in the name where there are several of one name."""
        times: Counter[str] = Counter()
        found: dict[str, Use] = {}
        for node in self.graph.graph.nodes:
            if type(module_of(self.graph, node)) in LAYERS:
                use = self.use(str(node.target))
                times[use.name] += 1
                number = f"@{times[use.name]}" if times[use.name] > 1 else ""
                found[str(node.target)] = replace(use, name=use.name + number)
        return found

    def split_frame(self, node: fx.Node) -> bool:
        """Write a convolution that does not pad all sides alike as padding, and a convolution that does not pad."""
        layer = module_of(self.graph, node)
        if layer is None or type(layer) not in LAYERS or has_hooks(layer):
            return False
        if node.kwargs.keys() == {"input"} and not node.args:
            node.args, node.kwargs = (node.kwargs["input"],), {}
        if not isinstance(layer, nn.Conv1d | nn.Conv2d) or is_plain_layer(layer) or len(node.args) != 1:
            return True
        settings = {"stride": layer.stride, "padding": 0, "dilation": layer.dilation, "groups": layer.groups}
        bare = convolution_of(type(layer), layer.weight, layer.bias, settings)
        if not is_plain_layer(bare):
            return True
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        with self.graph.graph.inserting_before(node):
            padded = self.graph.graph.call_function(
                F.pad, (node.args[0], tuple(layer._reversed_padding_repeated_twice)), {"mode": mode}
            )
        node.target, node.args = self.place(self.use(str(node.target)), bare), (padded,)
        return True

    def open_layer(self, node: fx.Node) -> bool:
        """Write a part that could not be traced as the layer that it is for an input of this size, if it is one."""
        module = module_of(self.graph, node)
        torchs = type(module).__module__.startswith("torch.nn")
        if module is None or torchs or has_children(module) or has_hooks(module):
            return False
        [x, *others] = [*node.args, *node.kwargs.values()] or [None]
        shape = x.meta.get("shape") if isinstance(x, fx.Node) else None
        found = None if others or shape is None else recorded_product(module, shape)
        if found is None or shape is None:
            return False
        name = str(node.target)
        with self.graph.graph.inserting_before(node):
            assert isinstance(x, fx.Node)
            if found.frame is not None:
                self.graph.graph.call_function(require_size, (x, shape[1:], name))
                x = self.graph.graph.call_function(F.pad, (x, found.frame))
            weight = found.transposed if found.transposed is not None else found.layer.get_parameter("weight")
            path = self.place(Use(name, weight), found.layer)
            made = self.graph.graph.call_module(path, (x,))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        self.graph.graph.erase_node(node)
        self.split_frame(made)
        return True

    def part_calls(self) -> None:
        """Give each call of a layer a module of its own, and leave those alone that the forward reads by itself."""
        read: set[str] = read_directly(self.graph)
        seen: set[str] = set()
        for node in self.graph.graph.nodes:
            layer = module_of(self.graph, node)
            if layer is None or type(layer) not in LAYERS or has_hooks(layer):
                continue
            path = str(node.target)
            if path in seen or path in read:
                node.target = self.place(self.use(path), _twin(layer))
            seen.add(path)


def _twin(layer: nn.Module) -> nn.Module:
    """Return another module of the same tensors."""
    made = layer.__class__.__new__(layer.__class__)
    made.__dict__.update({name: dict(value) if type(value) is dict else value for name, value in vars(layer).items()})
    return made


def _erase_unused(node: fx.Node) -> None:
    """Remove what only a product read: a weight, and how it was rearranged."""
    while not node.users and (node.op == "get_attr" or node.target in _VIEWS):
        before = node.all_input_nodes
        node.graph.erase_node(node)
        if not before:
            return
        node = before[0]
