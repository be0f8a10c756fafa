"""LeNet-300-100 and LeNet-5, as the pruning papers use them (paper, table 2)."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_DIGITS: Shape = (1, 28, 28)  # MNIST's images


class LeNet300100(nn.Module):
    """Two hidden layers of 300 and 100 units: 266,200 weights and 410 biases for MNIST."""

    def __init__(self, classes: int = 10, input_shape: Shape = _DIGITS) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.fc1 = nn.Linear(math.prod(input_shape), 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, classes)
        _init_glorot_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images, of any shape with as many values each as the input shape has, to logits (images, classes)."""
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class LeNet5(nn.Module):
    """Two convolutions and two linear layers: 430,500 weights and 580 biases for MNIST.

    This is Caffe's variant, the one pruning papers mean, not LeCun's of 1998: 20 and 50 filters of 5×5 without padding,
    each followed by max-pooling and no other nonlinearity. The only ReLU comes after fc3.
    """

    def __init__(self, classes: int = 10, input_shape: Shape = _DIGITS) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc3 = nn.Linear(50 * _pooled_twice(height) * _pooled_twice(width), 500)
        self.fc4 = nn.Linear(500, classes)
        _init_glorot_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width) of the input shape to logits (images, classes)."""
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.max_pool2d(self.conv2(x), 2)
        x = F.relu(self.fc3(x.flatten(1)))
        logits: Tensor = self.fc4(x)
        return logits


def _pooled_twice(length: int) -> int:
    """Return what LeNet-5's two convolutions and poolings leave of a side: 4 of 28 pixels, 1 of 16."""
    for _ in range(2):
        length = (length - 4) // 2
    return length


def _init_glorot_(model: nn.Module) -> None:
    for layer in model.children():
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        assert layer.bias is not None
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)


LENET_300_100 = Network(
    name="lenet-300-100",
    title="two hidden layers, for MNIST (266,200 weights)",
    build=LeNet300100,
    input_shape=_DIGITS,
    classes=10,
    smallest_size=1,
)
LENET_5 = Network(
    name="lenet-5",
    title="two convolutions and two linear layers, for MNIST (430,500 weights)",
    build=LeNet5,
    input_shape=_DIGITS,
    classes=10,
    smallest_size=16,
)
