"""Methods of one bit: what is left of each layer, which layers are left alone, and what layers read."""

import pytest
import torch
from small_training import carry_out, small_network
from torch import nn

from secateur.functions.inputs import SignInputs, inputs_of
from secateur.methods.binary_connect import BinaryConnect
from secateur.methods.binary_net import BinaryNet
from secateur.methods.binary_weights import BinaryWeights
from secateur.methods.xnor_net import XnorNet
from secateur.train.recipe import Recipe


def sizes(model):
    """Return how many different sizes the weights of each layer have."""
    return [len(model[index].weight.abs().unique()) for index in (0, 3, 6)]


@pytest.mark.parametrize("stochastic", [False, True])
def test_binary_connect_leaves_two_values_a_layer(stochastic):
    finished = carry_out(BinaryConnect(stochastic=stochastic), small_network())
    assert sizes(finished) == [1, 1, 1]
    assert finished[3].weight.abs().max().item() == pytest.approx((1.5 / (64 + 12)) ** 0.5)
    assert finished[0].weight.abs().max().item() == pytest.approx((1.5 / (9 + 4 * 9)) ** 0.5)
    assert not inputs_of(finished)


def test_binary_weights_have_a_scale_for_each_filter_between_the_first_and_the_last_layer():
    finished = carry_out(BinaryWeights(), small_network())
    assert sizes(finished) == [36, 12, 36]
    assert all(len(row.abs().unique()) == 1 for row in finished[3].weight)
    assert sizes(carry_out(BinaryWeights(keep_first=False, keep_last=False), small_network())) == [4, 12, 3]


@pytest.mark.parametrize(("method", "layers"), [(BinaryNet(), {"3", "6"}), (XnorNet(), {"3"})])
def test_binary_layers_read_signs_but_the_first_reads_the_data(method, layers):
    found = inputs_of(carry_out(method, small_network()))
    assert set(found) == layers
    for function in found.values():
        assert isinstance(function, SignInputs)
        assert function.is_scaled == (method.name == "xnor-net")
        assert function.variance.ne(1).any()  # it has seen batches


def test_shadow_weights_are_trained_without_decay():
    stage = next(BinaryConnect().stages(small_network(), Recipe(lambda_wd=1.0)))
    assert stage.recipe.lambda_wd == 0
    stage.model(torch.randn(2, 1, 6, 6)).sum().backward()
    assert stage.model[3].parametrizations.weight.original.grad.any()


def test_a_network_without_a_layer_in_between_is_refused():
    with pytest.raises(ValueError, match="Sequential has 2 layers with weights, and method"):
        next(XnorNet().stages(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), Recipe()))
