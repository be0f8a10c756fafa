"""Classify by features, with a linear SVM or the nearest neighbours, and find pictures by them.

Every probe returns one result per test picture or query, so that two networks can be compared pair by pair.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secateur.data import DataError
from secateur.transfer.metrics import (
    Numbers,
    auc,
    average_precision,
    average_precision_11,
    oxford_average_precision,
    recall_at_4,
)
from secateur.transfer.task import Labels, Query

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # the values of C that cross-validation tries
FOLDS = 3
NEIGHBOURS = 5
SCORES = {"ap11": average_precision_11, "ap": average_precision, "auc": auc}  # of attributes
_RANKINGS = {"ap": oxford_average_precision, "recall@4": recall_at_4}
_MOST_ITERATIONS = 5000
_BLOCK = 256  # test pictures or queries whose distances to all others are in memory at a time


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predicted class of each test picture, and the C that cross-validation chose (None without an SVM)."""

    classes: Labels
    penalty: float | None = None


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decision scores (test pictures, attributes), and the C that cross-validation chose for each attribute."""

    scores: npt.NDArray[np.float64]
    penalties: tuple[float, ...] = ()


def classify_by_svm(train: Numbers, labels: Labels, test: Numbers, *, folds: int = FOLDS, seed: int = 0) -> Predictions:
    """Fit a linear SVM, one class against the others, and predict the class of each test picture.

    C has the best accuracy in stratified cross-validation on the training pictures; of equal ones the smallest is
    taken.
    """
    if len(np.unique(labels)) < 2:
        raise DataError("the training pictures have one class only: a classifier needs at least two")

    def share_right(svm: Any, held_out: Numbers) -> float:
        return float(np.mean(svm.predict(train[held_out]) == labels[held_out]))

    penalty = _best_penalty(train, labels, share_right, folds, seed)
    return Predictions(_svm(penalty, seed, train, labels).predict(test), penalty)


def recognise_by_svm(
    train: Numbers, labels: Labels, test: Numbers, score: str, *, folds: int = FOLDS, seed: int = 0
) -> Decisions:
    """Fit a linear SVM for each attribute on the pictures whose label is not 0; C has the best cross-validated score.

    A constant attribute, one whose training labels are all equal, cannot be learned: all its decisions are 0.
    """
    found, penalties = np.zeros((len(test), labels.shape[1])), []
    for attribute, column in enumerate(labels.T):
        known = np.flatnonzero(column)
        given, wanted = train[known], column[known]
        if len(np.unique(wanted)) < 2:
            penalties.append(float("nan"))
            continue

        def held_out_score(svm: Any, held_out: Numbers, given: Numbers = given, wanted: Numbers = wanted) -> float:
            return float(SCORES[score](wanted[held_out] > 0, svm.decision_function(given[held_out])))

        penalty = _best_penalty(given, wanted, held_out_score, folds, seed)
        found[:, attribute] = _svm(penalty, seed, given, wanted).decision_function(test)
        penalties.append(penalty)
    return Decisions(found, tuple(penalties))


def classify_by_neighbours(
    train: Numbers, labels: Labels, test: Numbers, *, neighbours: int = NEIGHBOURS
) -> Predictions:
    """Predict the class most frequent among the nearest training pictures by cosine.

    Of equally frequent classes, the one with the larger sum of cosines is taken, then the one listed first.
    """
    classes = np.arange(labels.max() + 1)
    predicted = []
    for cosines in _cosines(test, train):
        near = np.argsort(-cosines, axis=1, kind="stable")[:, :neighbours]
        votes = labels[near][:, :, None] == classes
        # Cosines are at most 1 in size, so their sum, scaled, decides between equal counts only.
        sums = (votes * np.take_along_axis(cosines, near, axis=1)[:, :, None]).sum(axis=1)
        predicted.append(np.argmax(votes.sum(axis=1) + sums / (4 * neighbours), axis=1))
    return Predictions(np.concatenate(predicted) if predicted else np.empty(0, np.int64))


def recognise_by_neighbours(
    train: Numbers, labels: Labels, test: Numbers, *, neighbours: int = NEIGHBOURS
) -> Decisions:
    """Score each attribute by the mean label of the nearest training pictures that have one, weighted by cosine."""
    found = np.zeros((len(test), labels.shape[1]))
    for attribute, column in enumerate(labels.T):
        known = np.flatnonzero(column)
        start = 0
        for cosines in _cosines(test, train[known]):
            near = np.argsort(-cosines, axis=1, kind="stable")[:, :neighbours]
            weighted = column[known][near] * np.take_along_axis(cosines, near, axis=1)
            found[start : start + len(cosines), attribute] = weighted.sum(axis=1) / max(1, near.shape[1])
            start += len(cosines)
    return Decisions(found)


def score_queries(
    pictures: Numbers, queries: tuple[Query, ...], features: Numbers, score: str
) -> npt.NDArray[np.float64]:
    """Return the score of each query, whose `features` rank `pictures` by Euclidean distance; ties go by index."""
    lengths = np.square(pictures, dtype=np.float64).sum(axis=1)
    scores = []
    for start in range(0, len(queries), _BLOCK):
        block = features[start : start + _BLOCK]
        # |x − q|² without |q|², which is the same for all pictures of a query.
        distances = lengths - 2.0 * (block @ pictures.T)
        for query, row in zip(queries[start : start + _BLOCK], distances, strict=True):
            ranking = np.argsort(row, kind="stable")
            scores.append(_RANKINGS[score](ranking, query.relevant, query.ignored))
    return np.array(scores, np.float64)


def stratified_folds(labels: Labels, folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return a fold for each item such that every class, however small, is spread evenly over the folds.

    Each class begins at the fold where the one before has ended, so the folds are equally large too.
    """
    generator, found, first = np.random.default_rng(seed), np.empty(len(labels), np.int64), 0
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        found[members] = (first + np.arange(len(members))) % folds
        first += len(members)
    return found


def _best_penalty(
    train: Numbers, labels: Labels, score: Callable[[Any, Numbers], float], folds: int, seed: int
) -> float:
    """Return the C with the best mean score over folds; folds that leave one class to train on have none."""
    fold = stratified_folds(labels, folds, seed)
    means = []
    for penalty in PENALTIES:
        scores = [
            score(_svm(penalty, seed, train[fold != each], labels[fold != each]), np.flatnonzero(fold == each))
            for each in range(folds)
            if (fold == each).any() and len(np.unique(labels[fold != each])) > 1
        ]
        known = [each for each in scores if not np.isnan(each)]
        means.append(float(np.mean(known)) if known else -1.0)
    return PENALTIES[int(np.argmax(means))] if max(means) >= 0 else 1.0


def _svm(penalty: float, seed: int, train: Numbers, labels: Labels) -> Any:
    """Fit scikit-learn's linear SVM."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import LinearSVC
    except ModuleNotFoundError as error:
        remedy = "pip install 'secateur[transfer]'"
        raise DataError(f"linear SVMs are those of scikit-learn, which is not installed: {remedy}") from error
    with warnings.catch_warnings():
        # With a large C, the last digits of the weights still move after thousands of iterations; classes do not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LinearSVC(C=penalty, dual="auto", random_state=seed, max_iter=_MOST_ITERATIONS).fit(train, labels)


def _cosines(test: Numbers, train: Numbers) -> Iterator[Numbers]:
    """Yield the cosines of a few test pictures to all training pictures, whose features have length 1."""
    for start in range(0, len(test), _BLOCK):
        yield test[start : start + _BLOCK] @ train.T
