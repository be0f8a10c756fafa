"""Cutting by a quality: thresholds in units of each layer's standard deviation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import small_network
from torch import nn

from secateur.methods.layers import layers
from secateur.methods.quality import cut_, solve_quality, threshold

weights = st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=40).map(torch.tensor)


def linear(*rows):
    """A linear layer with these weights."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    layer.weight.data.copy_(torch.tensor(rows))
    return layer


def test_a_threshold_is_the_quality_times_the_standard_deviation():
    assert threshold(torch.tensor([[3.0, -3.0], [1.0, -1.0]]), 0.5) == pytest.approx(0.5 * math.sqrt(5))


def test_weights_that_are_gone_have_no_part_in_the_standard_deviation():
    assert threshold(torch.tensor([3.0, -3.0, 0.0, 0.0, 0.0]), 1.0) == pytest.approx(3)


def test_each_layer_is_cut_at_its_own_standard_deviation():
    model = nn.Sequential(linear([3.0, -3.0], [1.0, -1.0]), linear([0.3, 0.1], [-0.3, -0.1]), linear([2.0, -2.0]))
    cut_(model, 0.9, "fc")
    assert model[0].weight.tolist() == [[3, -3], [0, 0]]
    assert torch.equal(model[1].weight != 0, torch.tensor([[True, False], [True, False]]))
    assert model[2].weight.tolist() == [[2, -2]]


@given(weight=weights, quality=st.floats(0.1, 1))
def test_a_quality_of_at_most_one_empties_no_layer(weight, quality):
    model = nn.Sequential(linear(weight.tolist()))
    cut_(model, quality, "fc")
    assert bool(model[0].weight.any()) == bool(weight.any())


@given(weight=weights, quality=st.floats(0.1, 1), exponent=st.integers(-6, 6))
def test_the_scale_of_a_layer_does_not_matter(weight, quality, exponent):
    model = nn.Sequential(linear(weight.tolist()), linear((weight * 2.0**exponent).tolist()))
    cut_(model, quality, "fc")
    assert torch.equal(model[0].weight != 0, model[1].weight != 0)


def test_a_layer_that_would_lose_everything_is_named():
    with pytest.raises(ValueError, match=r'"0" would lose all of its weights.*smaller quality'):
        cut_(nn.Sequential(linear([1.0, -1.0])), 1.5, "fc")


@given(weight=weights, other=weights, share=st.floats(0, 1))
def test_a_solved_quality_leaves_as_many_weights_as_asked(weight, other, share):
    tensors = [weight[weight != 0], 100 * other[other != 0]]
    sizes = torch.cat([each.abs().double() / threshold(each, 1.0) for each in tensors])
    kept = int(share * len(sizes))
    quality = solve_quality(tensors, kept)
    left = int((sizes >= quality).sum())
    assert left == kept or (sizes == quality).any() or kept == 0  # equal magnitudes are kept together


def test_a_kind_is_cut_and_the_other_left_alone():
    model = small_network()
    before = model[0].weight.clone()
    cut_(model, 0.5, "fc")
    assert torch.equal(model[0].weight, before)
    assert not model[3].weight.all()
    cut_(model, 0.5, "conv")
    assert not model[0].weight.all()


def test_a_tied_weight_is_cut_once():
    first = linear([4.0, -4.0], [2.0, -2.0])
    second = nn.Linear(2, 2)
    second.weight = first.weight
    assert len(list(layers(nn.Sequential(first, second), "fc"))) == 1
