"""A sparse layer: its weights, and everything that is done to its output before the next layer reads it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.graph.layers import is_plain_layer, padding_of
from secateur.graph.simplify import TINY
from secateur.run.sparse_weight import Array, SparseWeight

Activation = Literal["none", "relu", "relu6", "gelu", "gelu_tanh", "silu", "hardswish"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
}
# How a linear layer flattens its input: each sample to one vector, x.flatten(1), or x.view(-1, features).
Flattens = Literal["samples", "features"]


def flattened(x: Tensor, how: Flattens | None, features: int) -> Tensor:
    """Return what a linear layer of so many features reads of x."""
    if how is None:
        return x
    return x.flatten(1) if how == "samples" else x.reshape(-1, features)


@dataclass(frozen=True)
class Window:
    """How a convolution moves over an image: (vertical, horizontal) each.

    With `lines`, samples are (channels, length): images of one row, as the kernels see them.
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)  # zeros at the top and at the left
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    lines: bool = False
    extra: tuple[int, int] = (0, 0)  # how many more zeros there are at the bottom and at the right

    def padded(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of an image with its zeros."""
        high, wide = (size[k] + 2 * self.padding[k] + self.extra[k] for k in (0, 1))
        return high, wide

    def framed_by(self, frame: tuple[int, int, int, int]) -> Window:
        """Return the window with more zeros: (left, right, top, bottom), as torch orders them."""
        left, right, top, bottom = frame
        padding = self.padding[0] + top, self.padding[1] + left
        return replace(self, padding=padding, extra=(self.extra[0] + bottom - top, self.extra[1] + right - left))

    def out(self, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the result for an image of `size`."""
        padded = self.padded(size)
        high, wide = ((padded[k] - self.dilation[k] * (kernel[k] - 1) - 1) // self.stride[k] + 1 for k in (0, 1))
        return high, wide


@dataclass(frozen=True)
class Pool:
    """Max-pooling of squares, without padding, after the activation."""

    size: int
    stride: int

    def out(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the result for an image of `size`."""
        high, wide = ((side - self.size) // self.stride + 1 for side in size)
        return high, wide


@dataclass(frozen=True)
class SparseLayer:
    """A sparse linear layer, or a sparse convolution if it has a window: pool(activation(weight · x + bias))."""

    weight: SparseWeight
    bias: Array  # float32, one for each row
    activation: Activation = "none"
    window: Window | None = None
    pool: Pool | None = None

    @classmethod
    def of(cls, module: nn.Module, weight: SparseWeight | None = None) -> SparseLayer | None:
        """Return what a module computes, or None if it is not a plain layer."""
        if not is_plain_layer(module):
            return None
        assert isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
        weight = weight or SparseWeight.of(module.weight)
        rows = weight.shape[0]
        given = module.bias
        bias = np.zeros(rows, np.float32) if given is None else given.detach().float().numpy().copy()
        bias[np.abs(bias) < TINY] = 0  # a row without weights would return the denormal
        if isinstance(module, nn.Linear):
            return cls(weight, bias)
        padding, lines = padding_of(module), isinstance(module, nn.Conv1d)
        assert padding is not None
        if lines:
            weight = replace(weight, shape=(*weight.shape[:2], 1, *weight.shape[2:]))
        window = Window(_pair(module.stride), padding, _pair(module.dilation), module.groups, lines)
        return cls(weight, bias, window=window)

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of a filter."""
        return self.weight.shape[2], self.weight.shape[3]

    @property
    def inputs(self) -> int:
        """Features, or channels."""
        return self.weight.shape[1] * (self.window.groups if self.window else 1)

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter reads one channel, its own, in a way for which there is a kernel."""
        window, rows = self.window, self.weight.shape[0]
        alone = window is not None and window.groups == rows and self.weight.shape[1] == 1
        return alone and window is not None and window.dilation == (1, 1) and self.pool is None

    @property
    def dimensions(self) -> int:
        """Those of a sample: features, (channels, length), or (channels, height, width)."""
        return 1 if self.window is None else 2 if self.window.lines else 3

    def image(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the channels, height and width of a convolution's sample."""
        channels, *size = shape[-self.dimensions :]
        high, wide = (1, *size)[-2:]
        return channels, high, wide

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one sample of the result, given that of one sample of the input."""
        rows = self.weight.shape[0]
        if self.window is None:
            if math.prod(shape) != self.inputs:
                raise ValueError(f"a layer takes {self.inputs:,} features, the one before gives {shape}")
            return (rows,)
        _, high, wide = self.image(shape)
        size = self.window.out((high, wide), self.kernel)
        if min(size) < (self.pool.size if self.pool else 1):
            what = "the layer's filters" + (" and its pool" if self.pool else "")
            raise ValueError(f"images of {high} × {wide} pixels are smaller than {what}")
        return (rows, *(self.pool.out(size) if self.pool else size[1 - self.dimensions :]))

    def multiplications(self, shape: tuple[int, ...]) -> int:
        """Count the multiplications with weights, for one sample of this shape."""
        if self.window is None:
            return self.weight.count
        _, high, wide = self.image(shape)
        return self.weight.count * math.prod(self.window.out((high, wide), self.kernel))

    # The same in plain torch, for machines without the native library and for the tests.

    @cached_property
    def _csr(self) -> list[Tensor]:
        """Compressed rows, for each group of filters."""
        if self.window is None or self.window.groups == 1:
            return [self.weight.csr()]
        dense = self.weight.dense()
        return [SparseWeight.of(part).csr() for part in dense.chunk(self.window.groups)]

    @cached_property
    def _dense(self) -> Tensor:
        return self.weight.dense()

    def twin(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the layer with torch's own sparse products."""
        bias = torch.from_numpy(self.bias)
        y = _multiply(self._csr[0], x) + bias if self.window is None else self._convolve(x, self.window, bias)
        return self.finish(y, residual)

    def finish(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Do with torch what follows the product: residual, activation and pooling."""
        if residual is not None:
            y = y + residual
        y = ACTIVATIONS[self.activation](y)
        return y if self.pool is None else F.max_pool2d(y, self.pool.size, self.pool.stride)

    def _convolve(self, x: Tensor, window: Window, bias: Tensor) -> Tensor:
        channels, high, wide = self.image(tuple(x.shape))
        size = window.out((high, wide), self.kernel)[1 - self.dimensions :]
        (top, left), (padded_high, padded_wide) = window.padding, window.padded((high, wide))
        images = F.pad(
            x.reshape(-1, channels, high, wide), (left, padded_wide - wide - left, top, padded_high - high - top)
        )
        if self.is_depthwise:
            return F.conv2d(images, self._dense, bias, window.stride, groups=window.groups).view(len(x), -1, *size)
        columns = F.unfold(images, self.kernel, window.dilation, 0, window.stride)
        parts = []
        for csr, taps in zip(self._csr, columns.chunk(window.groups, 1), strict=True):
            flat = taps.transpose(0, 1).reshape(taps.shape[1], -1)
            parts.append((csr @ flat).view(csr.shape[0], len(x), -1).transpose(0, 1))
        return (torch.cat(parts, 1) + bias[:, None]).view(len(x), -1, *size)


def _pair(given: tuple[int, ...]) -> tuple[int, int]:
    """Return a setting as (vertical, horizontal): a line does not move vertically."""
    down, right = (1, *given)[-2:]
    return down, right


def _multiply(csr: Tensor, x: Tensor) -> Tensor:
    # `F.linear(x, csr)` takes three to twenty times as long, and a matrix with one column twice.
    if len(x) == 1:
        return torch.mv(csr, x[0])[None]
    return (csr @ x.t().contiguous()).t()
