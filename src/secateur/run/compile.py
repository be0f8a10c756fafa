"""Step 6, run: time every layer both ways on the user's own input, and run it sparse where that is faster."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from secateur.encode import open_archive
from secateur.files import load
from secateur.graph.attention import OpenAttention, attention_uses, open_attention_
from secateur.graph.products import Use, as_layers
from secateur.graph.regions import Region, regions
from secateur.graph.side_effects import Rewind, fresh, writes
from secateur.graph.simplify import flush_denormals, simplify
from secateur.graph.trace import TRACING, note_shapes
from secateur.memory import keep_freed_memory
from secateur.run import selection, timing
from secateur.run.answers import agrees
from secateur.run.assembly import CompiledNetwork, apply, follow
from secateur.run.examples import arguments, count_calls, record_inputs
from secateur.run.fusion import fused_layers, sequences
from secateur.run.kernels import bindings
from secateur.run.plan import Group, Plan
from secateur.run.reasons import why_dense
from secateur.run.sparse_chain import SparseChain

_WHOLE_WIN = 1.02  # how many times faster the whole network must be to be worth a graph of its own


def compile_sparse(
    model: nn.Module | str | PathLike[str],
    example_input: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    plan: Plan | str | PathLike[str] | None = None,
    shared: bool = False,
    trust: Collection[str] = (),
) -> nn.Module:
    """Return a network that computes the same as a pruned `model`, faster where it can: for inference on the CPU.

    Each linear layer and convolution is timed on an input like `example_input` (several inputs as a tuple, or by name
    as a dict), and runs sparse where that is at least 1.1 times as fast; batch norms are folded, and layers that follow
    each other are joined to one call. Where nothing is gained, a copy of the network with its own layers is returned.
    What was decided is the attribute `plan`; given as `plan`, it is followed without timing anything. With `shared`,
    layers of at most 255 distinct values read them from a table, which takes half the memory.

    From then on this process keeps freed memory for its next use, up to a gibibyte.

    `model` may be the path of a .cut file; a plan in its metadata, under "plan", is then followed, and `trust` is that
    of `load`.
    """
    if not isinstance(model, nn.Module):
        model, plan = _read(model, plan, trust)
    _require_plain(model)
    keep_freed_memory()  # before layers are timed: what they exchange in large batches is tens of megabytes
    inputs, keywords = arguments(model, example_input)
    if plan is not None and not isinstance(plan, Plan):
        plan = Plan.load(plan)
    # Not in inference mode, where torch does not count writes to a tensor.
    with torch.inference_mode(False), torch.no_grad(), TRACING:
        return _compile(_evaluating_copy(model), fresh(inputs), fresh((keywords,))[0], plan, shared)


def _read(
    path: str | PathLike[str], plan: Plan | str | PathLike[str] | None, trust: Collection[str]
) -> tuple[nn.Module, Plan | str | PathLike[str] | None]:
    if plan is None:
        with open_archive(path) as archive:
            plan = Plan.of_file(archive.metadata, path)
    return load(path, trust=trust), plan


def _require_plain(model: nn.Module) -> None:
    if hasattr(model, "plan") and not isinstance(model.plan, Plan):
        raise ValueError('the network has a part called "plan", which compile_sparse sets: rename the part')
    for name, module in model.named_modules():
        if isinstance(module, SparseChain):
            raise ValueError("the network is compiled already: compile the plain one that it was made from")
        # Older mechanisms keep the weight that they computed last as an attribute.
        computed = any(isinstance(value, Tensor) and not value.is_leaf for value in vars(module).values())
        if parametrize.is_parametrized(module) or computed:
            where = f'"{name}"' if name else "the network"
            remedy = "secateur.settle or prune, or torch.nn.utils.prune.remove"
            raise ValueError(f"the weights of {where} are read through a function: make them plain first ({remedy})")


def _evaluating_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode that shares the parameters with the model; buffers may be written to."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()


def _compile(
    model: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], plan: Plan | None, shared: bool
) -> nn.Module:
    rewind, copies = Rewind(model), fresh((inputs, keywords))
    [expected] = fresh((model(*copies[0], **copies[1]),))  # which may be a buffer
    is_stateful = rewind()
    # What is timed may be called with the same inputs again and again, unless it writes into them.
    writes_inputs = any(map(writes, pytree.tree_leaves(copies)))
    copied: Callable[[tuple[Any, ...]], tuple[Any, ...]] = fresh if writes_inputs else tuple

    def run(network: nn.Module) -> None:
        args, kwargs = fresh((inputs, keywords))
        network(*args, **kwargs)

    opened, attentions = _opened(model, run)
    rewind()
    calls = count_calls(opened, lambda: run(opened))
    rewind()
    found = regions(opened, _given(inputs, keywords), calls.inputs, calls.returning)
    rewind()
    parts = [region.path for region in found.found if region.path]
    given = {"": inputs, **record_inputs(opened, lambda: run(opened), parts)}
    rewind()
    compiled = _evaluating_copy(opened)
    rewind_compiled = Rewind(compiled)
    groups: list[Group] = []
    weights: dict[str, tuple[tuple[int, ...], int]] = {}
    uses: list[Use] = []
    for region in found.found:
        seen = given.get(region.path)
        if seen is None:
            continue
        made = _compile_region(region, seen, plan, shared, model, weights)
        groups += made.groups
        uses += made.uses
        if made.graph is not None:
            compiled = _put(compiled, region.path, made.graph)
    compiled = _closed(compiled, model, attentions)
    if plan is not None:
        plan.require_of(weights)
        final = plan
    else:
        leaves = (*inputs, *keywords.values())
        batch = next((one.shape[0] for one in leaves if isinstance(one, Tensor) and one.dim()), 1)
        dense = why_dense(model, groups, weights, uses, found.reasons, calls.called)
        final = Plan(tuple(groups), weights, batch, torch.get_num_threads(), bindings.lanes(), dense=dense)
    if any(region.path for region in found.found):  # elsewhere than in graphs, where they are gone already
        flush_denormals(compiled)

    def again(network: nn.Module) -> Any:
        if is_stateful:
            rewind()
            rewind_compiled()
        args, kwargs = copied((inputs, keywords))
        return network(*args, **kwargs)

    wins = any(isinstance(module, SparseChain) for module in compiled.modules())
    slower = "the outputs of the sparse network differed"
    wins = wins and agrees(lambda: again(compiled), expected)
    if wins and plan is None:
        dense_ms, compiled_ms = timing.race([lambda: again(model), lambda: again(compiled)], budget_ms=400.0, most=200)
        final = replace(final, dense_ms=dense_ms, compiled_ms=compiled_ms)
        wins = dense_ms >= _WHOLE_WIN * compiled_ms
        slower = f"the whole network was not faster: {dense_ms:.3f} ms dense, {compiled_ms:.3f} ms sparse"
    rewind()
    rewind_compiled()
    return _own(compiled, final) if wins else _own(model, _all_dense(final, slower))


def _opened(model: nn.Module, run: Callable[[nn.Module], None]) -> tuple[nn.Module, Collection[str]]:
    """Return the model, or a copy whose attentions have layers for their projections, and which they are."""
    uses = attention_uses(model, lambda: run(model))
    return (open_attention_(_evaluating_copy(model), uses), uses) if uses else (model, ())


def _closed(compiled: nn.Module, model: nn.Module, attentions: Collection[str]) -> nn.Module:
    """Put torch's own attention back where nothing in it runs sparse."""
    parts = dict(compiled.named_modules())
    for name in attentions:
        if isinstance(parts.get(name), OpenAttention) and not _is_sparse(parts[name]):
            whole = _evaluating_copy(model.get_submodule(name))
            compiled = _replaced(compiled, name, whole)
    return compiled


