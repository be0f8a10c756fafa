"""Which modules are layers exactly as torch wrote them, so that something else may compute them."""

from __future__ import annotations

import torch
from torch import nn


def is_plain_layer(module: nn.Module) -> bool:
    """Return whether a module is torch's own linear layer or convolution, in float32 on the CPU and padded by zeros."""
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d):
        return False
    if set(module._parameters) != {"weight", "bias"} or module._buffers:
        return False
    if isinstance(module, nn.Conv1d | nn.Conv2d) and (module.padding_mode != "zeros" or padding_of(module) is None):
        return False
    return all(
        parameter is None or (parameter.dtype is torch.float32 and parameter.device.type in ("cpu", "meta"))
        for parameter in module._parameters.values()
    )


def padding_of(module: nn.Conv1d | nn.Conv2d) -> tuple[int, int] | None:
    """Return the zeros on each side, (vertical, horizontal); None if two sides differ, as with padding="same"."""
    left, right, top, bottom = (*module._reversed_padding_repeated_twice, 0, 0)[:4]
    return (top, left) if (top, left) == (bottom, right) else None
