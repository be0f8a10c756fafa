"""The forward pass of a model as a graph, by torch.fx, one thread at a time."""

from __future__ import annotations

import threading

from torch import fx, nn

# While torch.fx traces, it replaces `nn.Module.__call__` for the whole process, and two threads that do so at once
# leave one of the replacements behind for good. Whoever traces holds this, also to unpickle a graph; and whoever calls
# modules in between, until that is done.
TRACING = threading.RLock()


def symbolic_trace(model: nn.Module) -> fx.GraphModule:
    """Trace a model; its forward may raise anything when it is given a tracer."""
    with TRACING:
        return fx.symbolic_trace(model)
