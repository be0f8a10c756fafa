"""Weights without their zeros."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.graph.simplify import TINY

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class SparseWeight:
    """The non-zeros of a weight (rows, inputs, …): where they stand in the flat tensor, ascending, and their values."""

    places: Array  # int32, or int64 where that is too small
    values: npt.NDArray[np.float32]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, weight: Tensor) -> SparseWeight:
        """Take a dense weight apart; denormals count as zeros."""
        flat = weight.detach().to(torch.float32).cpu().contiguous().reshape(-1).numpy()
        places = np.flatnonzero(_matters(flat))
        narrow = places.astype(np.int32) if flat.size < 1 << 31 else places
        return cls(narrow, flat[places], tuple(weight.shape))

    @classmethod
    def of_sparse(cls, places: Array, values: Array, shape: tuple[int, ...]) -> SparseWeight:
        """Take the non-zeros that a file lists; negative zeros and denormals among them are left out."""
        values = values.astype(np.float32, copy=False)
        kept = _matters(values)
        return cls(places, values, shape) if kept.all() else cls(places[kept], values[kept], shape)

    @property
    def count(self) -> int:
        """How many weights are left."""
        return len(self.values)

    @property
    def density(self) -> float:
        """The share of the weights that are left."""
        return self.count / max(math.prod(self.shape), 1)

    def dense(self) -> Tensor:
        """Return the weight with its zeros."""
        flat = np.zeros(math.prod(self.shape), np.float32)
        flat[self.places] = self.values
        return torch.from_numpy(flat).reshape(self.shape)

    def rows_and_columns(self) -> tuple[Array, Array]:
        """Return the row of each weight, and its place within the row."""
        columns = math.prod(self.shape[1:])
        row = self.places // columns
        return row, self.places - row * columns

    def with_rows_times(self, factor: Array) -> SparseWeight:
        """Return the weight with each row multiplied by its factor; what becomes zero or denormal is left out."""
        row, _ = self.rows_and_columns()
        return SparseWeight.of_sparse(self.places, self.values * factor[row].astype(np.float32), self.shape)

    def csr(self) -> Tensor:
        """Return torch's compressed rows, with the 32-bit indices that it multiplies fastest."""
        row, column = self.rows_and_columns()
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=self.shape[0]))]).astype(np.int32)
        return torch.sparse_csr_tensor(
            torch.from_numpy(starts),
            torch.from_numpy(column.astype(np.int32)),
            torch.from_numpy(self.values),
            (self.shape[0], math.prod(self.shape[1:])),
            check_invariants=False,
        )


def _matters(values: Array) -> Array:
    """Mark the values that are not zero or denormal; NaN, which compares false, is marked."""
    marks: Array = ~(np.abs(values) < TINY)
    return marks
