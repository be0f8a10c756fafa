"""Tiled convolution: the two extremes are torch's convolution and a layer without sharing; in between, places share."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn import functional
from torch.testing import assert_close

from secateur.measure import count
from secateur.networks.tiled import TiledConv2d

STRIDES = [(1, 0), (2, 1), ((1, 2), (2, 0))]


def gradients(layer, x, run=None):
    x = x.clone().requires_grad_()
    (layer(x) if run is None else run(x)).square().sum().backward()
    return x.grad, layer.weight.grad, layer.bias.grad


@pytest.mark.parametrize(("stride", "padding"), STRIDES)
def test_a_tile_of_one_is_the_ordinary_convolution(stride, padding):
    layer, x = TiledConv2d(2, 3, 3, tile=1, stride=stride, padding=padding), torch.randn(4, 2, 7, 8)
    plain = nn.Conv2d(2, 3, 3, stride, padding)
    plain.load_state_dict(layer.state_dict())
    assert_close(layer(x), plain(x))
    assert_close(gradients(layer, x), gradients(plain, x))


@pytest.mark.parametrize(("stride", "padding"), STRIDES)
@pytest.mark.parametrize("tile", [2, 3, 9])
def test_equal_banks_are_the_ordinary_convolution_whatever_the_tile(tile, stride, padding):
    layer, x = TiledConv2d(2, 3, 3, tile=tile, stride=stride, padding=padding), torch.randn(4, 2, 7, 8)
    with torch.no_grad():
        layer.weight.copy_(layer.weight[:3].repeat(tile**2, 1, 1, 1))
        layer.bias.copy_(layer.bias[:3].repeat(tile**2))
    plain = nn.Conv2d(2, 3, 3, stride, padding)
    plain.load_state_dict({"weight": layer.weight[:3], "bias": layer.bias[:3]})
    assert_close(layer(x), plain(x))
    by_input, by_weight, by_bias = gradients(layer, x)
    summed = by_input, by_weight.view(-1, 3, 2, 3, 3).sum(0), by_bias.view(-1, 3).sum(0)
    assert_close(summed, gradients(plain, x), rtol=1e-4, atol=1e-4)


def test_a_tile_of_the_size_of_the_output_shares_nothing():
    layer, x = TiledConv2d(2, 3, 3, tile=4), torch.randn(5, 2, 6, 6)
    patches = functional.unfold(x, 3).transpose(1, 2)  # (samples, places, 18)
    local = torch.einsum("npi,pfi->nfp", patches, layer.weight.view(16, 3, 18)) + layer.bias.view(16, 3).T
    assert_close(layer(x), local.view(5, 3, 4, 4))


def test_gradients_match_finite_differences_and_weights_are_counted():
    layer, x = TiledConv2d(1, 2, 2, tile=2).double(), torch.randn(2, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda x, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, x), (x, *layer.parameters())
    )
    assert count(layer).prunable.weights == 4 * 2 * 4
    with pytest.raises(ValueError, match="tile must be"):
        TiledConv2d(1, 2, 2, tile=0)
