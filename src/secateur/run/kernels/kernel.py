"""In which way a chain of sparse layers runs."""

from __future__ import annotations

from dataclasses import dataclass

from secateur.run.kernels import bindings


@dataclass(frozen=True)
class Kernel:
    """How a chain runs: sample by sample, or in panels of so many vector registers; and how large its blocks are.

    `spread` multiplies the number of columns or channels that a block would have by the size of the cache alone. With
    `shared`, layers of at most 255 distinct values read them from a table. With `aligned`, convolutions read pixels by
    whole lines of the cache: images are copied for it, and sums move instead of loads.
    """

    vectors: int = 0
    spread: int = 1
    shared: bool = False
    aligned: bool = False

    def __post_init__(self) -> None:
        if self.vectors not in (0, 1, 2, 4, 8):
            raise ValueError(f"a panel has 1, 2, 4 or 8 vectors, or there is none (0): got {self.vectors}")
        if not 1 <= self.spread <= 1 << 20:
            raise ValueError(f"spread must be between 1 and {1 << 20}, got {self.spread}")

    @property
    def name(self) -> str:
        """What it is called in tables."""
        way = f"panel {self.vectors * bindings.lanes()}" if self.vectors else "sample"
        marks = (f"×{self.spread}" if self.spread > 1 else "", "aligned" * self.aligned, "shared" * self.shared)
        return " ".join((way, *filter(None, marks)))
