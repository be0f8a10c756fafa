"""What calling a network may change, its inputs and its buffers, and how to undo that."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree


def fresh(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy inputs, for networks that write into theirs."""
    copied: tuple[Any, ...] = pytree.tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, inputs)
    return copied


def writes(one: object) -> int:
    """Return how often a tensor was written to; 0 for one made in inference mode, which does not count."""
    return one._version if isinstance(one, Tensor) and not one.is_inference() else 0


class Rewind:
    """Resets the buffers of a model to what they were: a trial call may change them."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (module, name, buffer, None if buffer is None else buffer.clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
        ]
        self._writes = [writes(buffer) for _, _, buffer, _ in self._kept]

    def __call__(self) -> bool:
        """Reset the buffers, and return whether any had changed."""
        changed = False
        for k, (module, name, buffer, value) in enumerate(self._kept):
            changed |= module._buffers.get(name) is not buffer or writes(buffer) != self._writes[k]
            module._buffers[name] = buffer
            # Only what was written to: a buffer may be an expanded view, which cannot be written.
            if buffer is not None and value is not None and writes(buffer) != self._writes[k]:
                buffer.copy_(value)
                self._writes[k] = writes(buffer)
        return changed
