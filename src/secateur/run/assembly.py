"""Assemble the compiled network: put sparse chains into a graph in place of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from torch import fx, nn

from secateur.graph.nodes import changes_in_place, has_hooks, module_of
from secateur.graph.trace import TRACING
from secateur.run.fusion import FusedLayer, sequences
from secateur.run.kernels.kernel import Kernel
from secateur.run.plan import Group, Plan
from secateur.run.sparse_chain import SparseChain

_CALL = nn.Module.__call__  # as it is outside of tracing


class CompiledNetwork(fx.GraphModule):
    """A graph of torch.fx that is called like any module: torch.fx's own call takes 3 µs to explain errors better."""

    def recompile(self) -> Any:
        """Generate the forward pass again from the graph."""
        code = super().recompile()
        type(self).__call__ = _CALL  # type: ignore[method-assign]  # each has a class of its own
        # A module looks for its parts last of all, which takes 2 to 5 µs where a layer has left nothing else in the
        # cache. A part that is set later is found all the same: torch takes care that a name means one thing.
        vars(self).update({name: part for name, part in self.named_children() if isinstance(part, SparseChain)})
        return code

    def __deepcopy__(self, memo: Any) -> Any:
        made = super().__deepcopy__(memo)
        return _with_plan_of(self, made)

    def __reduce__(self) -> Any:
        return _restore, super().__reduce__()


def _restore(rebuild: Callable[..., fx.GraphModule], arguments: tuple[Any, ...]) -> fx.GraphModule:
    """Make a network from its pickle, which holds the code of the forward pass: torch.fx traces it again."""
    with TRACING:
        plain = rebuild(*arguments)
    plain.graph.eliminate_dead_code(_is_needed)
    made = CompiledNetwork(plain, plain.graph, type(plain).__name__)
    made.train(plain.training)
    return _with_plan_of(plain, made)


def _with_plan_of(model: nn.Module, made: fx.GraphModule) -> fx.GraphModule:
    if "plan" in vars(model):  # torch.fx does not copy it
        made.plan = model.plan
    return made


def _is_needed(node: fx.Node) -> bool:
    module = module_of(node.graph.owning_module, node) if node.graph.owning_module else None
    return node.is_impure() or changes_in_place(node) or (module is not None and has_hooks(module))


def chain_of(sequence: Sequence[FusedLayer], kernel: Kernel, names: tuple[str, ...] = ()) -> SparseChain:
    """Return layers in a row as one call."""
    merges = any(fused.flattens == "features" for fused in sequence[1:])
    layers = [fused.layer for fused in sequence]
    return SparseChain(layers, kernel, flattens=sequence[0].flattens, merges=merges, names=names).eval()


def follow(plan: Plan, found: Sequence[FusedLayer], name_of: Callable[[str], str] = str) -> list[Group]:
    """Return the groups of a plan that are in a graph, if they can run as it says.

    `name_of` gives the name of a layer in the whole network, where the graph is of a part.
    """
    names = {name_of(fused.name): fused.name for fused in found}
    chosen = [
        replace(group, layers=tuple(names.get(name, name) for name in group.layers))
        for group in plan.groups
        if names.keys() & set(group.layers)
    ]
    joined = [[fused.name for fused in sequence] for sequence in sequences(found)]
    for group in chosen:
        if not any(
            list(group.layers) == sequence[k : k + len(group.layers)]
            for sequence in joined
            for k in range(len(sequence))
        ):
            layers = ", ".join(map(name_of, group.layers))
            raise ValueError(f"the plan joins {layers}, which do not follow each other in the network")
    return chosen


def apply(
    graph: fx.GraphModule, found: Sequence[FusedLayer], chosen: Sequence[Group], name_of: Callable[[str], str] = str
) -> None:
    """Put sparse chains into a graph, in place of the layers that are to run sparse.

    `name_of` gives the name of a layer in the whole network, where the graph is of a part.
    """
    by_name: Mapping[str, FusedLayer] = {fused.name: fused for fused in found}
    free = (name for name in (f"sparse{number}" for number in count()) if not hasattr(graph, name))
    replaced: list[fx.Node] = []
    for group in chosen:
        if group.kernel is None:
            continue
        sequence = [by_name[name] for name in group.layers]
        name = next(free)
        replaced += [node for fused in sequence for node in fused.nodes]
        graph.add_submodule(name, chain_of(sequence, group.kernel, tuple(map(name_of, group.layers))))
        last = sequence[-1]
        arguments = (sequence[0].source,) if last.residual is None else (sequence[0].source, last.residual)
        with graph.graph.inserting_after(last.output):
            # Not call_module: a chain has no hooks, and looking for them takes a microsecond.
            chain = graph.graph.get_attr(name)
        with graph.graph.inserting_after(chain):
            node = graph.graph.call_method("forward", (chain, *arguments))
        last.output.replace_all_uses_with(node)
        node.args = (chain, *arguments)  # an argument may have been the output that was just replaced
        node.meta["shape"] = last.output.meta.get("shape")
        for other in found:  # what read the replaced output reads the chain
            if other.source is last.output:
                other.source = node
            if other.residual is last.output:
                other.residual = node
    for node in reversed(list(graph.graph.nodes)):
        if node in replaced and not node.users:
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code(_is_needed)
    graph.delete_all_unused_submodules()
    graph.graph.lint()
    graph.recompile()
