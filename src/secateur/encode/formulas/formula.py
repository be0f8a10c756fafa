"""What a formula is: how a tensor is computed from smaller ones, its parts, so that only these are stored.

Arithmetic is part of the format: every formula says in which order it adds, in float64, and where it rounds, so that a
file gives the same bits on every machine. It uses nothing but sums, products, quotients and roots of single numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.encode.levels import view_2d

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
CHUNK = 1 << 15  # numbers worked on at a time

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """A tensor that a formula reads. Every number of an index is stored, of other parts those that are not zero."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_index: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Formula(ABC):
    """How a tensor is computed. The fields of a formula are whole numbers, which a file stores in their order."""

    name: ClassVar[str]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields."""
        return astuple(self)

    @abstractmethod
    def parts(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Return what a tensor of this kind is computed from; raise a ValueError if there is no such tensor."""

    @abstractmethod
    def compute(self, parts: Sequence[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor; parts that make no sense are a ValueError."""

    @abstractmethod
    def working_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the memory that computing takes in addition to the parts and the tensor."""


class ComputedTensor:
    """A tensor as the parts that it is computed from."""

    def __init__(self, formula: Formula, parts: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype) -> None:
        self.formula, self.parts = formula, tuple(part.detach().cpu().contiguous() for part in parts)
        self.shape, self.dtype = tuple(shape), dtype
        expected = formula.parts(dtype, self.shape)
        if [(part.dtype, part.shape) for part in expected] != [(part.dtype, tuple(part.shape)) for part in self.parts]:
            got = ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in self.parts)
            wanted = ", ".join(f"{part.dtype} {part.shape}" for part in expected)
            raise ValueError(f"a tensor of shape {self.shape} as {formula} has the parts {wanted}, got {got}")

    @property
    def stored(self) -> int:
        """How many numbers have to be stored: those of the parts that are not zero, and all indices."""
        described = zip(self.formula.parts(self.dtype, self.shape), self.parts, strict=True)
        return sum(part.size if part.is_index else int(torch.count_nonzero(tensor)) for part, tensor in described)

    def value(self) -> Tensor:
        """Return the plain tensor."""
        return self.formula.compute(self.parts, self.dtype, self.shape)


def require_float(dtype: torch.dtype, shape: tuple[int, ...], least: int = 2) -> tuple[int, int]:
    """Return rows and columns of the matrix that a formula sees: the first dimension by all others."""
    if dtype not in FLOATS or len(shape) < least or 0 in shape:
        raise ValueError(f"a tensor of {dtype} and shape {shape} cannot be computed from smaller ones")
    return view_2d(shape)


def block_size(shape: tuple[int, ...], columns: int = 1) -> int:
    """Return how many numbers are worked on at a time: whole rows of so many columns."""
    return min(max(columns, CHUNK), math.prod(shape))


def rounded(values: Array, dtype: torch.dtype) -> Tensor:
    """Round float64 to float32 and then to a dtype, as every formula does in the end."""
    if dtype == torch.float64:
        return torch.from_numpy(np.ascontiguousarray(values))
    with np.errstate(over="ignore", under="ignore"):
        return torch.from_numpy(values.astype(np.float32)).to(dtype)


def as_float64(tensor: Tensor) -> Array:
    """Return the values of a part in float64, which holds all of them."""
    values: Array = tensor.to(torch.float64).numpy()
    return values
