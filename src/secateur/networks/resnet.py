"""ResNet-50 (He et al. 2015), with the stride of a block in its 3×3 convolution (v1.5) or in its first one (v1)."""

from typing import ClassVar

from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 224, 224)


class Bottleneck(nn.Module):
    """A residual block of three convolutions: 1×1 to fewer channels, 3×3, and 1×1 to four times as many.

    The 3×3 convolution has the stride, or with `strides_early` the first one.
    """

    def __init__(self, channels: int, inner: int, stride: int = 1, *, strides_early: bool = False) -> None:
        super().__init__()
        outer = 4 * inner
        first, second = (stride, 1) if strides_early else (1, stride)
        self.conv1 = nn.Conv2d(channels, inner, 1, stride=first, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != outer:
            projection = nn.Conv2d(channels, outer, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        """Map (images, channels, height, width) to (images, 4 · inner, height / stride, width / stride)."""
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += identity
        answer: Tensor = self.relu(x)
        return answer


class FiftyLayers(nn.Module):
    """Fifty layers: 25,502,912 weights, 53,120 parameters of batch norms and 1,000 biases.

    Parameters have torchvision's names. Images may be of any size.
    """

    strides_early: ClassVar[bool]

    def __init__(self, classes: int = 1000, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.conv1 = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(3, 64, 64)
        self.layer2 = self._stage(4, 256, 128, stride=2)
        self.layer3 = self._stage(6, 512, 256, stride=2)
        self.layer4 = self._stage(3, 1024, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width) to logits (images, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits

    def _stage(self, blocks: int, channels: int, inner: int, stride: int = 1) -> nn.Sequential:
        first = Bottleneck(channels, inner, stride, strides_early=self.strides_early)
        return nn.Sequential(first, *(Bottleneck(4 * inner, inner) for _ in range(blocks - 1)))


class ResNet50(FiftyLayers):
    """The variant called v1.5, as in torchvision, whose checkpoints load: a block strides in its 3×3 convolution."""

    strides_early = False


class ResNet50V1(FiftyLayers):
    """The variant of the paper and of Keras: a block strides in its first convolution, which skips pixels."""

    strides_early = True


RESNET_50 = Network(
    name="resnet-50",
    title="a residual network of fifty layers, for ImageNet (25,502,912 weights)",
    build=ResNet50,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=1,
)
RESNET_50_V1 = Network(
    name="resnet-50-v1",
    title="ResNet-50 as published in 2015, which strides in 1×1 convolutions (25,502,912 weights)",
    build=ResNet50V1,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=1,
)
