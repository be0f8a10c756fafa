"""Intervals cover what they should, and p-values are those of closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.transfer.metrics import auc, average_precision
from secateur.transfer.statistics import (
    Interval,
    bootstrap_attributes,
    bootstrap_mean,
    holm,
    mcnemar,
    mean_score,
    sign_flip_test,
    student_mean,
    student_tail,
    swap_test,
)


def right(dense_only, pruned_only, both=5):
    """Which items two networks have right."""
    dense = [True] * dense_only + [False] * pruned_only + [True] * both
    pruned = [False] * dense_only + [True] * pruned_only + [True] * both
    return np.array(dense), np.array(pruned)


@given(dense_only=st.integers(0, 40), pruned_only=st.integers(0, 40))
def test_mcnemar_is_the_exact_binomial_test(dense_only, pruned_only):
    from scipy.stats import binomtest

    total = dense_only + pruned_only
    expected = binomtest(dense_only, total).pvalue if total else 1.0
    assert mcnemar(*right(dense_only, pruned_only)) == pytest.approx(expected)


def test_mcnemar_of_thousands_of_items_does_not_overflow():
    from scipy.stats import binomtest

    assert mcnemar(*right(1500, 1400)) == pytest.approx(binomtest(1500, 2900).pvalue)


def test_the_sign_flip_test_of_five_equal_signs_is_two_of_all_32():
    assert sign_flip_test(np.array([1.0, 2, 3, 4, 5])) == 2 / 32
    assert sign_flip_test(np.zeros(5)) == 1


def test_the_sign_flip_test_of_many_items_agrees_with_the_normal_distribution():
    differences = np.random.default_rng(0).normal(0.15, 1, 200)
    z = abs(differences.sum()) / math.sqrt(np.square(differences).sum())
    assert sign_flip_test(differences) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)


def test_the_bootstrap_of_a_mean_has_the_width_of_its_standard_error():
    differences = np.random.default_rng(0).normal(0.5, 1, 400)
    found = bootstrap_mean(differences)
    assert found.difference == differences.mean()
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.1)
    assert found.low < found.least < found.difference < found.high
    assert bootstrap_mean(differences) == found


def attributes(pictures=60, noise=1.0, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.choice([-1, 0, 1], (pictures, 2))
    return labels, *(labels + generator.normal(0, size, labels.shape) for size in (1.0, noise))


def test_equal_decisions_have_no_difference():
    labels, dense, _ = attributes()
    assert bootstrap_attributes(labels, dense, dense, auc) == Interval(0, 0, 0, 0)
    assert swap_test(labels, dense, dense, auc, resamples=50) == 1
    # The scale of decisions does not matter.
    assert swap_test(labels, dense, 7 * dense, auc, resamples=50) == 1


def test_a_worse_network_is_seen_in_the_interval_and_in_the_test():
    labels, dense, pruned = attributes(noise=20.0)
    found = bootstrap_attributes(labels, dense, pruned, average_precision, resamples=200)
    assert found.high < 0
    assert swap_test(labels, dense, pruned, average_precision, resamples=200) < 0.02


def test_a_mean_over_attributes_leaves_out_labels_of_zero_and_attributes_without_a_score():
    labels = np.array([[1, -1, 0], [-1, -1, 0], [0, -1, 0]])
    scores = np.array([[2.0, 0, 0], [1, 0, 0], [3, 0, 0]])
    assert mean_score(labels, scores, average_precision) == 1


@pytest.mark.parametrize(
    ("interval", "sentence"),
    [
        (Interval(-0.001, -0.006, 0.004, -0.0046), "no loss greater than 0.5 points with 95 % probability"),
        (Interval(0.001, -0.001, 0.004, 0.001), "no loss greater than 0.0 points with 95 % probability"),
        (Interval(-0.02, -0.03, -0.01, -0.028), "a loss of 1.0 to 3.0 points with 95 % probability"),
        (Interval(0.02, 0.01, 0.03, 0.012), "a gain of 1.0 to 3.0 points with 95 % probability"),
    ],
)
def test_an_interval_is_a_sentence(interval, sentence):
    assert interval.sentence == sentence


@given(values=st.lists(st.floats(-5, 5), min_size=2, max_size=30).filter(lambda values: np.std(values) > 1e-3))
def test_a_mean_has_the_interval_and_the_p_value_of_students_t(values):
    from scipy.stats import t, ttest_1samp

    mean, freedom = student_mean([*values, math.nan]), len(values) - 1
    expected = ttest_1samp(values, 0.0)
    assert mean.value == pytest.approx(np.mean(values), abs=1e-12)
    assert mean.half == pytest.approx(t.ppf(0.975, freedom) * np.std(values, ddof=1) / math.sqrt(len(values)))
    assert mean.p == pytest.approx(expected.pvalue, abs=1e-9)


def test_students_t_of_many_values_is_normal_and_equal_values_have_no_interval():
    assert student_tail(1.96, 10_000) == pytest.approx(0.05, abs=1e-4)
    assert (student_mean([2.0, 2.0]).half, student_mean([2.0, 2.0]).p, student_mean([0.0, 0.0]).p) == (0, 0, 1)
    assert math.isnan(student_mean([2.0]).p)
    assert math.isnan(student_mean([]).value)


def test_holms_adjustment_multiplies_the_smallest_by_their_number_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    adjusted = holm([math.nan, 0.02])
    assert math.isnan(adjusted[0])
    assert adjusted[1] == 0.02
