"""A low-rank product: a matrix as a narrow one times a flat one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from secateur.encode.formulas.formula import CHUNK, Array, Formula, Part, as_float64, block_size, require_float, rounded


@dataclass(frozen=True)
class Product(Formula):
    """W = A·B, A of (rows, rank) and B of (rank, columns).

    Bit d of `pairing` is set if dimension d of the tensor counts its rows; the others count its columns, each in their
    order: 1 for a linear layer or for filters by (channels, height, width), 2 for channels by (filters, height, width).
    """

    name: ClassVar[str] = "low-rank"
    pairing: int
    rank: int

    def parts(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Return the two factors."""
        require_float(dtype, shape)
        rows, columns = (math.prod(shape[d] for d in side) for side in self.sides(len(shape)))
        if not 0 < self.pairing < (1 << len(shape)) - 1:
            raise ValueError(f"pairing {self.pairing} leaves no rows or no columns in a tensor of shape {shape}")
        if not 1 <= self.rank <= min(rows, columns):
            raise ValueError(f"a matrix of {rows:,} × {columns:,} cannot have rank {self.rank:,}")
        return Part("left", dtype, (rows, self.rank)), Part("right", dtype, (self.rank, columns))

    def compute(self, parts: Sequence[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return A·B: for k = 0, 1, … products A[i, k]·B[k, j] are added in float64."""
        rows, columns = self.sides(len(shape))
        matrix = multiplied(as_float64(parts[0]), as_float64(parts[1]), dtype)
        order = [*rows, *columns]
        folded = matrix.view([shape[d] for d in order])
        return folded.permute([order.index(d) for d in range(len(shape))]).contiguous()

    def working_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the memory of the factors in float64, of a block of rows, and of the product before it is folded."""
        rows, columns = (math.prod(shape[d] for d in side) for side in self.sides(len(shape)))
        return 8 * self.rank * (rows + columns) + 24 * block_size(shape, columns) + 8 * rows * columns

    def sides(self, dimensions: int) -> tuple[list[int], list[int]]:
        """Return which dimensions count rows and which columns."""
        rows = [d for d in range(dimensions) if self.pairing >> d & 1]
        return rows, [d for d in range(dimensions) if d not in rows]


def multiplied(left: Array, right: Array, dtype: torch.dtype) -> Tensor:
    """Return left·right, term by term in rising order, in float64, rounded to a dtype.

    Not by a library for matrices: these add in an order that depends on the machine.
    """
    rows, columns = len(left), right.shape[1]
    result = torch.empty((rows, columns), dtype=dtype)
    height = max(CHUNK // columns, 1)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, rows, height):
            block = left[start : start + height]
            total, term = np.zeros((len(block), columns)), np.empty((len(block), columns))
            for k in range(len(right)):
                np.multiply(block[:, k, None], right[k], out=term)
                np.add(total, term, out=total)
            result[start : start + height] = rounded(total, dtype)
    return result
