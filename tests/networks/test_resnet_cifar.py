"""ResNet-20, 32 and 56: their published sizes, and shortcuts without weights."""

import pytest
import torch

from secateur import networks
from secateur.measure import count
from secateur.networks.resnet_cifar import Block


@pytest.mark.parametrize(
    ("layers", "weights", "parameters", "published"),
    [(20, 268_336, 269_722, "0.27"), (32, 461_872, 464_154, "0.46"), (56, 848_944, 853_018, "0.85")],
)
def test_it_has_the_layers_and_the_size_of_table_6_of_he_et_al(layers, weights, parameters, published):
    totals = count(networks.build(f"resnet-{layers}", seed=0))
    assert len(totals.prunable.tensors) == layers
    assert (totals.prunable.weights, totals.whole.weights) == (weights, parameters)
    assert f"{parameters / 1e6:.2f}" == published


def test_a_shortcut_skips_pixels_and_pads_channels():
    block = Block(2, 4, stride=2).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 2, 6, 6)
    out = block(x)
    assert torch.equal(out[:, :2], x[:, :, ::2, ::2])
    assert not out[:, 2:].any()
