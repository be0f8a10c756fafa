"""What the table of networks knows about each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that can be built by name.

    `build` is called with the number of classes and the input shape. If it is a class whose instances have the
    attributes `classes` and `input_shape`, files can name the network and are loaded without its code being given.
    """

    name: str
    title: str  # one line of help
    build: Callable[[int, Shape], nn.Module]
    input_shape: Shape  # the usual one
    classes: int  # the usual number
    smallest_size: int | None  # least height and width, with any number of channels; None: only `input_shape` is taken

    def takes(self, input_shape: Shape) -> bool:
        """Return whether the network can be built for images of this shape."""
        if self.smallest_size is None:
            return input_shape == self.input_shape
        return input_shape[0] >= 1 and min(input_shape[1:]) >= self.smallest_size

    def require(self, classes: int, input_shape: Shape) -> None:
        """Raise a ValueError unless the network can be built for these."""
        if classes < 1:
            raise ValueError(f"{self.name}: classes must be ≥ 1, got {classes}")
        if len(input_shape) != 3 or not self.takes(input_shape):
            taken = f"images of shape {self.input_shape} only"
            if self.smallest_size is not None:
                taken = f"images (channels, height, width) of at least {self.smallest_size}×{self.smallest_size} pixels"
            raise ValueError(f"{self.name} takes {taken}, got {input_shape}")
