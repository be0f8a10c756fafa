"""The roofline of a machine: the least time that reading and multiplying could take on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from secateur.measure.latency import Clock, shortest

_READ_BYTES = tuple(1 << shift for shift in range(20, 29))  # from what a cache holds to what no cache holds
_MATRIX = 768


@dataclass(frozen=True)
class Machine:
    """What dense torch reaches here: how fast it reads so many bytes again and again, and how fast it multiplies."""

    threads: int
    read_gbs: tuple[tuple[int, float], ...]  # (bytes, GB/s), from the fewest bytes, which caches hold, to the most
    gflops: float

    def bandwidth(self, working_set: int) -> float:
        """Return how many GB/s are read if so many bytes take turns."""
        return next((speed for size, speed in self.read_gbs if working_set <= size), self.read_gbs[-1][1])

    def limit(self, nbytes: int, flops: int, working_set: int) -> Limit:
        """Return the least time for reading `nbytes` out of a working set and computing `flops`."""
        by_bytes = nbytes / self.bandwidth(working_set) / 1e6
        by_flops = flops / self.gflops / 1e6
        return Limit(by_bytes, "bytes") if by_bytes >= by_flops else Limit(by_flops, "flops")


@dataclass(frozen=True)
class Limit:
    """The least time that a layer could take, and what sets it."""

    ms: float
    by: Literal["bytes", "flops"]


@cache
def machine(threads: int) -> Machine:
    """Measure this machine, once in a process for each number of threads: torch must be using that many."""
    return measure_machine(threads)


def measure_machine(
    threads: int, *, read_bytes: Sequence[int] = _READ_BYTES, matrix: int = _MATRIX, clock: Clock = time.perf_counter
) -> Machine:
    """Let torch sum tensors and multiply matrices, and keep the best of a few times: noise only ever adds."""
    with torch.inference_mode():
        data = torch.ones(max(read_bytes) // 4)
        found: list[tuple[int, float]] = []
        for size in sorted(read_bytes, reverse=True):
            part = data[: size // 4]
            seconds = shortest(part.sum, 4 if size > 1 << 25 else 10, clock)
            # Fewer bytes can be read at least as fast: it is the call that takes its time.
            found.append((size, max(size / seconds / 1e9, found[-1][1] if found else 0.0)))
        square = torch.ones(matrix, matrix)
        seconds = shortest(lambda: square @ square, 4, clock)
    return Machine(threads, tuple(reversed(found)), 2 * matrix**3 / seconds / 1e9)
