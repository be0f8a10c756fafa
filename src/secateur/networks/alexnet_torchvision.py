"""AlexNet without groups, as torchvision has it (Krizhevsky 2014, "One weird trick", without its two columns)."""

from torch import Tensor, nn

from secateur.networks.network import Network, Shape

_SHAPE: Shape = (3, 224, 224)


class TorchvisionAlexNet(nn.Module):
    """Five convolutions and three linear layers: 61,090,496 weights and 10,344 biases.

    No groups, no normalisation across channels, and fewer filters than the network of the pruning papers, `alexnet`.
    Parameters have torchvision's names, so that its checkpoints load. Features of images of any size are averaged to
    6×6 before the linear layers.
    """

    def __init__(self, classes: int = 1000, input_shape: Shape = _SHAPE) -> None:
        super().__init__()
        self.classes, self.input_shape = classes, input_shape
        self.features = nn.Sequential(
            nn.Conv2d(input_shape[0], 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map images (images, channels, height, width), of at least 63×63 pixels, to logits (images, classes)."""
        x = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


ALEXNET_TORCHVISION = Network(
    name="alexnet-torchvision",
    title="AlexNet without groups, as torchvision has it, for ImageNet (61,090,496 weights)",
    build=TorchvisionAlexNet,
    input_shape=_SHAPE,
    classes=1000,
    smallest_size=63,
)
