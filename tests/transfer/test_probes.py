"""Probes agree with scikit-learn called by hand, and with cases that are counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.svm import LinearSVC

from secateur.data import DataError
from secateur.transfer.features import normalized
from secateur.transfer.probes import (
    PENALTIES,
    classify_by_neighbours,
    classify_by_svm,
    recognise_by_neighbours,
    recognise_by_svm,
    score_queries,
    stratified_folds,
)
from secateur.transfer.svm import decisions, fit_svms
from secateur.transfer.task import Picture, Query


def blobs(items, seed, classes=3, features=5):
    """Overlapping clouds of points, and their classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=items)
    return normalized(generator.normal(size=(items, features)) + 1.5 * np.eye(features)[labels]), labels


TRAIN, TRAIN_LABELS = blobs(60, 0)
TEST, TEST_LABELS = blobs(40, 1)


def by_hand(penalty):
    """LinearSVC at its optimum; at its default tolerance, its predictions for a large C still change."""
    return LinearSVC(C=penalty, dual=False, tol=1e-10, max_iter=10_000)


def test_the_svm_is_that_of_scikit_learn_called_by_hand():
    found = classify_by_svm(TRAIN, TRAIN_LABELS, TEST)
    fold = stratified_folds(TRAIN_LABELS, 3, 0)
    means = []
    for penalty in PENALTIES:
        svm = LinearSVC(C=penalty, dual=False)
        parts = [(fold != each, fold == each) for each in range(3)]
        means.append(np.mean([svm.fit(TRAIN[a], TRAIN_LABELS[a]).score(TRAIN[b], TRAIN_LABELS[b]) for a, b in parts]))
    best = PENALTIES[int(np.argmax(means))]
    theirs = by_hand(best).fit(TRAIN, TRAIN_LABELS)
    assert found.penalty == best
    np.testing.assert_array_equal(found.classes, theirs.predict(TEST))
    assert theirs.score(TEST, TEST_LABELS) > 0.5


@pytest.mark.parametrize("classes", [2, 5])
def test_predictions_for_a_large_c_are_those_of_the_optimum(classes, monkeypatch):
    (train, labels), (test, _) = (blobs(items, seed, classes, features=30) for items, seed in ((300, 2), (2000, 3)))
    targets = np.where(labels == 0, 1, -1)[:, None]
    monkeypatch.setattr("secateur.transfer.probes._best_penalties", lambda *_: [100.0])
    expected = by_hand(100.0).fit(train, targets[:, 0]).decision_function(test)
    np.testing.assert_allclose(recognise_by_svm(train, targets, test, "ap").scores[:, 0], expected, atol=1e-3)
    monkeypatch.setattr("secateur.transfer.probes.PENALTIES", (100.0,))
    found = classify_by_svm(train, labels, test)
    np.testing.assert_array_equal(found.classes, by_hand(100.0).fit(train, labels).predict(test))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_svms_of_all_classes_at_once_are_those_of_scikit_learn(penalty):
    targets = np.where(TRAIN_LABELS[:, None] == np.arange(3), 1, -1)
    theirs = by_hand(penalty).fit(TRAIN, TRAIN_LABELS)
    expected = np.vstack([theirs.coef_.T, theirs.intercept_])
    start = np.random.default_rng(0).normal(size=expected.shape)  # the optimum does not depend on it
    for found in (fit_svms(TRAIN, targets, penalty), fit_svms(TRAIN, targets, penalty, start)):
        np.testing.assert_allclose(decisions(TEST, found), theirs.decision_function(TEST), atol=2e-3)
        np.testing.assert_array_equal(np.argmax(decisions(TEST, found), axis=1), theirs.predict(TEST))


def test_an_svm_with_targets_of_zero_is_that_without_those_pictures():
    targets = np.where(TRAIN_LABELS[:, None] == np.arange(3), 1, -1)
    targets[::2, 1] = 0
    found, half = fit_svms(TRAIN, targets, 1.0), fit_svms(TRAIN[1::2], targets[1::2, 1:2], 1.0)
    np.testing.assert_allclose(found[:, 1:2], half, atol=1e-3)
    assert np.abs(found - fit_svms(TRAIN, np.abs(targets) * 2 - 1, 1.0)).max() > 0.1


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40).map(np.array), folds=st.integers(2, 5))
def test_folds_spread_every_class_and_all_items_evenly(labels, folds):
    found = stratified_folds(labels, folds, seed=0)
    for part in (found, *(found[labels == label] for label in np.unique(labels))):
        counts = np.bincount(part, minlength=folds)
        assert counts.max() - counts.min() <= 1


def test_a_class_with_fewer_pictures_than_folds_is_learned_all_the_same():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
    found = classify_by_svm(np.eye(4)[labels], labels, np.eye(4))
    assert found.classes.tolist() == [0, 1, 2, 3]


def test_one_class_is_refused():
    with pytest.raises(DataError, match="one class only"):
        classify_by_svm(TRAIN, np.zeros(60, np.int64), TEST)


def test_labels_of_zero_are_left_out_of_an_attribute():
    labels = np.where(TRAIN_LABELS == 0, 1, -1)[:, None].repeat(2, axis=1)
    labels[::2, 1] = 0
    found = recognise_by_svm(TRAIN, labels, TEST, "ap")
    half = recognise_by_svm(TRAIN[1::2], labels[1::2, 1:], TEST, "ap")
    assert found.scores.shape == (40, 2)
    np.testing.assert_allclose(found.scores[:, 1], half.scores[:, 0], atol=1e-4)
    assert not np.array_equal(found.scores[:, 0], found.scores[:, 1])


def test_a_constant_attribute_has_decisions_of_zero():
    found = recognise_by_svm(TRAIN, np.ones((60, 1), np.int64), TEST, "auc")
    assert not found.scores.any()
    assert np.isnan(found.penalties).all()


def test_neighbours_vote_and_equal_votes_go_to_the_nearer_ones():
    train = normalized(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]))
    labels = np.array([0, 0, 1, 1])
    test = normalized(np.array([[1, 0.5], [0.5, 1]]))
    assert classify_by_neighbours(train, labels, test, neighbours=4).classes.tolist() == [0, 1]
    scores = recognise_by_neighbours(train, np.array([[1], [1], [-1], [0]]), test, neighbours=1).scores
    assert scores[0] > 0 > scores[1]


def test_neighbours_are_those_of_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier

    found = classify_by_neighbours(TRAIN, TRAIN_LABELS, TEST, neighbours=1).classes
    theirs = KNeighborsClassifier(1, metric="cosine").fit(TRAIN, TRAIN_LABELS).predict(TEST)
    np.testing.assert_array_equal(found, theirs)


def test_queries_rank_pictures_by_distance_and_skip_the_ignored():
    pictures = np.array([[0.0], [1.0], [2.0], [3.0]])
    queries = tuple(Query(Picture("q"), frozenset({1, 2}), frozenset(ignored)) for ignored in ([0], []))
    found = score_queries(pictures, queries, np.array([[0.0], [0.0]]), "ap")
    assert found[0] == 1
    assert found[1] == pytest.approx((0.5 * (0 + 1 / 2) + 0.5 * (1 / 2 + 2 / 3)) / 2)
    assert score_queries(pictures, queries, np.array([[0.0], [0.0]]), "recall@4").tolist() == [1, 1]
