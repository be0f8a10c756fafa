"""k-means on a line: a fixed point, no wasted centroid, and the starts of Deep Compression."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from quantizing import weights
from torch import nn
from torch.testing import assert_close

from secateur import (
    QuantizeConfig,
    quantize,
)
from secateur.kmeans import assign, cluster, initial_centroids


@given(weights, st.integers(1, 12), st.sampled_from(["linear", "density", "random"]))
def test_centroids_are_a_fixed_point_of_lloyds_iteration(values, k, init):
    values = torch.tensor(values, dtype=torch.float64)
    centroids = cluster(values, k, init)
    nearest = assign(values, centroids)
    assert torch.equal((values - centroids[nearest]).abs(), (values[:, None] - centroids).abs().min(1).values)
    for index in nearest.unique():
        assert_close(centroids[index], values[nearest == index].mean())


@given(weights, st.integers(1, 12), st.sampled_from(["linear", "density", "random"]))
def test_clustering_is_no_worse_than_its_start(values, k, init):
    values = torch.tensor(values, dtype=torch.float64)
    start = initial_centroids(values.sort().values, k, init) if k < len(values) else values.sort().values[:k]
    errors = [(values - c[assign(values, c)]).square().sum().item() for c in (cluster(values, k, init), start)]
    assert errors[0] <= errors[1] + 1e-12


@given(weights, st.integers(0, 5))
def test_as_many_centroids_as_distinct_values_lose_nothing(values, more):
    values = torch.tensor(values, dtype=torch.float64)
    centroids = cluster(values, len(values.unique()) + more)
    assert torch.equal(centroids[assign(values, centroids)], values)


@given(weights, st.integers(1, 12), st.sampled_from(["linear", "density", "random"]))
def test_no_centroid_is_wasted(values, k, init):
    values = torch.tensor(values, dtype=torch.float64)
    centroids = cluster(values, k, init)
    assert len(assign(values, centroids).unique()) == min(k, len(values.unique()))


def test_values_far_smaller_than_the_largest_have_means_of_their_own():
    values = torch.tensor([-1, 1e-20, 2e-20, 6e-20, 8e-20], dtype=torch.float64)
    assert_close(cluster(values, 3), torch.tensor([-1, 1.5e-20, 7e-20], dtype=torch.float64), rtol=1e-12, atol=0)


def test_filters_far_smaller_than_the_others_are_shared():
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 20, 5)
    layer.weight.data[5:] *= 1e-13
    assert len(quantize(layer, QuantizeConfig(levels=256)).weight.unique()) == 256


def test_values_that_differ_in_their_last_bit_only_are_clustered():
    values = 1 + torch.arange(9, dtype=torch.float64) * 2**-52
    centroids = cluster(values, 4)
    assert (centroids[assign(values, centroids)] - values).abs().max() <= 3 * 2**-52


def test_the_three_starts_are_even_in_value_even_in_probability_and_drawn():
    ordered = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 60], dtype=torch.float64)
    assert initial_centroids(ordered, 4, "linear").tolist() == [0, 20, 40, 60]
    assert initial_centroids(ordered, 4, "density").tolist() == [1, 3, 5, 60]
    drawn = initial_centroids(ordered, 4, "random", seed=1)
    assert set(drawn.tolist()) <= set(ordered.tolist())
    assert torch.equal(drawn, initial_centroids(ordered, 4, "random", seed=1))
    assert any(not torch.equal(drawn, initial_centroids(ordered, 4, "random", seed=seed)) for seed in range(2, 9))
