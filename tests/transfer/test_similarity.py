"""Linear CKA has its closed forms, and layers are compared by name."""

import numpy as np
import pytest
from tiny_networks import tiny

from secateur.transfer.similarity import compare_layers, kernels_of, linear_cka, sample_of

X = np.random.default_rng(0).normal(size=(12, 5))


def test_cka_of_equal_features_is_one_also_rotated_scaled_and_moved():
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))
    for other in (X, X @ rotation, -3 * X, X + 7, np.hstack([X, X])):
        assert linear_cka(X, other) == pytest.approx(1)


def test_cka_is_the_formula_of_the_paper():
    a, b = X - X.mean(axis=0), np.square(X) - np.square(X).mean(axis=0)
    expected = np.linalg.norm(a.T @ b) ** 2 / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b)
    assert linear_cka(X, np.square(X)) == pytest.approx(expected)


def test_cka_of_orthogonal_centred_features_is_zero():
    first, second = np.array([[1.0], [1], [-1], [-1]]), np.array([[1.0], [-1], [1], [-1]])
    assert linear_cka(first, second) == pytest.approx(0)


def test_cka_with_constant_features_is_nan_and_other_pictures_are_refused():
    assert np.isnan(linear_cka(X, np.ones((12, 2))))
    with pytest.raises(ValueError, match="of 12 and of 3 pictures"):
        linear_cka(X, X[:3])


def test_layers_are_compared_by_name_on_a_sample(pictures):
    sample = sample_of(pictures, 20)
    assert sample[:2] == (pictures[0], pictures[7])
    assert sample_of(pictures[:3]) == pictures[:3]
    same = compare_layers(kernels_of(tiny(), sample), kernels_of(tiny(), sample))
    assert [(each.layer, pytest.approx(each.cka)) for each in same] == [("conv", 1), ("hidden", 1), ("last", 1)]
    other = compare_layers(kernels_of(tiny(), sample), kernels_of(tiny(seed=1, units=9), sample))
    assert all(0 < each.cka < 1 for each in other)
