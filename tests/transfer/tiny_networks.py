"""Networks for pictures of 8 × 8 pixels."""

import torch
from torch import nn

from secateur.data import Scaling
from secateur.transfer.features import FeatureNetwork


class Tiny(nn.Module):
    """A convolution, a hidden layer of 6 units and a classifier."""

    input_shape = (3, 8, 8)

    def __init__(self, units=6):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.hidden = nn.Linear(36, units)
        self.last = nn.Linear(units, 3)

    def forward(self, x):
        return self.last(self.hidden(self.conv(x).relu().flatten(1)).relu())


def tiny(seed=0, *, units=6, name="tiny", **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FeatureNetwork(name, Tiny(units), (3, 8, 8), Scaling(), **settings)
