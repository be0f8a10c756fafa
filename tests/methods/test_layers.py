"""Layers of a kind, what is fixed while others are trained, and dropouts that follow their layers."""

import math

import pytest
from small_training import small_network
from torch import nn

from secateur import networks
from secateur.methods.layers import adjust_dropout_, dropout_ratio, kinds, others_fixed, read_dropouts


def test_what_was_fixed_before_is_fixed_after():
    model = small_network()
    model[0].bias.requires_grad_(False)
    with others_fixed(model, "fc"):
        assert not model[0].weight.requires_grad
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["0.bias"]


@pytest.mark.parametrize(("left", "ratio"), [(100, 0.5), (25, 0.25), (1, 0.05), (0, 0.0)])
def test_dropout_shrinks_with_the_root_of_the_connections(left, ratio):
    assert dropout_ratio(0.5, 100, left) == pytest.approx(ratio)


def test_a_dropout_follows_the_layer_before_it_and_starts_from_its_first_ratio():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.4), nn.Linear(2, 1), nn.Dropout(0.2))
    dropouts = read_dropouts(model)
    for _ in range(2):
        model[0].weight.data[1] = 0
        adjust_dropout_(model, dropouts)
        assert model[1].p == pytest.approx(0.4 * math.sqrt(0.5))
        assert model[3].p == 0.2


def test_the_dropout_of_alexnet_follows_its_weights():
    assert len(read_dropouts(networks.build("alexnet"))) == 2


def test_a_network_names_its_kinds_in_the_order_of_a_round():
    assert kinds(small_network()) == ["fc", "conv"]
    assert kinds(nn.Sequential(nn.Linear(2, 2))) == ["fc"]
