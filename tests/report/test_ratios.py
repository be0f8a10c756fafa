"""How ratios are written: one rule for the page and for the terminal."""

import math

import pytest

from secateur.report.ratios import times


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "1.00×"),
        (1.2499, "1.25×"),
        (9.994, "9.99×"),
        (9.996, "10.0×"),
        (20.52, "20.5×"),
        (99.96, "100×"),
        (1109.7, "1,110×"),
        (math.inf, "∞×"),
    ],
)
def test_a_ratio_has_three_digits_or_more(ratio, text):
    assert times(ratio) == text
