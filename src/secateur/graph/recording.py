"""What a small module computes, found by running it: for layers whose forward looks at the size of its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from secateur.graph.layers import convolution_of, linear_of

# What may be asked of a tensor without looking at its numbers.
_SIZES: tuple[Callable[..., Any], ...] = (Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.__len__)
_SIZES += (Tensor.shape.__get__, Tensor.ndim.__get__, Tensor.dtype.__get__, Tensor.device.__get__)  # type: ignore[attr-defined]
_RESHAPES = (Tensor.view, Tensor.reshape, torch.reshape, Tensor.contiguous)
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class Product:
    """A layer, and the zeros that are put around its input first, as torch orders them."""

    layer: nn.Module
    frame: tuple[int, ...] | None
    transposed: nn.Parameter | None = None  # what the module stores, if that is not the layer's weight


_Call: TypeAlias = "tuple[Any, tuple[Any, ...], dict[str, Any], Any]"  # function, arguments, and result


class _Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _SIZES:
            self.calls.append((func, args, kwargs or {}, made))
        return made


def recorded_product(module: nn.Module, shape: tuple[int, ...]) -> Product | None:
    """Return the layer that a module is for an input of this shape, or None if it is more than padding and a layer."""
    x = torch.zeros(shape)
    try:
        with torch.no_grad(), _Recorder() as recorder:
            out = module(x)
    except Exception:  # a forward may raise anything when it is given zeros
        return None
    calls, frame, source = recorder.calls, None, x
    if len(calls) == 2 and calls[0][0] is F.pad:
        given = dict(zip(("input", "pad", "mode", "value"), calls[0][1], strict=False)) | calls[0][2]
        constant = given.get("mode", "constant") == "constant" and given.get("value") in (None, 0)
        if given["input"] is not x or not constant:
            return None
        frame, source, calls = tuple(given["pad"]), calls[0][3], calls[1:]
    elif all(call[0] in (*_RESHAPES, torch.addmm) for call in calls):
        return _reshaped(calls, module, x, out)
    if len(calls) != 1 or calls[0][3] is not out or calls[0][0] not in (F.linear, F.conv1d, F.conv2d):
        return None
    function, args, kwargs, _ = calls[0]
    given = dict(zip(_CONVOLUTION, args, strict=False)) | kwargs
    layer = _layer(function, given, module) if given.pop("input") is source else None
    return None if layer is None else Product(layer, frame)


def _reshaped(calls: list[_Call], module: nn.Module, x: Tensor, out: Tensor) -> Product | None:
    """Return the linear layer of a module that makes vectors of its input, multiplies them, and restores its shape."""
    products = [call for call in calls if call[0] is torch.addmm]
    if len(products) != 1 or len(products[0][1]) != 3 or products[0][2]:
        return None
    bias, rows, weight = products[0][1]
    own = {id(parameter) for parameter in module.parameters(recurse=False)}
    fits = {id(bias), id(weight)} <= own and bias.shape == weight.shape[1:] and rows.data_ptr() == x.data_ptr()
    if not fits or rows.shape[1:] != x.shape[-1:] or out.shape != (*x.shape[:-1], weight.shape[1]):
        return None
    return Product(linear_of(weight.t(), bias), None, weight)


def _layer(function: object, given: dict[str, Any], module: nn.Module) -> nn.Module | None:
    own = {id(parameter) for parameter in module.parameters(recurse=False)}
    weight, bias = given.pop("weight"), given.pop("bias", None)
    if id(weight) not in own or (bias is not None and id(bias) not in own):
        return None
    if function is F.linear:
        return linear_of(weight, bias)
    return convolution_of(nn.Conv1d if function is F.conv1d else nn.Conv2d, weight, bias, given)
