"""What a codec is told about a level matrix before it sees a byte of it, and how anything wrong is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
SparseLevels: TypeAlias = tuple[Places, npt.NDArray[np.int32]]  # where levels are not zero, in rising order, and those

MOST_LEVELS = 65_536  # zero included


class FormatError(ValueError):
    """A file that is not a sound .cut file: what is wrong, in which tensor, at which byte."""

    def __init__(self, message: str, *, offset: int | None = None, tensor: str | None = None) -> None:
        place = [f'tensor "{tensor}"'] if tensor is not None else []
        place += [f"byte {offset}"] if offset is not None else []
        super().__init__(f"{', '.join(place)}: {message}" if place else message)
        self.message, self.offset, self.tensor = message, offset, tensor

    def inside(self, tensor: str, start: int) -> FormatError:
        """Return the same error of a stream, told by a file that holds this stream at byte `start`."""
        return FormatError(self.message, offset=start + (self.offset or 0), tensor=tensor)


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
