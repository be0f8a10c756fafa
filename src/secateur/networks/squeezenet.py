"""SqueezeNet 1.0 (Iandola et al. 2016): fire modules, and no linear layer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 227, 227)


class Fire(nn.Module):
    """A 1×1 convolution to few channels, then 1×1 and 3×3 convolutions next to each other."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (images, channels, height, width) to (images, 2 · expanded, height, width)."""
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """Twenty-six convolutions: 1,244,448 weights and 3,976 biases.

    As in the authors' Caffe definition, poolings round up and the last convolution pads its input by a pixel, which
    adds its biases once per pixel of the frame; torchvision's network of that name does not pad.
    """

    def __init__(self, classes: int = 1000, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.conv1 = nn.Conv2d(input_shape[0], 96, 7, stride=2)
        self.fire2 = Fire(96, 16, 64)
        self.fire3 = Fire(128, 16, 64)
        self.fire4 = Fire(128, 32, 128)
        self.fire5 = Fire(256, 32, 128)
        self.fire6 = Fire(256, 48, 192)
        self.fire7 = Fire(384, 48, 192)
        self.fire8 = Fire(384, 64, 256)
        self.fire9 = Fire(512, 64, 256)
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.drop9 = nn.Dropout()
        self.conv10 = nn.Conv2d(512, classes, 1, padding=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                assert layer.bias is not None
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.normal_(self.conv10.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width), of at least 21×21 pixels, to logits (images, classes)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(self.fire4(self.fire3(self.fire2(x))))
        x = self.pool(self.fire8(self.fire7(self.fire6(self.fire5(x)))))
        x = F.relu(self.conv10(self.drop9(self.fire9(x))))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


SQUEEZENET = Network(
    name="squeezenet",
    title="SqueezeNet 1.0: fire modules without a linear layer, for ImageNet (1,244,448 weights)",
    build=SqueezeNet,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=21,
)
