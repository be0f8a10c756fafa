"""VGG-16 (Simonyan and Zisserman 2014, configuration D)."""

from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 224, 224)
# The filters of each 3×3 convolution, block by block; a pooling ends each block.
_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """Thirteen 3×3 convolutions and three linear layers: 138,344,128 weights and 13,416 biases.

    Parameters have torchvision's names, so that its checkpoints load. The features of images of any size are averaged
    to 7×7 before the linear layers.
    """

    def __init__(self, classes: int = 1000, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        features: list[nn.Module] = []
        channels = input_shape[0]
        for block in _BLOCKS:
            for filters in block:
                features += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(inplace=True)]
                channels = filters
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )
        self._init_()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width), of at least 32×32 pixels, to logits (images, classes)."""
        x = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(x.flatten(1))
        return logits

    def _init_(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
            else:
                continue
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


VGG_16 = Network(
    name="vgg-16",
    title="thirteen convolutions and three linear layers, for ImageNet (138,344,128 weights)",
    build=VGG16,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=32,
)
