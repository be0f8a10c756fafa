"""Scores of a task: accuracy, average precision by three rules, area under the ROC curve, and Recall@4.

Items of equal score share a rank, and equal distances are ranked by index, so every score is deterministic. Average
precision and the area under the curve take weights (…, items) as well: how often each item counts, such as in a
resample of the items. They return one score for each row of weights, NaN where the score is undefined.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[Any]


def accuracy(labels: Numbers, predicted: Numbers) -> float:
    """Return the share of items whose predicted class is the right one."""
    return float(np.mean(labels == predicted))


def average_precision(is_relevant: Numbers, scores: Numbers, weights: Numbers | None = None) -> Numbers:
    """Return Σ (recallᵢ − recallᵢ₋₁) · precisionᵢ over falling thresholds, as scikit-learn does."""
    found, shown = _found_and_shown(is_relevant, scores, weights)
    steps = np.diff(found, prepend=0.0, axis=-1)
    return _ratio((steps * _ratio(found, shown, 0.0)).sum(axis=-1), found[..., -1])


def average_precision_11(is_relevant: Numbers, scores: Numbers, weights: Numbers | None = None) -> Numbers:
    """Return the mean of the best precision at recall ≥ 0, 0.1, …, 1: the rule of Pascal VOC 2007."""
    found, shown = _found_and_shown(is_relevant, scores, weights)
    total, precision = found[..., -1:], _ratio(found, shown, 0.0)
    # In whole numbers: 3 of 10 have a recall of 0.3, which in floating point is less than 3 × 0.1.
    best = [np.where(10 * found >= tenths * total, precision, 0.0).max(axis=-1) for tenths in range(11)]
    return np.where(total[..., 0] > 0, np.mean(best, axis=0), np.nan)


def auc(is_relevant: Numbers, scores: Numbers, weights: Numbers | None = None) -> Numbers:
    """Return the area under the ROC curve: how often a relevant item scores above another one; ties count half."""
    found, shown = _found_and_shown(is_relevant, scores, weights)
    others = shown - found
    relevant, irrelevant = (np.diff(sums, prepend=0.0, axis=-1) for sums in (found, others))
    below = others[..., -1:] - others
    return _ratio((relevant * (below + irrelevant / 2)).sum(axis=-1), found[..., -1] * others[..., -1])


def oxford_average_precision(ranking: Numbers, relevant: Set[int], ignored: Set[int] = frozenset()) -> float:
    """Return the average precision of a ranking of indices by trapezoids, as compute_ap.cpp of the Oxford buildings."""
    is_relevant = _is_relevant(ranking, relevant, ignored)
    found = np.cumsum(is_relevant)
    recall, precision = found / len(relevant), found / np.arange(1, len(found) + 1)
    before = np.concatenate(([1.0], precision[:-1]))
    return float((np.diff(recall, prepend=0.0) * (before + precision) / 2).sum())


def recall_at_4(ranking: Numbers, relevant: Set[int], ignored: Set[int] = frozenset()) -> float:
    """Return the relevant items among the first four of a ranking ÷ min(4, all relevant ones)."""
    return float(_is_relevant(ranking, relevant, ignored)[:4].sum() / min(4, len(relevant)))


def _is_relevant(ranking: Numbers, relevant: Set[int], ignored: Set[int]) -> Numbers:
    if not relevant:
        raise ValueError("a query without relevant pictures has no score")
    kept = ranking[~np.isin(ranking, list(ignored))] if ignored else ranking
    return np.isin(kept, list(relevant))


def _found_and_shown(is_relevant: Numbers, scores: Numbers, weights: Numbers | None) -> tuple[Numbers, Numbers]:
    """Return the relevant items and all items whose scores reach each distinct score, from the highest one down."""
    order = np.argsort(-scores, kind="stable")
    counted = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    ordered = counted[..., order]
    found, shown = (np.cumsum(each, axis=-1)[..., ends] for each in (ordered * is_relevant[order], ordered))
    return found, shown


def _ratio(part: Numbers, whole: Numbers, otherwise: float = np.nan) -> Numbers:
    filled = np.full(np.shape(part), otherwise)
    np.divide(part, whole, out=filled, where=np.asarray(whole) > 0)
    return filled
