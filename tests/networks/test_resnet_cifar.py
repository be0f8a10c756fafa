"""ResNet-20: its published size, and shortcuts without weights."""

import torch

from secateur import networks
from secateur.measure import count
from secateur.networks.resnet_cifar import Block


def test_it_has_twenty_layers_of_weights_and_a_quarter_of_a_million_weights():
    totals = count(networks.build("resnet-20", seed=0))
    assert len(totals.prunable.tensors) == 20
    assert (totals.prunable.weights, totals.whole.weights) == (268_336, 269_722)


def test_a_shortcut_skips_pixels_and_pads_channels():
    block = Block(2, 4, stride=2).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 2, 6, 6)
    out = block(x)
    assert torch.equal(out[:, :2], x[:, :, ::2, ::2])
    assert not out[:, 2:].any()
