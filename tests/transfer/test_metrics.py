"""Scores agree with hand-computed cases, with scikit-learn, and with the published rules of the data sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.transfer.metrics import (
    accuracy,
    auc,
    average_precision,
    average_precision_11,
    oxford_average_precision,
    recall_at_4,
)

FOUND = np.array([1, 0, 1, 0, 0])
FALLING = np.array([5.0, 4, 3, 2, 1])
# Few distinct scores, so that there are ties.
judged = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30).filter(
    lambda items: len({found for found, _ in items}) == 2
)


def test_accuracy_is_the_share_of_right_classes():
    assert accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75


def test_average_precision_of_five_items_by_hand():
    assert average_precision(FOUND, FALLING) == pytest.approx((1 + 2 / 3) / 2)
    # Recall reaches 0, 0.1, …, 0.5 at a precision of 1, and 0.6, …, 1 at 2/3.
    assert average_precision_11(FOUND, FALLING) == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert auc(FOUND, FALLING) == pytest.approx((3 + 2) / 6)


@given(items=judged)
def test_average_precision_and_auc_are_those_of_scikit_learn(items):
    from sklearn.metrics import average_precision_score, roc_auc_score

    found, scores = map(np.array, zip(*items, strict=True))
    assert average_precision(found, scores) == pytest.approx(average_precision_score(found, scores))
    assert auc(found, scores) == pytest.approx(roc_auc_score(found, scores))


@given(items=judged, seed=st.integers(0, 99))
def test_weights_count_items_several_times(items, seed):
    found, scores = map(np.array, zip(*items, strict=True))
    counts = np.random.default_rng(seed).integers(0, 3, (2, len(items)))
    for score in (average_precision, average_precision_11, auc):
        repeated = [score(found.repeat(row), scores.repeat(row)) if row.any() else np.nan for row in counts]
        np.testing.assert_allclose(score(found, scores, counts), repeated)


@given(items=judged, seed=st.integers(0, 99))
def test_the_order_in_which_items_are_given_changes_nothing(items, seed):
    found, scores = map(np.array, zip(*items, strict=True))
    order = np.random.default_rng(seed).permutation(len(items))
    for score in (average_precision, average_precision_11, auc):
        assert score(found[order], scores[order]) == pytest.approx(score(found, scores))


def test_eleven_points_of_a_recall_of_three_tenths_are_four():
    found = np.array([1, 1, 1] + [0] * 93 + [1] * 7)
    assert average_precision_11(found, -np.arange(103.0)) == pytest.approx((4 + 7 * 10 / 103) / 11)


def test_a_score_without_relevant_items_is_nan():
    for score in (average_precision, average_precision_11, auc):
        assert np.isnan(score(np.zeros(3), np.arange(3.0)))
    with pytest.raises(ValueError, match="a query without relevant pictures has no score"):
        oxford_average_precision(np.arange(3), set())


def compute_ap(ranking, relevant, ignored):
    """The loop of compute_ap.cpp, line by line."""
    old_recall, old_precision, ap, intersect, shown = 0.0, 1.0, 0.0, 0, 0
    for item in ranking:
        if item in ignored:
            continue
        intersect += item in relevant
        recall, precision = intersect / len(relevant), intersect / (shown + 1)
        ap += (recall - old_recall) * ((old_precision + precision) / 2)
        old_recall, old_precision, shown = recall, precision, shown + 1
    return ap


@given(
    ranking=st.permutations(range(9)), relevant=st.sets(st.integers(0, 8), min_size=1), junk=st.sets(st.integers(0, 8))
)
def test_the_average_precision_of_oxford_is_that_of_its_program(ranking, relevant, junk):
    ignored = junk - relevant
    found = oxford_average_precision(np.array(ranking), relevant, ignored)
    assert found == pytest.approx(compute_ap(ranking, relevant, ignored))


def test_junk_is_removed_before_a_ranking_is_scored():
    assert oxford_average_precision(np.array([7, 0, 1]), {0, 1}, {7}) == 1
    assert oxford_average_precision(np.array([7, 0]), {0}) == pytest.approx((0 + 1 / 2) / 2)


def test_recall_at_4_leaves_out_the_ignored_and_divides_by_what_can_be_found():
    assert recall_at_4(np.array([9, 0, 1, 5, 6, 2]), {0, 1, 2}, {9}) == pytest.approx(2 / 3)
    assert recall_at_4(np.arange(8), {0, 1, 2, 3, 7}) == 1
