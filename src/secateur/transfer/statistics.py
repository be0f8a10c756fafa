"""Is a difference between two networks more than chance? Intervals and tests over the same items for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secateur.transfer.metrics import Numbers

RESAMPLES = 10_000
FEW_RESAMPLES = 1000  # of attributes, whose scores have to be ranked again
_BLOCK_NUMBERS = 1 << 22  # random numbers in memory at a time
_MOST_ENUMERATED = 12  # items whose signs are all tried
_MOST_FREEDOM = 500  # degrees of freedom up to which Student's t is summed up

Seed: TypeAlias = int | tuple[int, ...]
Differences: TypeAlias = npt.NDArray[np.float64]
AttributeScore: TypeAlias = Callable[[Numbers, Numbers, Numbers | None], Numbers]


@dataclass(frozen=True)
class Interval:
    """A difference pruned − dense with its bootstrap interval of 95 %.

    `least` is what the difference exceeds with a probability of 95 %: the one-sided bound. `resampled` are the
    differences of all resamples.
    """

    difference: float
    low: float
    high: float
    least: float
    resampled: Differences = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    @property
    def sentence(self) -> str:
        """What the interval says about a loss, in points of percent."""
        low, high = 100 * self.low, 100 * self.high
        if high < 0:
            return f"a loss of {-high:.1f} to {-low:.1f} points with 95 % probability"
        if low > 0:
            return f"a gain of {low:.1f} to {high:.1f} points with 95 % probability"
        most = max(0.0, math.ceil(-1000 * self.least - 1e-9) / 10)  # rounded up to a tenth of a point
        return f"no loss greater than {most:.1f} points with 95 % probability"


def bootstrap_mean(differences: Numbers, *, resamples: int = RESAMPLES, seed: Seed = 0) -> Interval:
    """Return the mean of paired differences, one for each test item, with its interval."""
    values = np.asarray(differences, np.float64)
    means = np.concatenate([values[drawn].mean(axis=1) for drawn in _draws(len(values), resamples, seed)])
    return _interval(float(values.mean()), means)


def bootstrap_attributes(
    labels: Numbers,
    dense: Numbers,
    pruned: Numbers,
    score: AttributeScore,
    *,
    resamples: int = FEW_RESAMPLES,
    seed: Seed = 0,
) -> Interval:
    """Return the difference of mean scores over attributes with its interval, by resampling pictures.

    Labels and decision scores have the shape (pictures, attributes); labels of 0 count for nothing.
    """
    items = len(labels)
    found = [
        _difference(labels, dense, pruned, score, np.stack([np.bincount(row, minlength=items) for row in drawn]))
        for drawn in _draws(items, resamples, seed)
    ]
    return _interval(float(_difference(labels, dense, pruned, score, None)), np.concatenate(found))


def mean_interval(intervals: Sequence[Interval]) -> Interval:
    """Return the mean difference over tasks, whose test pictures are resampled in each task.

    Tasks with the same test pictures should have been resampled with the same seed, so that they vary together, and
    others with different ones. The number of resamples is the smallest of all.
    """
    fewest = min(len(interval.resampled) for interval in intervals)
    resampled = np.mean([interval.resampled[:fewest] for interval in intervals], axis=0)
    return _interval(float(np.mean([interval.difference for interval in intervals])), resampled)


@dataclass(frozen=True)
class Mean:
    """A mean, half of its 95 % interval, and the two-sided p-value that it is 0; NaN for fewer than two values."""

    value: float
    half: float = math.nan
    p: float = math.nan


def student_mean(values: Iterable[float]) -> Mean:
    """Return the mean of independent values, or of paired differences, by Student's t; NaN values do not count."""
    known = np.asarray([value for value in values if not math.isnan(value)], np.float64)
    if len(known) < 2:
        return Mean(float(known[0]) if len(known) else math.nan)
    mean, error, freedom = float(known.mean()), float(known.std(ddof=1)) / math.sqrt(len(known)), len(known) - 1
    if error == 0:
        return Mean(mean, 0.0, 1.0 if mean == 0 else 0.0)
    return Mean(mean, student_quantile(freedom) * error, student_tail(abs(mean) / error, freedom))


def student_tail(t: float, freedom: int) -> float:
    """Return P(|T| > t) of Student's t with ν whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4).

    With φ = atan(t/√ν), 1 − P is  sin φ·(1 + ½·cos² φ + (1·3)/(2·4)·cos⁴ φ + …)  for even ν, and for odd ν
    2/π·(φ + sin φ·(cos φ + ⅔·cos³ φ + (2·4)/(3·5)·cos⁵ φ + …)), both up to cos^(ν−2) φ. For large ν, T is normal.
    """
    if freedom > _MOST_FREEDOM:
        return math.erfc(t / math.sqrt(2))
    angle, is_odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term, total = math.cos(angle) if is_odd else 1.0, 0.0
    for power in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power - 1) / power
    within = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + within) if is_odd else within)


