"""Step 6, run: time every layer both ways on the user's own input, and run it sparse where that is faster."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from secateur.encode import open_archive
from secateur.files import load
from secateur.graph.regions import Region, regions
from secateur.graph.side_effects import Rewind, fresh, writes
from secateur.graph.simplify import flush_denormals, simplify
from secateur.graph.trace import TRACING, note_shapes
from secateur.run import selection, timing
from secateur.run.assembly import CompiledNetwork, apply, follow
from secateur.run.fusion import fused_layers, sequences
from secateur.run.kernels import bindings
from secateur.run.plan import Group, Plan
from secateur.run.sparse_chain import SparseChain

_WHOLE_WIN = 1.02  # how many times faster the whole network must be to be worth a graph of its own
_TOLERANCE = 1e-3  # of the largest output, for the network as a whole


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

    `model` may be the path of a .cut file; a plan in its metadata, under "plan", is then followed, and `trust` is that
    of `load`.
    """
    if not isinstance(model, nn.Module):
        model, plan = _read(model, plan, trust)
    _require_plain(model)
    inputs, keywords = _arguments(model, example_input)
    if plan is not None and not isinstance(plan, Plan):
        plan = Plan.load(plan)
    # Not in inference mode, where torch does not count writes to a tensor.
    with torch.inference_mode(False), torch.no_grad(), TRACING:
        return _compile(_evaluating_copy(model), fresh(inputs), fresh((keywords,))[0], plan, shared)


