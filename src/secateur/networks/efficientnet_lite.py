"""EfficientNet-Lite0 (Tan and Le 2019, without squeeze-and-excitation and with ReLU6 for mobile processors)."""

import torch.nn.functional as F
from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 224, 224)
# Of each group of blocks: expansion, kernel size, channels, blocks, stride of the first block.
_GROUPS = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


class SamePadding(nn.Module):
    """A frame of zeros such that a convolution leaves ⌈length / stride⌉ pixels of a side.

    If an odd number of rows is needed, the one too many is at the bottom, and so for columns at the right: TensorFlow
    trained the published weights this way. The frame is that of the input size the network is built for.
    """

    def __init__(self, size: tuple[int, int], kernel: int, stride: int) -> None:
        super().__init__()
        frame: list[int] = []  # left, right, top, bottom
        for length in reversed(size):
            missing = max((-(-length // stride) - 1) * stride + kernel - length, 0)
            frame += [missing // 2, missing - missing // 2]
        self.frame = tuple(frame)

    def forward(self, x: Tensor) -> Tensor:
        """Pad (images, channels, height, width)."""
        return F.pad(x, self.frame)


class InvertedResidual(nn.Module):
    """A 1×1 convolution to more channels, a depthwise one, and a 1×1 one back; the input is added if it fits."""

    def __init__(
        self, channels: int, filters: int, size: tuple[int, int], *, expansion: int, kernel: int, stride: int
    ) -> None:
        super().__init__()
        inner = expansion * channels
        self.adds_input = stride == 1 and channels == filters
        self.expand: nn.Module = nn.Identity()
        if expansion > 1:
            self.expand = nn.Sequential(nn.Conv2d(channels, inner, 1, bias=False), _norm(inner), nn.ReLU6())
        self.pad = SamePadding(size, kernel, stride)
        self.depthwise = nn.Conv2d(inner, inner, kernel, stride=stride, groups=inner, bias=False)
        self.bn1 = _norm(inner)
        self.project = nn.Conv2d(inner, filters, 1, bias=False)
        self.bn2 = _norm(filters)

    def forward(self, x: Tensor) -> Tensor:
        """Map (images, channels, height, width) to (images, filters, height / stride, width / stride)."""
        inner = F.relu6(self.bn1(self.depthwise(self.pad(self.expand(x)))))
        projected: Tensor = self.bn2(self.project(inner))
        return projected + x if self.adds_input else projected


class EfficientNetLite0(nn.Module):
    """Fifty layers of weights: 4,608,992 weights, 42,016 parameters of batch norms and 1,000 biases.

    Images may be of any size. The random skipping of blocks in training that the paper has is left out.
    """

    def __init__(self, classes: int = 1000, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        height, width = input_shape[1:]
        self.pad = SamePadding((height, width), 3, 2)
        self.stem = nn.Conv2d(input_shape[0], 32, 3, stride=2, bias=False)
        self.bn_stem = _norm(32)
        channels, size = 32, (-(-height // 2), -(-width // 2))
        blocks: list[nn.Module] = []
        for expansion, kernel, filters, count, first_stride in _GROUPS:
            for stride in (first_stride, *[1] * (count - 1)):
                block = InvertedResidual(channels, filters, size, expansion=expansion, kernel=kernel, stride=stride)
                blocks.append(block)
                channels, size = filters, (-(-size[0] // stride), -(-size[1] // stride))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Conv2d(channels, 1280, 1, bias=False)
        self.bn_head = _norm(1280)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1280, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width) to logits (images, classes)."""
        x = F.relu6(self.bn_stem(self.stem(self.pad(x))))
        x = F.relu6(self.bn_head(self.head(self.blocks(x))))
        logits: Tensor = self.fc(self.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        return logits


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)  # TensorFlow's constants, as published


EFFICIENTNET_LITE0 = Network(
    name="efficientnet-lite0",
    title="inverted residual blocks with depthwise convolutions, for ImageNet (4,608,992 weights)",
    build=EfficientNetLite0,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=1,
)
