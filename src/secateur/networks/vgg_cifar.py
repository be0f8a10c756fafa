"""VGG-16 for CIFAR-10: batch norm after every convolution, one linear layer, and three widths."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 32, 32)
# The filters of each 3×3 convolution at full width, block by block; a pooling ends each block.
_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))

_NOISE = 0.25  # the share of the usual initial weights that is added to the identity


class CifarVGG16(nn.Module):
    """The thirteen convolutions of VGG-16 with 1 / `divisor` of their filters, and a linear layer.

    Convolutions have no biases: the batch norm after each of them has one. Features of images larger than 32×32 are
    averaged before the linear layer.

    Every convolution but the first begins near the identity: so deep a plain network learns sooner from there.
    """

    divisor: ClassVar[int]

    def __init__(self, classes: int = 10, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        features: list[nn.Module] = []
        channels = input_shape[0]
        for block in _BLOCKS:
            for full in block:
                filters = full // self.divisor
                features.append(nn.Conv2d(channels, filters, 3, padding=1, bias=False))
                features += [nn.BatchNorm2d(filters), nn.ReLU(inplace=True)]
                channels = filters
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)
        convolutions = [layer for layer in features if isinstance(layer, nn.Conv2d)]
        for layer in convolutions:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        for layer in convolutions[1:]:
            _begin_as_identity_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width), of at least 32×32 pixels, to logits (images, classes)."""
        x = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


def _begin_as_identity_(weight: Tensor) -> None:
    """Shrink the noise of the first filters and let filter i pass channel i on; further filters stay as they are."""
    with torch.no_grad():
        filters = weight[: weight.shape[1]]
        filters.mul_(_NOISE).add_(nn.init.dirac_(torch.empty_like(filters)))


class FullCifarVGG16(CifarVGG16):
    """The full width, 64 to 512 filters: 14,715,584 weights, 8,448 parameters of batch norms and 10 biases."""

    divisor = 1


class HalfCifarVGG16(CifarVGG16):
    """Half the width, 32 to 256 filters: 3,680,608 weights, 4,224 parameters of batch norms and 10 biases."""

    divisor = 2


class QuarterCifarVGG16(CifarVGG16):
    """A quarter of the width, 16 to 128 filters: 921,008 weights, 2,112 parameters of batch norms and 10 biases."""

    divisor = 4


VGG_16_CIFAR = Network(
    name="vgg-16-cifar",
    title="thirteen convolutions with batch norm and a linear layer, for CIFAR-10 (14,715,584 weights)",
    build=FullCifarVGG16,
    input_shape=_SHAPE,
    classes=10,
    smallest_size=32,
)
VGG_16_CIFAR_HALF = Network(
    name="vgg-16-cifar-half",
    title="vgg-16-cifar with half as many filters in each layer (3,680,608 weights)",
    build=HalfCifarVGG16,
    input_shape=_SHAPE,
    classes=10,
    smallest_size=32,
)
VGG_16_CIFAR_QUARTER = Network(
    name="vgg-16-cifar-quarter",
    title="vgg-16-cifar with a quarter of the filters in each layer (921,008 weights)",
    build=QuarterCifarVGG16,
    input_shape=_SHAPE,
    classes=10,
    smallest_size=32,
)
