"""Budgets: what is refused, and what they mean."""

import math

import pytest

from secateur import Budget


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "one of ratio, sparsity, bytes and error_increase, got none"),
        ({"ratio": 20, "bytes": 100}, "got ratio and bytes"),
        ({"ratio": 1}, "ratio must be above 1, got 1"),
        ({"ratio": -3}, "ratio must be above 1"),
        ({"ratio": math.nan}, "ratio must be a finite number, got nan"),
        ({"ratio": math.inf}, "ratio must be a finite number"),
        ({"ratio": "20"}, "ratio must be a finite number, got '20'"),
        ({"ratio": True}, "ratio must be a finite number"),
        ({"sparsity": 0}, "sparsity must lie between 0 and 1"),
        ({"sparsity": 1}, "sparsity must lie between 0 and 1"),
        ({"sparsity": 95}, "got 95: 0.95 keeps one weight in twenty"),
        ({"bytes": 0}, "bytes must be a whole number above 0"),
        ({"bytes": 10.5}, "bytes must be a whole number above 0"),
        ({"error_increase": -0.1}, "an error below the dense network's cannot be promised"),
    ],
)
def test_an_impossible_budget_is_refused_with_the_remedy(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Budget(**settings)


def test_a_share_of_zeros_is_a_ratio():
    assert Budget(sparsity=0.95).final_ratio == pytest.approx(20)
    assert Budget(ratio=20).final_ratio == 20
    assert Budget(bytes=1000).final_ratio is None


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(ratio=20), "20×"),
        (Budget(sparsity=0.955), "95.5 % zeros"),
        (Budget(bytes=10_000), "10,000 bytes"),
        (Budget(error_increase=0.5), "+0.5 points of error"),
    ],
)
def test_a_budget_says_what_it_is(budget, words):
    assert str(budget) == words
