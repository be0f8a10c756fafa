"""LeNet-300-100 and LeNet-5, as the pruning papers use them (paper, table 2)."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn


class LeNet300100(nn.Module):
    """Two hidden layers, of 300 and 100 units: 266,200 weights and 410 biases."""

    input_shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    classes: ClassVar[int] = 10

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, 10)
        _init_glorot_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images, of any shape with 784 pixels each, to logits (images, classes)."""
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class LeNet5(nn.Module):
    """Two convolutions and two linear layers: 430,500 weights and 580 biases.

    This is Caffe's variant, the one pruning papers mean, and not LeCun's of 1998: 20 and 50 filters of 5×5
    without padding, followed by max-pooling and by no other nonlinearity. The only ReLU stands after fc3.
    """

    input_shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    classes: ClassVar[int] = 10

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc3 = nn.Linear(800, 500)
        self.fc4 = nn.Linear(500, 10)
        _init_glorot_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, 1, 28, 28) to logits (images, classes)."""
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.max_pool2d(self.conv2(x), 2)
        x = F.relu(self.fc3(x.flatten(1)))
        logits: Tensor = self.fc4(x)
        return logits


def _init_glorot_(model: nn.Module) -> None:
    for layer in model.children():
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        assert layer.bias is not None
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
