"""The forward pass of a model as a graph of torch.fx, traced by one thread at a time."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import has_side_effect

from secateur.graph.nodes import has_children
from secateur.graph.side_effects import fresh, writes

# While torch.fx traces, it replaces `nn.Module.__call__` for the whole process, and two threads that trace at once
# leave one of the replacements behind for good. Hold this lock to trace, to unpickle a graph, and to call modules in
# between.
TRACING = threading.RLock()


def symbolic_trace(model: nn.Module) -> fx.GraphModule:
    """Trace a model; its forward may raise anything when it is given a tracer."""
    with TRACING:
        return fx.symbolic_trace(model)


def trace(model: nn.Module, given: int = 1) -> fx.GraphModule | None:
    """Return the graph of a model in evaluation mode, or None if its forward cannot be traced.

    `given` inputs are taken to be tensors; other arguments of the forward keep their defaults.
    """
    inner = (
        nn.Sequential(model).train(model.training)
        if type(model).__module__.startswith("torch.nn") and not has_children(model)
        else model
    )
    state = [(buffer, writes(buffer)) for buffer in inner.buffers()]
    try:
        graph = _trace(inner, given)
    except Exception:  # a forward may raise anything when it is given a tracer
        return None
    # What a forward writes into its buffers is written during tracing, and is missing in the graph.
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
    graph._tracer_cls = fx.Tracer  # unpickling traces the graph's own forward, with all arguments
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
    if isinstance(value, fx.Proxy):  # unpickling a compiled network traces it again
        return value.tracer.create_proxy("call_function", require_default, (value, default, name), {})
    if value is not default and (isinstance(value, Tensor) or value != default):
        raise ValueError(f"the network was compiled for {name}={default!r}: give it in the example to change that")
    return None


class _Shapes(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"], n.meta["dtype"] = (
            (tuple(result.shape), result.dtype) if isinstance(result, Tensor) else (None, None)
        )
        return result


def note_shapes(graph: fx.GraphModule, inputs: tuple[Any, ...]) -> None:
    """Run a graph and note the shape and dtype of every node's result in its `meta`."""
    _Shapes(graph).run(*fresh(inputs))
