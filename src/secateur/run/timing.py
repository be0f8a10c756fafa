"""Time calls against each other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from secateur.measure.latency import Clock

clock: Clock = time.perf_counter  # benchmarks on a machine that is busy set the CPU time of the thread
_LEAST_REPEATS, _MOST_REPEATS, _BUDGET_MS = 3, 25, 12.0


def race(
    calls: Sequence[Callable[[], object]], *, budget_ms: float = _BUDGET_MS, most: int = _MOST_REPEATS
) -> list[float]:
    """Time calls in turns and return the shortest time of each, in milliseconds: noise only ever adds.

    Their order alternates and rotates: a call that always followed a large one would find the cache empty, and lose.
    """
    best = [math.inf] * len(calls)
    start = time.perf_counter()
    for call in calls:
        call()  # lays out weights and warms up
    order = list(range(len(calls)))
    for done in range(most):
        for index in order:
            begin = clock()
            calls[index]()
            best[index] = min(best[index], (clock() - begin) * 1e3)
        order.reverse()
        if done % 2:
            order = [*order[1:], order[0]]
        if done + 1 >= _LEAST_REPEATS and (time.perf_counter() - start) * 1e3 > budget_ms * len(calls):
            break
    return best
