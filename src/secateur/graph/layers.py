"""Which modules are layers exactly as torch wrote them, so that something else may compute them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # and no subclasses, whose forward may be another


def is_plain_layer(module: nn.Module) -> bool:
    """Return whether a module is torch's own linear layer or convolution, in float32 on the CPU and padded by zeros."""
    if type(module) not in LAYERS:
        return False
    if set(module._parameters) != {"weight", "bias"} or module._buffers:
        return False
    if isinstance(module, nn.Conv1d | nn.Conv2d) and (module.padding_mode != "zeros" or padding_of(module) is None):
        return False
    return all(
        parameter is None or (parameter.dtype is torch.float32 and parameter.device.type in ("cpu", "meta"))
        for parameter in module._parameters.values()
    )


def is_depthwise(module: nn.Module | None) -> bool:
    """Return whether a module is a convolution without gaps whose filters each read one channel, their own."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d) or set(module.dilation) != {1}:
        return False
    return module.groups == module.in_channels == module.out_channels


def padding_of(module: nn.Conv1d | nn.Conv2d) -> tuple[int, int] | None:
    """Return the zeros on each side, (vertical, horizontal); None if two sides differ, as with padding="same"."""
    left, right, top, bottom = (*module._reversed_padding_repeated_twice, 0, 0)[:4]
    return (top, left) if (top, left) == (bottom, right) else None


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer of these very tensors."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    _fill(made, weight, bias)
    return made.eval()


def convolution_of(kind: Any, weight: Tensor, bias: Tensor | None, settings: dict[str, Any]) -> nn.Module:
    """Return a convolution of these very tensors; `settings` are stride, padding and so on, as functions take them."""
    sizes = {name: _size(value) for name, value in settings.items()}
    channels, kernel = weight.shape[1] * settings.get("groups", 1), tuple(weight.shape[2:])
    made: nn.Module = kind(channels, len(weight), kernel, bias=bias is not None, device="meta", **sizes)
    _fill(made, weight, bias)
    return made.eval()


def _fill(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    layer.register_parameter("weight", _parameter(weight))
    if bias is not None:
        layer.register_parameter("bias", _parameter(bias))


def _parameter(tensor: Tensor) -> nn.Parameter:
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor.detach().contiguous(), requires_grad=False)


def _size(value: Any) -> Any:
    """Return a setting as layers take it: functions also take lists, and one number in a list for all dimensions."""
    if isinstance(value, list | tuple):
        return value[0] if len(value) == 1 else tuple(value)
    return value
