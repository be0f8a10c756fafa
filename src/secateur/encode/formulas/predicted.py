"""Predicted weights: some columns of a matrix are stored, the others follow by kernel ridge regression on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from secateur.encode.formulas.formula import Array, Formula, Part, as_float64, block_size, require_float
from secateur.encode.formulas.product import multiplied
from secateur.encode.levels import view_2d

_MOST_PLACES = 4096


@dataclass(frozen=True)
class Predicted(Formula):
    """W[i] = V[i] · (K + λ·1)⁻¹ · k, for the rows i of each of `groups` that have `known` places α in common.

    Columns are points of a grid (channels, height, width). K is the kernel among the places α, k the kernel between
    these and all points: q^(Δy² + Δx²) within a channel, 0 between two.
    """

    name: ClassVar[str] = "predicted"
    groups: int
    known: int
    channels: int
    height: int
    width: int

    def parts(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Return q and λ, the places, and what is stored for them."""
        rows, columns = require_float(dtype, shape)
        is_sound = self.groups and rows % self.groups == 0 and self.channels * self.height * self.width == columns
        if not is_sound or not 1 <= self.known <= min(columns, _MOST_PLACES):
            raise ValueError(f"a matrix of {rows:,} × {columns:,} cannot be {self}")
        return (
            Part("constants", torch.float64, (2,)),
            Part("places", torch.int32, (self.groups, self.known), is_index=True),
            Part("values", dtype, (rows, self.known)),
        )

    def compute(self, parts: Sequence[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the prediction, group by group."""
        constants, places, values = parts
        result = torch.empty(view_2d(shape), dtype=dtype)
        for own, known, group in zip(places, values.chunk(self.groups), result.chunk(self.groups), strict=True):
            group.copy_(multiplied(as_float64(known), self.dictionary(constants, own), dtype))
        return result.view(shape)

    def dictionary(self, constants: Tensor, places: Tensor) -> Array:
        """Return (K + λ·1)⁻¹ · k of (known, columns): what one stored number adds to each column."""
        q, ridge = constants.tolist()
        columns = self.channels * self.height * self.width
        if not (0 < q <= 1 and 0 < ridge < np.inf):
            raise ValueError(f"q must lie in (0, 1] and λ above 0, got {q} and {ridge}")
        if int(places.min()) < 0 or int(places.max()) >= columns:
            raise ValueError(f"a place is not below {columns:,}, the number of columns")
        chosen = places.numpy().astype(np.int64)
        kernel = self._kernel(q, chosen, np.arange(columns))
        matrix = kernel[:, chosen]
        matrix[np.arange(self.known), np.arange(self.known)] += ridge
        return solved(matrix, kernel)

    def _kernel(self, q: float, first: Array, second: Array) -> Array:
        area, size = self.height * self.width, max(self.height, self.width)
        with np.errstate(under="ignore"):
            odd = q * np.cumprod(np.concatenate([[1.0], np.full(max(size - 2, 0), q * q)]))  # q^(2d − 1)
            powers = np.cumprod(np.concatenate([[1.0], odd]))  # q^(d²)
            vertical = np.abs(first[:, None] % area // self.width - second % area // self.width)
            near: Array = powers[vertical]
            near *= powers[np.abs(first[:, None] % self.width - second % self.width)]
        near[first[:, None] // area != second // area] = 0
        return near

    def working_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the memory of the kernel, of distances, of the dictionary and of a block of rows."""
        columns = view_2d(shape)[1]
        return (
            8 * self.known * (5 * columns + 3 * self.known)
            + 8 * view_2d(shape)[0] * self.known
            + 24 * block_size(shape, columns)
        )


def solved(matrix: Array, right: Array) -> Array:
    """Return matrix⁻¹ · right by Cholesky's L·Lᵀ, number by number: a library's order depends on the machine."""
    left, size = matrix.copy(), len(matrix)
    for k in range(size):
        pivot = left[k, k]
        if not pivot > 0:
            raise ValueError("the kernel of the places is singular")
        left[k:, k] /= np.sqrt(pivot)
        left[k + 1 :, k + 1 :] -= left[k + 1 :, k, None] * left[k + 1 :, k]
    found: Array = right.copy()
    for k in range(size):
        found[k] /= left[k, k]
        found[k + 1 :] -= left[k + 1 :, k, None] * found[k]
    for k in reversed(range(size)):
        found[k] /= left[k, k]
        found[:k] -= left[k, :k, None] * found[k]
    return found
