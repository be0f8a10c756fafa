"""Vector codebooks: pieces of a matrix's rows are sums of entries of codebooks (product, residual quantisation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from secateur.encode.formulas.formula import CHUNK, Formula, Part, as_float64, block_size, require_float, rounded
from secateur.encode.levels import view_2d


@dataclass(frozen=True)
class Vectors(Formula):
    """Row i of the matrix, cut into `segments` of equal width: segment s is Σ_t codebook[t, s, index[t, i, s]].

    Each of the `rounds` has `codebooks` of `centroids` entries: one for each segment, or one for all.
    """

    name: ClassVar[str] = "vectors"
    segments: int
    rounds: int
    codebooks: int
    centroids: int

    def parts(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Return the codebooks and the indices."""
        rows, columns = require_float(dtype, shape)
        is_sound = self.segments and columns % self.segments == 0 and self.codebooks in (1, self.segments)
        if not is_sound or not self.rounds or not 1 <= self.centroids < 1 << 31:
            raise ValueError(f"a matrix of {rows:,} × {columns:,} cannot be {self}")
        width = columns // self.segments
        return (
            Part("codebook", dtype, (self.rounds, self.codebooks, self.centroids, width)),
            Part("index", torch.int32, (self.rounds, rows, self.segments), is_index=True),
        )

    def compute(self, parts: Sequence[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the sums, for t = 0, 1, … in float64."""
        codebook, index = as_float64(parts[0]), parts[1].numpy()
        if index.min() < 0 or index.max() >= self.centroids:
            raise ValueError(f"an index is not below {self.centroids:,}, the number of centroids")
        rows, columns = view_2d(shape)
        result = torch.empty((rows, columns), dtype=dtype)
        height, own = max(CHUNK // columns, 1), np.arange(self.segments) % self.codebooks
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(0, rows, height):
                block = slice(start, start + height)
                total = codebook[0][own, index[0, block]]
                for t in range(1, self.rounds):
                    total += codebook[t][own, index[t, block]]
                result[block] = rounded(total.reshape(-1, columns), dtype)
        return result.view(shape)

    def working_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the memory of the codebooks in float64, and of a block of rows."""
        columns = view_2d(shape)[1]
        return 8 * self.rounds * self.codebooks * self.centroids * (columns // self.segments) + 32 * block_size(
            shape, columns
        )
