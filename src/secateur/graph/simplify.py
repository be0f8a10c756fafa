"""Simplify a graph without changing what it computes: drop dropout, fold batch norms, remove dead units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from secateur.graph.hidden_units import HiddenUnits, hidden_units
from secateur.graph.layers import is_plain_layer
from secateur.graph.nodes import counts_samples, has_hooks, module_of, read_directly

TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers are denormal, and slow down multiplication

# Folds a batch norm into a layer whose weight is not in the graph: given its name, the layer and the norm, it returns
# whether it could.
FoldElsewhere: TypeAlias = Callable[[str, "nn.Linear | nn.Conv1d | nn.Conv2d", "nn.BatchNorm1d | nn.BatchNorm2d"], bool]


def simplify(graph: fx.GraphModule) -> None:
    """Drop what does nothing in evaluation mode, fold batch norms, and remove hidden units without effect."""
    fold(graph)
    # Of an image without a batch, flatten(1) makes a vector of each channel.
    single = {module_of(graph, node) for node in graph.graph.nodes if len(node.meta.get("shape") or ()) == 3}
    for units in reversed(hidden_units(graph)):  # from the output on: a layer may lose its only readers
        if not (units.maker in single and isinstance(units.reader, nn.Linear)):
            _shrink(units)


def fold(graph: fx.GraphModule, fold_elsewhere: FoldElsewhere | None = None) -> None:
    """Drop what does nothing in evaluation mode, and fold batch norms into the layers before them.

    `fold_elsewhere` is called for layers on the meta device, whose weights the caller holds.
    """
    _drop_identities(graph)
    _flatten_views(graph)
    _fold_norms(graph, fold_elsewhere)
    graph.graph.lint()
    graph.recompile()


_IDLE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Identity)
_IDLE_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


def _drop_identities(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        module = module_of(graph, node)
        if module is not None:
            idle = type(module) in _IDLE and not has_hooks(module)
        else:
            idle = node.target in _IDLE_FUNCTIONS and node.kwargs.get("training", True) is False
        if idle and node.args and not node.kwargs.get("inplace"):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)


def _flatten_views(graph: fx.GraphModule) -> None:
    """Write x.view(x.size(0), -1) as flatten(x, 1), so that x has a single reader."""
    for node in list(graph.graph.nodes):
        if node.op != "call_method" or node.target not in ("view", "reshape") or len(node.args) != 3:
            continue
        x, samples, rest = node.args
        if not isinstance(x, fx.Node) or not counts_samples(samples, x) or len(x.meta.get("shape") or ()) < 2:
            continue
        if rest not in (-1, math.prod((x.meta.get("shape") or ())[1:])):
            continue
        with graph.graph.inserting_before(node):
            flat = graph.graph.call_function(torch.flatten, (x, 1))
        flat.meta = dict(node.meta)
        node.replace_all_uses_with(flat)
        graph.graph.erase_node(node)
        while isinstance(samples, fx.Node) and samples is not x and not samples.users:
            asked = samples.args[0]
            graph.graph.erase_node(samples)
            samples = asked


def _fold_norms(graph: fx.GraphModule, fold_elsewhere: FoldElsewhere | None) -> None:
    calls = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_module")
    calls.update(read_directly(graph))
    for node in list(graph.graph.nodes):
        norm, before = module_of(graph, node), node.args[0] if node.args else None
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) or not isinstance(before, fx.Node):
            continue
        layer = module_of(graph, before)
        # A batch norm over (samples, channels, length) reads another dimension than a linear layer writes, and one over
        # a single line (channels, length) takes that for (samples, channels).
        kinds, dimensions = (type(layer), type(norm)), len(before.meta.get("shape") or ())
        fits = kinds == (nn.Conv2d, nn.BatchNorm2d) or (kinds, dimensions) in (
            ((nn.Linear, nn.BatchNorm1d), 2),
            ((nn.Conv1d, nn.BatchNorm1d), 3),
        )
        if (
            not fits
            or layer is None
            or not is_plain_layer(layer)
            or norm.running_mean is None
            or norm.training
            or len(before.users) > 1
            or calls[str(before.target)] + calls[str(node.target)] > 2
            or has_hooks(layer)
            or has_hooks(norm)
        ):
            continue
        assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
        name = str(before.target)
        if layer.weight.is_meta:
            done = fold_elsewhere is not None and fold_elsewhere(name, layer, norm)
        else:
            fuse = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
            folded: nn.Module = fuse(layer, norm)  # type: ignore[type-var]  # each takes its own kind
            done = all(bool(parameter.isfinite().all()) for parameter in folded.parameters())
            if done:
                graph.set_submodule(name, folded.requires_grad_(False))
        if done:
            node.replace_all_uses_with(before)
            graph.graph.erase_node(node)


def _shrink(units: HiddenUnits) -> None:
    """Remove units that are never read, and those that are always zero: their rows, and the columns that read them."""
    if units.maker.weight.is_meta or units.reader.weight.is_meta:
        return
    into, out_of = units.weights_of_each()
    bias = units.maker.bias
    silent = into == 0 if bias is None else (into == 0) & (bias.detach() == 0)
    gone = (out_of == 0) | (silent & units.keeps_zeros)
    if not gone.any():
        return
    kept = torch.nonzero(~gone).flatten()
    if len(kept) == 0:
        kept = kept.new_zeros(1)  # a layer without units would need special cases everywhere
    # Of a unit that is an image, a linear layer has a column for each pixel.
    whole, read = units.reader.weight, units.read_weights()[:, kept]
    units.reader.weight = nn.Parameter(read.reshape(len(whole), -1, *whole.shape[2:]), requires_grad=False)
    units.maker.weight = nn.Parameter(units.maker.weight.detach()[kept], requires_grad=False)
    if bias is not None:
        units.maker.bias = nn.Parameter(bias.detach()[kept], requires_grad=False)
    for layer, size, features in (
        (units.maker, ("out_features", "out_channels"), len(kept)),
        (units.reader, ("in_features", "in_channels"), units.reader.weight.shape[1]),
    ):
        setattr(layer, size[isinstance(layer, nn.Conv2d)], features)


def flush_denormals(graph: nn.Module) -> None:
    """Replace denormal weights by zeros, in copies: they slow down multiplication."""
    for module in graph.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or parameter.is_meta or parameter.dtype is not torch.float32:
                continue
            denormal = (parameter.detach().abs() < TINY) & (parameter.detach() != 0)
            if denormal.any():
                kept = torch.where(denormal, torch.zeros(()), parameter.detach())
                setattr(module, name, nn.Parameter(kept, requires_grad=False))
