"""What a codec knows about a level matrix before it reads a byte of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
SparseLevels: TypeAlias = tuple[Places, npt.NDArray[np.int32]]  # where levels are not zero, in rising order, and those

MOST_LEVELS = 65_536  # zero included


def empty_places(count: int, size: int) -> Places:
    """Return memory for `count` places among `size`, as narrow as they can be."""
    return np.empty(count, np.int32) if size < 1 << 31 else np.empty(count, np.int64)


@dataclass(frozen=True)
class Bounds:
    """The shape of a level matrix, how many of its levels are not zero, and the range they lie in."""

    rows: int
    columns: int
    nonzero: int
    smallest: int
    largest: int

    @property
    def size(self) -> int:
        """The number of levels, zeros included."""
        return self.rows * self.columns

    @classmethod
    def of(cls, levels: Matrix) -> Bounds:
        """Return the tightest bounds of `levels` that include zero."""
        rows, columns = levels.shape
        smallest, largest = (int(levels.min()), int(levels.max())) if levels.size else (0, 0)
        return cls(rows, columns, int(np.count_nonzero(levels)), min(smallest, 0), max(largest, 0))
