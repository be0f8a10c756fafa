"""The latency of a network, alone or compared with rivals."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from secateur.measure.evaluating import evaluating

Clock = Callable[[], float]  # seconds

# A turn repeats its call for at least this long. Then the cost of reading the clock is negligible, and most calls find
# their weights in the cache, as in a stream of calls. After a rival's turn the cache is cold for the first call: with
# turns of 2 ms and calls of half a millisecond, that would be a quarter of all calls.
LEAST_TURN_MS = 5.0


@dataclass(frozen=True)
class Latency:
    """The times of repeated calls, in order."""

    times_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """The time that half of the calls do not exceed."""
        return statistics.median(self.times_ms)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        """The first and the third quartile."""
        first, _, third = statistics.quantiles(self.times_ms, n=4, method="inclusive")
        return first, third

    @property
    def iqr_ms(self) -> float:
        """The interquartile range: how far the middle half of the calls spreads."""
        first, third = self.quartiles_ms
        return third - first


@dataclass(frozen=True)
class Comparison:
    """A rival's times compared with those of the first rival: below 1 it is faster.

    `time_ratio` is the median over the rounds of its time ÷ the first's time in the same round; `interval` is
    the confidence interval of that median.
    """

    latency: Latency
    time_ratio: float
    interval: tuple[float, float]


def latency_ms(
    model: nn.Module,
    *example_inputs: object,
    repeats: int = 100,
    warmup: int = 10,
    clock: Clock = time.perf_counter,
) -> Latency:
    """Time `model(*example_inputs)` in evaluation mode without gradients.

    The caller sets the number of threads and the handling of denormals; no global state is changed here.
    """
    if repeats < 2:
        raise ValueError(f"repeats must be ≥ 2 for quartiles, got {repeats}")
    with evaluating(model):
        for _ in range(warmup):
            model(*example_inputs)
        return Latency(tuple(_time_ms(lambda: model(*example_inputs), clock) for _ in range(repeats)))


def compare_latency(
    rivals: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 100,
    warmup: int = 10,
    confidence: float = 0.95,
    clock: Clock = time.perf_counter,
    calls: Mapping[str, int] | None = None,
) -> dict[str, Comparison]:
    """Time `rivals` in turns, so that all of them are affected alike when the machine slows down.

    Each of the `warmup` + `repeats` rounds calls every rival once; each round begins with the next rival, so
    that all take every place in turn. Ratios are taken within a round, against the first rival. A rival that is a
    `turn` of several `calls` is timed by the call.
    """
    if not rivals:
        raise ValueError("rivals must hold at least one rival, got none")
    _interval_rank(repeats, confidence)  # raises if there are too few repeats, before any work is done
    _time_rounds(rivals, warmup, clock)
    times_ms = {
        name: [own / (calls or {}).get(name, 1) for own in times]
        for name, times in _time_rounds(rivals, repeats, clock).items()
    }
    base_name, base = next(iter(times_ms.items()))
    if min(base) <= 0:
        raise ValueError(f'rival "{base_name}": a call is too short for the clock; repeat the work within it')
    comparisons = {}
    for name, own in times_ms.items():
        ratios = [mine / theirs for mine, theirs in zip(own, base, strict=True)]
        interval = median_interval(ratios, confidence)
        comparisons[name] = Comparison(Latency(tuple(own)), statistics.median(ratios), interval)
    return comparisons


def turn(call: Callable[[], object], calls: int) -> Callable[[], None]:
    """Return a function that repeats a call: the turn of a rival whose call is short."""

    def repeated() -> None:
        for _ in range(calls):
            call()

    return repeated


def calls_per_turn(call: Callable[[], object], clock: Clock = time.perf_counter) -> int:
    """Return how often a call must be repeated to fill a turn, from the shortest of a few calls."""
    seconds = shortest(call, 4, clock)
    return max(1, math.ceil(LEAST_TURN_MS / 1e3 / seconds)) if seconds > 0 else 1


def shortest(call: Callable[[], object], repeats: int, clock: Clock = time.perf_counter) -> float:
    """Return the shortest time of a call, in seconds, after a warm-up call: noise only adds time."""
    call()
    best = math.inf
    for _ in range(repeats):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


def median_interval(values: Iterable[float], confidence: float = 0.95) -> tuple[float, float]:
    """Bound the median that `values` were drawn around, whatever their distribution.

    The k-th smallest and k-th largest of n values miss it with probability 2·P(Bin(n, ½) < k); taken is the
    largest k that keeps this within 1 − `confidence`. Values that depend on each other make it too narrow.
    """
    ordered = sorted(values)
    rank = _interval_rank(len(ordered), confidence)
    return ordered[rank - 1], ordered[-rank]


def _interval_rank(size: int, confidence: float) -> int:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    # Out of 2ⁿ equally likely patterns of signs; a fraction, because 2ⁿ overflows a float from 2¹⁰²⁴ on.
    allowed = Fraction(1 - confidence) / 2 * 2**size
    rank, patterns = 0, 1
    while patterns <= allowed:
        rank += 1
        patterns += math.comb(size, rank)
    if rank == 0:
        needed = math.ceil(1 - math.log2(1 - confidence))
        raise ValueError(f"a median at confidence {confidence} needs at least {needed} values, got {size}")
    return rank


def _time_rounds(rivals: Mapping[str, Callable[[], object]], rounds: int, clock: Clock) -> dict[str, list[float]]:
    times_ms: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            times_ms[name].append(_time_ms(rivals[name], clock))
    return times_ms


def _time_ms(call: Callable[[], object], clock: Clock) -> float:
    _finish_queued_work()
    start = clock()
    call()
    _finish_queued_work()
    return (clock() - start) * 1e3


def _finish_queued_work() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
