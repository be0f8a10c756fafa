"""Hashed buckets: a hash of its row and column says which of few values an element has, and with which sign."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from secateur.encode.formulas.formula import CHUNK, Array, Formula, Part, block_size, require_float
from secateur.encode.levels import view_2d

_PRIMES = tuple(map(np.uint32, (2654435761, 2246822519, 3266489917, 668265263, 374761393)))


@dataclass(frozen=True)
class Hashed(Formula):
    """W[i, j] = ±values[h(i, j) mod buckets], negative if the lowest bit of h'(i, j) is set.

    h and h' are XXH32 of i and j, four bytes each, with `seed` and with `seed` + 1.
    """

    name: ClassVar[str] = "hashed"
    seed: int
    buckets: int

    def parts(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Return the values of the buckets."""
        rows, columns = require_float(dtype, shape)
        if not 1 <= self.buckets <= rows * columns or max(self.seed, rows, columns) >= 1 << 32:
            given = f"{self.buckets:,} buckets of seed {self.seed:,}"
            raise ValueError(f"a matrix of {rows:,} × {columns:,} cannot have {given}")
        return (Part("values", dtype, (self.buckets,)),)

    def compute(self, parts: Sequence[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the value of each element's bucket with its sign."""
        result = torch.empty(shape, dtype=dtype).view(-1)
        for start, places, is_negative in self.chunks(shape):
            values = parts[0][torch.from_numpy(places)]
            result[start : start + len(places)] = torch.where(torch.from_numpy(is_negative), -values, values)
        return result.view(shape)

    def working_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the memory of the hashes of a few elements."""
        return 64 * block_size(shape)

    def chunks(self, shape: tuple[int, ...]) -> Iterator[tuple[int, Array, Array]]:
        """Yield, for elements from a place on, the number of the bucket and whether the sign is negative."""
        rows, columns = view_2d(shape)
        for start in range(0, rows * columns, CHUNK):
            place = np.arange(start, min(start + CHUNK, rows * columns), dtype=np.int64)
            row, column = (place // columns).astype(np.uint32), (place % columns).astype(np.uint32)
            buckets = xxh32(row, column, self.seed) % np.uint32(min(self.buckets, (1 << 32) - 1))
            yield start, buckets.astype(np.int64), (xxh32(row, column, self.seed + 1) & np.uint32(1)).astype(bool)


def xxh32(first: Array, second: Array, seed: int) -> Array:
    """Return XXH32 of the eight bytes of two 32-bit numbers each."""
    one, two, three, four, five = _PRIMES
    del one  # which is for longer texts
    with np.errstate(over="ignore"):
        state: Array = np.uint32(seed & 0xFFFFFFFF) + five + np.uint32(8) + first * three
        state = _rotated(state) * four + second * three
        state = _rotated(state) * four
        state = (state ^ state >> np.uint32(15)) * two
        state = (state ^ state >> np.uint32(13)) * three
        state ^= state >> np.uint32(16)
        return state


def _rotated(state: Array) -> Array:
    turned: Array = state << np.uint32(17) | state >> np.uint32(15)
    return turned