def _arguments(
    model: nn.Module, example: Tensor | tuple[Any, ...] | Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the network is called with, by position as far as its forward allows that, and by name."""
    if not isinstance(example, Mapping):
        return (example if isinstance(example, tuple) else (example,)), {}
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**example)
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} cannot be called with the example: {error}") from None
    positional = [one for one in signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    given = max((rank for rank, one in enumerate(positional, 1) if one.name in example), default=0)
    by_position = {one.name: example.get(one.name, one.default) for one in positional[:given]}
    return tuple(by_position.values()), {name: one for name, one in example.items() if name not in by_position}


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
    of_parts = _count_inputs(model, inputs, keywords)
    rewind()
    found = regions(model, _given(inputs, keywords), of_parts)
    rewind()
    calls = _record_inputs(model, inputs, keywords, found)
    rewind()
    compiled = _evaluating_copy(model)
    rewind_compiled = Rewind(compiled)
    groups: list[Group] = []
    weights: dict[str, tuple[tuple[int, ...], int]] = {}
    for region in found:
        seen = calls.get(region.path)
        if seen is None:
            continue
        made = _compile_region(region, seen, plan, shared, model, weights)
        groups += made.groups
        if made.graph is not None:
            compiled = _put(compiled, region.path, made.graph)
    if plan is not None:
        plan.require_of(weights)
        final = plan
    else:
        leaves = (*inputs, *keywords.values())
        batch = next((one.shape[0] for one in leaves if isinstance(one, Tensor) and one.dim()), 1)
        final = Plan(tuple(groups), weights, batch, torch.get_num_threads(), bindings.lanes())
    if any(region.path for region in found):  # elsewhere than in graphs, where they are gone already
        flush_denormals(compiled)

    def again(network: nn.Module) -> Any:
        if is_stateful:
            rewind()
            rewind_compiled()
        args, kwargs = copied((inputs, keywords))
        return network(*args, **kwargs)

    wins = any(isinstance(module, SparseChain) for module in compiled.modules())
    wins = wins and _agrees(lambda: again(compiled), expected)
    if wins and plan is None:
        dense_ms, compiled_ms = timing.race([lambda: again(model), lambda: again(compiled)], budget_ms=400.0, most=200)
        final = replace(final, dense_ms=dense_ms, compiled_ms=compiled_ms)
        wins = dense_ms >= _WHOLE_WIN * compiled_ms
    rewind()
    rewind_compiled()
    return _own(compiled, final) if wins else _own(model, replace(final, groups=_all_dense(final.groups)))


def _given(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> int | None:
    """Return how many inputs a trace of the whole network takes; None if some can be given by name only."""
    if keywords:
        return None
    given = len(inputs)
    while given and inputs[given - 1] is None:  # which is what an argument is by default
        given -= 1
    return given


def _all_dense(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the plan of a network that keeps its own layers: nothing is joined there."""
    return tuple(
        Group((name,), None, *((one.dense_ms, one.sparse_ms) if len(one.layers) == 1 else (math.nan, math.nan)))
        for one in groups
        for name in one.layers
    )


def _own(model: nn.Module, plan: Plan) -> nn.Module:
    """Return the network with tensors of its own and its plan."""
    own = copy.deepcopy(model).eval()
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    own.plan = plan  # type: ignore[assignment]  # a plain attribute, not a tensor
    return own


def _agrees(call: Callable[[], Any], expected: Any) -> bool:
    try:
        return _close(call(), expected)
    except Exception:  # a part may be used in ways that its forward does not show, or answers may not be comparable
        return False


def _close(one: Any, two: Any) -> bool:
    """Return whether two answers are the same: numbers to the tolerance, everything else exactly."""
    if is_dataclass(two) and not isinstance(two, type):
        return type(one) is type(two) and all(_close(getattr(one, f.name), getattr(two, f.name)) for f in fields(two))
    own, other = pytree.tree_leaves(one), pytree.tree_leaves(two)
    if len(own) != 1 or own[0] is not one:
        return len(own) == len(other) and all(_close(mine, theirs) for mine, theirs in zip(own, other, strict=True))
    if isinstance(two, float):
        one, two = (torch.tensor(value, dtype=torch.float64) for value in (one, two))
    if not isinstance(two, Tensor):
        return type(one) is type(two) and bool(one == two)
    if not isinstance(one, Tensor) or one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not two.is_floating_point():
        return torch.equal(one, two)
    finite = two[two.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    # NaN and infinities must stand in the same places: an infinite scale would let everything pass.
    return torch.allclose(one, two, rtol=0, atol=scale * _TOLERANCE, equal_nan=True)


def _count_inputs(model: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, int]:
    """Run the model once and note how many inputs each part is given, if that is once and tensors by position."""
    counts: dict[str, int | None] = {}
    handles = []
    for name, module in model.named_modules():

        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = name) -> None:
            tensors = all(isinstance(one, Tensor) and not one.is_nested for one in args)
            counts[path] = len(args) if path not in counts and not kwargs and tensors else None

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    model(*fresh(inputs), **fresh((keywords,))[0])
    for handle in handles:
        handle.remove()
    return {path: count for path, count in counts.items() if count is not None}


def _record_inputs(
    model: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], found: Sequence[Region]
) -> dict[str, tuple[Any, ...]]:
    """Run the model once and note what each part is given."""
    seen: dict[str, tuple[Any, ...]] = {"": inputs}
    handles = []
    parts = [region.path for region in found if region.path]
    for part in parts:

        def note(_: nn.Module, args: tuple[Any, ...], path: str = part) -> None:
            seen[path] = args

        handles.append(model.get_submodule(part).register_forward_pre_hook(note))
    if parts:
        model(*fresh(inputs), **fresh((keywords,))[0])
    for handle in handles:
        handle.remove()
    return seen


def _put(model: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """Replace a part of a model, and return the model."""
    if not path:
        return part
    model.set_submodule(path, part)
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
        return _Made(None, [])
    simplify(graph)
    note_shapes(graph, inputs)
    flush_denormals(graph)
    found = fused_layers(graph)
    weights.update(
        {region.name_of(fused.name): (fused.layer.weight.shape, fused.layer.weight.count) for fused in found}
    )
    if plan is not None:
        chosen = follow(plan, found, region.name_of)
    else:
        chosen = [group for sequence in sequences(found) for group in selection.choose(sequence, shared)]
    groups = [replace(group, layers=tuple(map(region.name_of, group.layers))) for group in chosen]
    if all(group.kernel is None for group in chosen):
        return _Made(None, groups)
    apply(graph, found, chosen, region.name_of)
    return _Made(CompiledNetwork(graph, graph.graph, type(model).__name__), groups)
