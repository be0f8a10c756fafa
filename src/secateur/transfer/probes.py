"""Classify by features, with a linear SVM or the nearest neighbours, and find pictures by them.

Every probe returns one result per test picture or query, so that two networks can be compared pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
from secateur.transfer.svm import OPTIMUM, Weights, decisions, fit_svms
from secateur.transfer.task import Labels, Query

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # the values of C that cross-validation tries
FOLDS = 3
NEIGHBOURS = 5
SCORES = {"ap11": average_precision_11, "ap": average_precision, "auc": auc}  # of attributes
_RANKINGS = {"ap": oxford_average_precision, "recall@4": recall_at_4}
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

    fold = stratified_folds(labels, folds, seed)
    means = np.zeros(len(PENALTIES))
    for each in range(folds):
        kept, held_out = np.flatnonzero(fold != each), np.flatnonzero(fold == each)
        classes = np.unique(labels[kept])
        if len(held_out) and len(classes) > 1:
            targets = np.where(labels[kept, None] == classes, 1, -1)
            for index, weights in enumerate(_path(train[kept], targets)):
                predicted = classes[np.argmax(decisions(train[held_out], weights), axis=1)]
                means[index] += np.mean(predicted == labels[held_out])
    penalty = PENALTIES[int(np.argmax(means))] if means.any() else 1.0
    classes = np.unique(labels)
    weights = _optimum(train, np.where(labels[:, None] == classes, 1, -1), penalty)
    return Predictions(classes[np.argmax(decisions(test, weights), axis=1)], penalty)


def recognise_by_svm(
    train: Numbers, labels: Labels, test: Numbers, score: str, *, folds: int = FOLDS, seed: int = 0
) -> Decisions:
    """Fit a linear SVM for each attribute on the pictures whose label is not 0; C has the best cross-validated score.

    A constant attribute, one whose training labels are all equal, cannot be learned: all its decisions are 0.
    """
    can_learn = np.array([len(np.unique(column[column != 0])) > 1 for column in labels.T])
    best = np.where(can_learn, _best_penalties(train, labels, score, folds, seed), np.nan)
    found = np.zeros((len(test), labels.shape[1]))
    for penalty in np.unique(best[can_learn]).tolist():
        chosen = best == penalty
        found[:, chosen] = decisions(test, _optimum(train, labels[:, chosen], penalty))
    return Decisions(found, tuple(best.tolist()))


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


def _best_penalties(train: Numbers, labels: Labels, score: str, folds: int, seed: int) -> list[float]:
    """Return for each attribute the C with the best mean score over folds; 1 if no fold has a score."""
    fold = np.full(labels.shape, -1)
    for attribute, column in enumerate(labels.T):
        known = np.flatnonzero(column)
        fold[known, attribute] = stratified_folds(column[known], folds, seed)
    scores = np.full((len(PENALTIES), folds, labels.shape[1]), np.nan)
    for each in range(folds):
        targets = np.where(fold == each, 0, labels)
        can_learn = [len(np.unique(column[column != 0])) > 1 for column in targets.T]
        for index, weights in enumerate(_path(train, targets)):
            answers = decisions(train, weights)
            for attribute in np.flatnonzero(can_learn).tolist():
                held_out = fold[:, attribute] == each
                if held_out.any():
                    is_positive = labels[held_out, attribute] > 0
                    scores[index, each, attribute] = SCORES[score](is_positive, answers[held_out, attribute])
    is_known = ~np.isnan(scores)
    means = np.where(is_known, scores, 0.0).sum(axis=1) / np.maximum(is_known.sum(axis=1), 1)
    return [PENALTIES[np.argmax(column)] if column.any() else 1.0 for column in means.T]


def _path(train: Numbers, targets: Numbers) -> Iterator[Weights]:
    """Yield the weights of SVMs for each C, each beginning with those before."""
    weights = None
    for penalty in PENALTIES:
        weights = fit_svms(train, targets, penalty, weights)
        yield weights


def _optimum(train: Numbers, targets: Numbers, penalty: float) -> Weights:
    """Return the weights of SVMs that are reported; those for smaller C lead there faster than zeros do."""
    weights = None
    for smaller in (each for each in PENALTIES if each < penalty):
        weights = fit_svms(train, targets, smaller, weights)
    return fit_svms(train, targets, penalty, weights, tolerance=OPTIMUM)


def _cosines(test: Numbers, train: Numbers) -> Iterator[Numbers]:
    """Yield the cosines of a few test pictures to all training pictures, whose features have length 1."""
    for start in range(0, len(test), _BLOCK):
        yield test[start : start + _BLOCK] @ train.T
