"""Networks by name: those of the paper, and larger ones that pruning methods are compared on.

A new network is a file with an entry `Network`, listed in the table below. Another package adds one through an entry
point of the group `secateur.networks` whose value is such an entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from secateur.networks.alexnet import ALEXNET, AlexNet
from secateur.networks.alexnet_torchvision import ALEXNET_TORCHVISION, TorchvisionAlexNet
from secateur.networks.efficientnet_lite import EFFICIENTNET_LITE0, EfficientNetLite0
from secateur.networks.lenet import LENET_5, LENET_300_100, LeNet5, LeNet300100
from secateur.networks.network import Network, Shape
from secateur.networks.resnet import RESNET_50, RESNET_50_V1, ResNet50, ResNet50V1
from secateur.networks.resnet_cifar import RESNET_20, RESNET_32, RESNET_56
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
    "ResNet50",
    "ResNet50V1",
    "Shape",
    "SqueezeNet",
    "TorchvisionAlexNet",
    "build",
    "name_of",
    "names",
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
    """Return the names that `build` takes."""
    return tuple(NETWORKS)


def build(
    name: str, seed: int | None = None, *, classes: int | None = None, input_shape: Sequence[int] | None = None
) -> nn.Module:
    """Build the network called `name`, for its usual number of classes and input shape unless others are given.

    With a seed, the weights are a function of that seed alone and the global generator keeps its state. Without one
    they are drawn from the global generator, as usual in torch.
    """
    network = NETWORKS.find(name)
    classes = network.classes if classes is None else classes
    shape: Shape = network.input_shape if input_shape is None else tuple(input_shape)  # type: ignore[assignment]  # its length is checked next
    network.require(classes, shape)
    if seed is None:
        return network.build(classes, shape)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the generators of all GPUs, which are not restored here.
        torch.default_generator.manual_seed(seed)
        return network.build(classes, shape)


def name_of(model: nn.Module) -> tuple[str, dict[str, int | Shape]] | None:
    """Return the name under which `build` knows a model's class, and the arguments that are not the usual ones.

    A subclass is another network: None. `build(name, **arguments)` builds a network of the same layers.
    """
    for network in NETWORKS.values():
        if type(model) is network.build:
            usual = {"classes": network.classes, "input_shape": network.input_shape}
            return network.name, {name: getattr(model, name) for name in usual if getattr(model, name) != usual[name]}
    return None