def student_quantile(freedom: int, tail: float = 0.05) -> float:
    """Return the t that |T| exceeds with a probability of `tail`, by bisection."""
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > tail:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979); those that are NaN stay so and are not counted."""
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for number, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - number)))
        adjusted[place] = largest
    return adjusted


def mcnemar(dense_is_right: Numbers, pruned_is_right: Numbers) -> float:
    """Return the two-sided p-value of McNemar's exact test, of the items that one network alone has right."""
    only_dense = int(np.sum(dense_is_right & ~pruned_is_right))
    only_pruned = int(np.sum(pruned_is_right & ~dense_is_right))
    total, fewer = only_dense + only_pruned, min(only_dense, only_pruned)
    tail, term = 0, 1
    for drawn in range(fewer + 1):  # Σ C(total, drawn), in whole numbers
        tail += term
        term = term * (total - drawn) // (drawn + 1)
    # In whole numbers to the end: 2 ** total does not fit into a float.
    return min(1.0, (tail << 64 >> (total - 1)) / 2.0**64) if total else 1.0


def sign_flip_test(differences: Numbers, *, resamples: int = RESAMPLES, seed: Seed = 0) -> float:
    """Return the two-sided p-value that paired differences are symmetric around 0.

    All signs are tried for up to 12 items, otherwise random ones; then the p-value is at least 1 / (resamples + 1).
    """
    values = np.asarray(differences, np.float64)
    observed = abs(values.mean()) - 1e-12  # sums of the same numbers in another order
    if len(values) <= _MOST_ENUMERATED:
        signs = np.array([*product((1.0, -1.0), repeat=len(values))])
        return float(np.mean(np.abs(signs @ values / len(values)) >= observed))
    generator, reached = np.random.default_rng(seed), 0
    for size in _blocks(len(values), resamples):
        signs = generator.integers(0, 2, (size, len(values))) * 2.0 - 1.0
        reached += int(np.sum(np.abs(signs @ values / len(values)) >= observed))
    return (reached + 1) / (resamples + 1)


def swap_test(
    labels: Numbers,
    dense: Numbers,
    pruned: Numbers,
    score: AttributeScore,
    *,
    resamples: int = FEW_RESAMPLES,
    seed: Seed = 0,
) -> float:
    """Return the two-sided p-value that it does not matter which network gave the decisions on a picture.

    Decisions become ranks first: those of two SVMs are on different scales.
    """
    dense, pruned = (np.argsort(np.argsort(each, axis=0, kind="stable"), axis=0) for each in (dense, pruned))
    observed = abs(float(_difference(labels, dense, pruned, score, None))) - 1e-12
    generator, reached = np.random.default_rng(seed), 0
    for _ in range(resamples):
        swapped = generator.integers(0, 2, (len(labels), 1)).astype(bool)
        pair = np.where(swapped, pruned, dense), np.where(swapped, dense, pruned)
        reached += abs(float(_difference(labels, *pair, score, None))) >= observed
    return (reached + 1) / (resamples + 1)


def mean_score(labels: Numbers, scores: Numbers, score: AttributeScore, weights: Numbers | None = None) -> Numbers:
    """Return the mean over attributes of a score; those without a positive picture are left out of it."""
    columns = []
    for attribute in range(labels.shape[1]):
        known = np.flatnonzero(labels[:, attribute])
        if len(known) == 0:
            continue
        chosen = None if weights is None else weights[:, known]
        columns.append(score(labels[known, attribute] > 0, scores[known, attribute], chosen))
    values = np.array(columns)
    is_known = ~np.isnan(values)
    total, count = np.where(is_known, values, 0.0).sum(axis=0), is_known.sum(axis=0)
    mean = np.full(np.shape(total), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def _difference(
    labels: Numbers, dense: Numbers, pruned: Numbers, score: AttributeScore, weights: Numbers | None
) -> Numbers:
    difference: Numbers = mean_score(labels, pruned, score, weights) - mean_score(labels, dense, score, weights)
    return difference


def _interval(difference: float, resampled: Differences) -> Interval:
    low, least, high = np.nanquantile(resampled, [0.025, 0.05, 0.975])
    return Interval(difference, float(low), float(high), float(least), resampled)


def _draws(items: int, resamples: int, seed: Seed) -> Iterator[npt.NDArray[np.int64]]:
    """Yield indices of items (resamples, items) drawn with replacement, some resamples at a time."""
    if items == 0:
        raise ValueError("there are no test items to resample")
    generator = np.random.default_rng(seed)
    for size in _blocks(items, resamples):
        yield generator.integers(0, items, (size, items))


def _blocks(items: int, resamples: int) -> Iterator[int]:
    size = max(1, _BLOCK_NUMBERS // items)
    yield from (min(size, resamples - start) for start in range(0, resamples, size))
