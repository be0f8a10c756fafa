"""Compare the features of two networks on a task: scores, their difference with its interval, and similarity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from secateur.data import DataError
from secateur.data.features import FeatureType
from secateur.transfer.features import FeatureNetwork, Progress, extract, normalized
from secateur.transfer.metrics import Numbers, accuracy
from secateur.transfer.probes import (
    SCORES,
    classify_by_neighbours,
    classify_by_svm,
    recognise_by_neighbours,
    recognise_by_svm,
    score_queries,
)
from secateur.transfer.similarity import LayerSimilarity, compare_layers
from secateur.transfer.statistics import (
    Interval,
    bootstrap_attributes,
    bootstrap_mean,
    mcnemar,
    mean_score,
    sign_flip_test,
    swap_test,
)
from secateur.transfer.task import Attributes, Classification, Picture, Retrieval, TransferTask

_MEASURES = {"ap11": "mAP (11 points)", "ap": "mAP", "auc": "mAUC", "recall@4": "Recall@4"}


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """How the features of one network do on a task.

    `penalties` are the values of C that cross-validation chose: one, or one for each attribute; none for retrieval.
    `neighbours_score` is that of the nearest neighbours, NaN for retrieval.
    """

    network: str
    layer: str  # empty: the input of the last linear layer
    features: int
    score: float
    penalties: tuple[float, ...] = ()
    neighbours_score: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two networks on a task: scores from 0 to 1, and the difference pruned − dense with its 95 % interval."""

    task: str
    measure: str
    items: int  # test pictures or queries
    dense: TaskScore
    pruned: TaskScore
    difference: float
    low: float
    high: float
    p_value: float
    sentence: str
    similarity: tuple[LayerSimilarity, ...] = ()


def compare(
    dense: FeatureNetwork,
    pruned: FeatureNetwork,
    task: TransferTask,
    *,
    name: str,
    cache: Path,
    dtype: FeatureType = "float32",
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Comparison:
    """Return the scores of two networks on a task, their difference with its interval and p-value, and CKA by layer.

    Features are normalised to length 1. They are kept in `cache`, and may be of different sizes. The seed is that of
    cross-validation and of all resampling.
    """
    if not _test_items(task):
        raise DataError(f"{name} has no test pictures")
    counted = _Counter(progress, 2 * sum(map(len, _groups(task))))
    ours, theirs = (_probe(each, task, cache, dtype, seed, counted) for each in (dense, pruned))
    interval, p_value = _statistics(task, ours.items, theirs.items, seed)
    return Comparison(
        task=name,
        measure=measure_of(task),
        items=len(_test_items(task)),
        dense=ours.score,
        pruned=theirs.score,
        difference=interval.difference,
        low=interval.low,
        high=interval.high,
        p_value=p_value,
        sentence=interval.sentence,
        similarity=compare_layers(dense, pruned, _groups(task)[-1]),
    )


def measure_of(task: TransferTask) -> str:
    """Name what a task is scored by."""
    return "accuracy" if isinstance(task, Classification) else _MEASURES[task.score]


class _Probed(NamedTuple):
    """A score, and what it is made of: right or wrong for each picture, decisions, or a score for each query."""

    score: TaskScore
    items: Numbers


class _Counter:
    """Adds the pictures of several extractions up, for one progress bar."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.before = progress, total, 0

    def __call__(self, done: int, _: int) -> None:
        self.progress(self.before + done, self.total)

    def finish(self, pictures: int) -> None:
        self.before += pictures
        self.progress(self.before, self.total)


def _probe(
    network: FeatureNetwork, task: TransferTask, cache: Path, dtype: FeatureType, seed: int, counted: _Counter
) -> _Probed:
    found = []
    for pictures in _groups(task):
        found.append(normalized(extract(network, pictures, cache, dtype=dtype, progress=counted)))
        counted.finish(len(pictures))
    first, second = found

    def score(value: float, penalties: tuple[float, ...] = (), neighbours: float = math.nan) -> TaskScore:
        return TaskScore(
            network=network.name,
            layer=network.layer or "",
            features=first.shape[1],
            score=value,
            penalties=penalties,
            neighbours_score=neighbours,
        )

    if isinstance(task, Classification):
        predicted = classify_by_svm(first, task.train_labels, second, seed=seed)
        near = classify_by_neighbours(first, task.train_labels, second)
        assert predicted.penalty is not None
        right = accuracy(task.test_labels, predicted.classes)
        scored = score(right, (predicted.penalty,), accuracy(task.test_labels, near.classes))
        return _Probed(scored, predicted.classes == task.test_labels)
    if isinstance(task, Attributes):
        rule, labels = SCORES[task.score], task.test_labels
        decided = recognise_by_svm(first, task.train_labels, second, task.score, seed=seed)
        voted = recognise_by_neighbours(first, task.train_labels, second)
        means = [float(mean_score(labels, each.scores, rule)) for each in (decided, voted)]
        return _Probed(score(means[0], decided.penalties, means[1]), decided.scores)
    scores = score_queries(first, task.queries, second, task.score)
    return _Probed(score(float(scores.mean())), scores)


def _statistics(task: TransferTask, dense: Numbers, pruned: Numbers, seed: int) -> tuple[Interval, float]:
    """Return the interval of the difference pruned − dense, and the p-value of a paired test."""
    if isinstance(task, Classification):
        difference = pruned.astype(np.float64) - dense
        return bootstrap_mean(difference, seed=seed), mcnemar(dense, pruned)
    if isinstance(task, Attributes):
        rule, labels = SCORES[task.score], task.test_labels
        return (
            bootstrap_attributes(labels, dense, pruned, rule, seed=seed),
            swap_test(labels, dense, pruned, rule, seed=seed),
        )
    return bootstrap_mean(pruned - dense, seed=seed), sign_flip_test(pruned - dense, seed=seed)


_Groups: TypeAlias = tuple[tuple[Picture, ...], tuple[Picture, ...]]


def _groups(task: TransferTask) -> _Groups:
    """Return the pictures to learn from or to search, and those to test."""
    if isinstance(task, Retrieval):
        return task.pictures, tuple(query.picture for query in task.queries)
    return task.train, task.test


def _test_items(task: TransferTask) -> Sequence[object]:
    return task.queries if isinstance(task, Retrieval) else task.test