def _is_sparse(module: nn.Module) -> bool:
    return any(isinstance(part, SparseChain) for part in module.modules())


def _given(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> int | None:
    """Return how many inputs a trace of the whole network takes; None if some can be given by name only."""
    if keywords:
        return None
    given = len(inputs)
    while given and inputs[given - 1] is None:  # which is what an argument is by default
        given -= 1
    return given


def _all_dense(plan: Plan, why: str) -> Plan:
    """Return the plan of a network that keeps its own layers: nothing is joined there."""
    groups = tuple(
        Group((name,), None, *((one.dense_ms, one.sparse_ms) if len(one.layers) == 1 else (math.nan, math.nan)))
        for one in plan.groups
        for name in one.layers
    )
    sparse = [name for group in plan.sparse_groups for name in group.layers]
    return replace(plan, groups=groups, dense={**plan.dense, **dict.fromkeys(sparse, why)})


def _own(model: nn.Module, plan: Plan) -> nn.Module:
    """Return the network with tensors of its own and its plan."""
    own = copy.deepcopy(model).eval()
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    own.plan = plan  # type: ignore[assignment]  # a plain attribute, not a tensor
    return own


def _replaced(model: nn.Module, path: str, part: nn.Module) -> nn.Module:
    if not path:
        return part
    model.set_submodule(path, part)
    return model


def _put(model: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """Replace a part of a model by a sparse one, and return the model."""
    model = _replaced(model, path, part)
    names = path.split(".")
    for above in (model.get_submodule(".".join(names[:k])) for k in range(len(names))):
        # Torch runs these in one call, which reads the weights of their parts; this attribute disables that.
        if isinstance(above, nn.TransformerEncoderLayer):
            above.activation_relu_or_gelu = 0
    return model


@dataclass
class _Made:
    graph: fx.GraphModule | None
    groups: list[Group]
    uses: list[Use]  # of weights, by their names in the whole network


def _compile_region(
    region: Region,
    inputs: tuple[Any, ...],
    plan: Plan | None,
    shared: bool,
    model: nn.Module,
    weights: dict[str, tuple[tuple[int, ...], int]],
) -> _Made:
    graph = region.graph
    try:
        note_shapes(graph, inputs)
    except Exception:  # a graph for other arguments than these may do anything with them
        return _Made(None, [], [])
    places = as_layers(graph)
    uses = {place: replace(use, name=region.name_of(use.name)) for place, use in places.items()}

    def name_of(place: str) -> str:
        return uses[place].name

    note_shapes(graph, inputs)
    simplify(graph)
    note_shapes(graph, inputs)
    flush_denormals(graph)
    found = fused_layers(graph)
    weights.update({name_of(fused.name): (fused.layer.weight.shape, fused.layer.weight.count) for fused in found})
    if plan is not None:
        chosen = follow(plan, found, name_of)
    else:
        chosen = [group for sequence in sequences(found) for group in selection.choose(sequence, shared)]
    groups = [replace(group, layers=tuple(map(name_of, group.layers))) for group in chosen]
    if all(group.kernel is None for group in chosen):
        return _Made(None, groups, list(uses.values()))
    apply(graph, found, chosen, name_of)
    return _Made(CompiledNetwork(graph, graph.graph, type(model).__name__), groups, list(uses.values()))
