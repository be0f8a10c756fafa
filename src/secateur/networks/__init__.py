"""Networks by name: those of the paper, and larger ones that pruning methods are compared on.

A new network is a file with an entry `Network`, listed in the table below. Another package adds one through an entry
point of the group `secateur.networks` whose value is such an entry. Any other network is named by where it is imported
from, `package.module:callable`; see `secateur.networks.imported`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from secateur.networks import imported
from secateur.networks.alexnet import ALEXNET, AlexNet
from secateur.networks.alexnet_torchvision import ALEXNET_TORCHVISION, TorchvisionAlexNet
from secateur.networks.efficientnet_lite import EFFICIENTNET_LITE0, EfficientNetLite0
from secateur.networks.imported import NetworkError, is_import_path, modules_of
from secateur.networks.lenet import LENET_5, LENET_300_100, LeNet5, LeNet300100
from secateur.networks.network import Network, Shape
from secateur.networks.resnet import RESNET_50, RESNET_50_V1, ResNet50, ResNet50V1
from secateur.networks.resnet_cifar import RESNET_20, RESNET_32, RESNET_56
from secateur.networks.seeding import seeded
from secateur.networks.squeezenet import SQUEEZENET, SqueezeNet
from secateur.networks.vgg import VGG16, VGG_16
from secateur.networks.vgg_cifar import VGG_16_CIFAR, VGG_16_CIFAR_HALF, VGG_16_CIFAR_QUARTER
from secateur.table import Table

__all__ = [
    "NETWORKS",
    "VGG16",
    "AlexNet",
    "EfficientNetLite0",
    "LeNet5",
    "LeNet300100",
    "Network",
    "NetworkError",
    "ResNet50",
    "ResNet50V1",
    "Shape",
    "SqueezeNet",
    "TorchvisionAlexNet",
    "build",
    "is_import_path",
    "modules_of",
    "name_of",
    "names",
    "require_known",
    "usual_shape",
]

NETWORKS: Table[Network] = Table(
    "network",
    "secateur.networks",
    Network,
    (
        LENET_300_100,
        LENET_5,
        ALEXNET,
        VGG_16,
        RESNET_50,
        RESNET_20,
        RESNET_32,
        RESNET_56,
        VGG_16_CIFAR,
        VGG_16_CIFAR_HALF,
        VGG_16_CIFAR_QUARTER,
        ALEXNET_TORCHVISION,
        RESNET_50_V1,
        EFFICIENTNET_LITE0,
        SQUEEZENET,
    ),
)


def names() -> tuple[str, ...]:
    """Return the names of our networks."""
    return tuple(NETWORKS)


def require_known(name: str) -> None:
    """Raise a ValueError unless `build` may know a name: one of ours, or `package.module:callable`."""
    if not is_import_path(name):
        NETWORKS.find(name)


def build(
    name: str,
    seed: int | None = None,
    *,
    classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    trust: Collection[str] = (),
) -> nn.Module:
    """Build the network called `name`, for its usual number of classes and input shape unless others are given.

    With a seed, the weights are a function of that seed alone and the global generator keeps its state. Without one
    they are drawn from the global generator, as usual in torch. A name of the form `package.module:callable` is
    imported, which runs the module, only if `trust` has the name of the module or of a package it belongs to.
    """
    if is_import_path(name):
        given = None if input_shape is None else _shape(name, input_shape)
        return imported.build(name, trust, seed=seed, classes=classes, input_shape=given)
    network = NETWORKS.find(name)
    classes = network.classes if classes is None else classes
    shape: Shape = network.input_shape if input_shape is None else tuple(input_shape)  # type: ignore[assignment]  # its length is checked next
    network.require(classes, shape)
    with seeded(seed):
        return network.build(classes, shape)


def usual_shape(name: str, trust: Collection[str] = ()) -> Shape | None:
    """Return the input shape that a network is usually built for; None if one that is not ours does not say."""
    return imported.usual_shape(name, trust) if is_import_path(name) else NETWORKS.find(name).input_shape


def _shape(name: str, given: Sequence[int]) -> Shape:
    if len(given) != 3 or min(given) < 1:
        raise ValueError(f"{name}: input_shape must be channels, height and width, got {tuple(given)}")
    channels, height, width = given
    return channels, height, width


def name_of(model: nn.Module) -> tuple[str, dict[str, int | Shape]] | None:
    """Return the name under which `build` knows a model's class, and the arguments that are not the usual ones.

    A subclass is another network: None. `build(name, **arguments)` builds a network of the same layers.
    """
    for network in NETWORKS.values():
        if type(model) is network.build:
            usual = {"classes": network.classes, "input_shape": network.input_shape}
            return network.name, {name: getattr(model, name) for name in usual if getattr(model, name) != usual[name]}
    return None
