"""ResNet-20, 32 and 56 for CIFAR-10 (He et al. 2015, section 4.2): three groups of blocks of two 3×3 convolutions."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 32, 32)


class Block(nn.Module):
    """Two 3×3 convolutions around which the input is added; where it shrinks, it is padded with empty channels."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, filters - channels
        self.conv1 = nn.Conv2d(channels, filters, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)

    def forward(self, x: Tensor) -> Tensor:
        """Map (images, channels, height, width) to (images, filters, height / stride, width / stride)."""
        identity = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + identity)


class CifarResNet(nn.Module):
    """A convolution, three groups of `blocks` blocks and a linear layer: 6 · blocks + 2 layers of weights.

    The shortcuts have no weights (option A of the paper). Images may be of any size.
    """

    blocks: ClassVar[int]  # in each group

    def __init__(self, classes: int = 10, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.conv1 = nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._group(16, 16, 1)
        self.layer2 = self._group(16, 32, 2)
        self.layer3 = self._group(32, 64, 2)
        self.fc = nn.Linear(64, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width) to logits (images, classes)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits

    def _group(self, channels: int, filters: int, stride: int) -> nn.Sequential:
        first = Block(channels, filters, stride)
        return nn.Sequential(first, *(Block(filters, filters, 1) for _ in range(self.blocks - 1)))


class ResNet20(CifarResNet):
    """Twenty layers of weights: 268,336 weights, 1,376 parameters of batch norms and 10 biases."""

    blocks = 3


class ResNet32(CifarResNet):
    """Thirty-two layers of weights: 461,872 weights, 2,272 parameters of batch norms and 10 biases."""

    blocks = 5


class ResNet56(CifarResNet):
    """Fifty-six layers of weights: 848,944 weights, 4,064 parameters of batch norms and 10 biases."""

    blocks = 9


RESNET_20 = Network(
    name="resnet-20",
    title="a residual network of twenty layers, for CIFAR-10 (268,336 weights)",
    build=ResNet20,
    input_shape=_SHAPE,
    classes=10,
    smallest_size=8,
)
RESNET_32 = Network(
    name="resnet-32",
    title="a residual network of thirty-two layers, for CIFAR-10 (461,872 weights)",
    build=ResNet32,
    input_shape=_SHAPE,
    classes=10,
    smallest_size=8,
)
RESNET_56 = Network(
    name="resnet-56",
    title="a residual network of fifty-six layers, for CIFAR-10 (848,944 weights)",
    build=ResNet56,
    input_shape=_SHAPE,
    classes=10,
    smallest_size=8,
)
