"""The forward pass of a model as a graph of torch.fx, traced by one thread at a time."""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import has_side_effect

from secateur.graph.nodes import has_children
from secateur.graph.side_effects import fresh, writes

# While torch.fx traces, it replaces `nn.Module.__call__` for the whole process, and two threads that trace at once
# leave one of the replacements behind for good. Hold this lock to trace, to unpickle a graph, and to call modules in
# between.
TRACING = threading.RLock()


class UntraceableError(ValueError):
    """A forward pass cannot be traced; the text says why, and where."""


def symbolic_trace(model: nn.Module) -> fx.GraphModule:
    """Trace a model; its forward may raise anything when it is given a tracer."""
    with TRACING:
        return fx.symbolic_trace(model)


def trace(
    model: nn.Module, given: int = 1, may_be_called: Collection[str] = (), reasons: dict[str, str] | None = None
) -> fx.GraphModule:
    """Return the graph of a model in evaluation mode, or raise an UntraceableError.

    `given` inputs are taken to be tensors; other arguments of the forward keep their defaults. A part that cannot be
    traced is called as a whole if its name is in `may_be_called`; `reasons` then receives why.
    """
    inner = (
        nn.Sequential(model).train(model.training)
        if type(model).__module__.startswith("torch.nn") and not has_children(model)
        else model
    )
    state = [(buffer, writes(buffer)) for buffer in inner.buffers()]
    try:
        graph, found = _trace(inner, given, may_be_called)
    except Exception as error:  # a forward may raise anything when it is given a tracer
        raise UntraceableError(_reason(error)) from error
    # What a forward writes into its buffers is written during tracing, and is missing in the graph.
    same = [(buffer, writes(buffer)) for buffer in inner.buffers()]
    unchanged = len(same) == len(state) and all(
        one is other and times == before for (one, times), (other, before) in zip(same, state, strict=True)
    )
    if not unchanged:
        raise UntraceableError("the forward writes into buffers")
    if reasons is not None:
        reasons.update(found)
    return graph


def _trace(model: nn.Module, given: int, may_be_called: Collection[str]) -> tuple[fx.GraphModule, dict[str, str]]:
    parameters = list(inspect.signature(model.forward).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    fixed = [one for one in positional[given:] if one.default is not one.empty]
    # Not `concrete_args`: those graphs cannot be copied without spoiling all tracing that comes after.
    takes_all = not fixed and not any(one.kind is one.KEYWORD_ONLY for one in parameters)
    tracer = _Tracer(None if takes_all else positional[:given], fixed, may_be_called)
    with TRACING:
        graph = tracer.trace(model)
    graph._tracer_cls = fx.Tracer  # unpickling traces the graph's own forward, with all arguments
    return fx.GraphModule(model, graph, type(model).__name__), tracer.reasons


class _Tracer(fx.Tracer):
    """Traces a forward, and calls parts of it that cannot be traced.

    If `given` are its first arguments only, the others stay arguments, and must have their defaults. Arguments that can
    only be given by name are then no arguments of the graph.
    """

    def __init__(
        self,
        given: Sequence[inspect.Parameter] | None,
        fixed: Sequence[inspect.Parameter],
        may_be_called: Collection[str],
    ) -> None:
        super().__init__()
        self.given, self.fixed, self.may_be_called = given, fixed, may_be_called
        self.reasons: dict[str, str] = {}  # why parts are called, by their names

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Return the function to trace, and what it is given."""
        if self.given is None:
            made_by_torch: tuple[Any, list[Any]] = super().create_args_for_root(root_fn, is_module, concrete_args)
            return made_by_torch

        def made(one: inspect.Parameter) -> fx.Proxy:
            return self.create_proxy("placeholder", one.name, () if one.default is one.empty else (one.default,), {})

        given = [made(one) for one in self.given]
        for proxy, one in [(made(one), one) for one in self.fixed]:
            self.create_proxy("call_function", require_default, (proxy, one.default, one.name), {})
        return root_fn, [self.root, *given]

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace through a part, or call it if it cannot be traced."""
        before = next(reversed(self.graph.nodes), None)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # a forward may raise anything when it is given a tracer
            path = self.path_of_module(m)
            if path not in self.may_be_called:
                raise
            for node in list(reversed(self.graph.nodes)):
                if node is before:
                    break
                self.graph.erase_node(node)
            self.reasons[path] = _reason(error)
            return self.create_proxy("call_module", path, args, kwargs)


def _reason(error: Exception) -> str:
    """Say what cannot be traced, and in which line: the last one that is not torch's or of this file."""
    what = next(iter(str(error).strip().splitlines()), "").partition(". ")[0] or type(error).__name__
    torchs = str(Path(torch.__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((torchs, __file__, "<"))
    ]
    return f"{what} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else what


@has_side_effect
def require_default(value: Any, default: Any, name: str) -> Any:
    """Refuse an argument that the network was not compiled for."""
    if isinstance(value, fx.Proxy):  # unpickling a compiled network traces it again
        return value.tracer.create_proxy("call_function", require_default, (value, default, name), {})
    if value is not default and (isinstance(value, Tensor) or value != default):
        raise ValueError(f"the network was compiled for {name}={default!r}: give it in the example to change that")
    return None


@has_side_effect
def require_size(x: Any, size: tuple[int, ...], name: str) -> Any:
    """Refuse samples of another size than a layer was compiled for, whose padding depends on it."""
    if isinstance(x, fx.Proxy):
        return x.tracer.create_proxy("call_function", require_size, (x, size, name), {})
    if x.shape[-len(size) :] != size:
        raise ValueError(
            f'"{name}" pads its input by its size and was compiled for {size}, got {tuple(x.shape[-len(size) :])}: '
            "compile the network for an example of that size"
        )
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
