"""The networks of the paper, and two larger ones that others are measured by, by name."""

import torch
from torch import nn

from secateur.models.alexnet import AlexNet
from secateur.models.lenet import LeNet5, LeNet300100
from secateur.models.resnet import ResNet50
from secateur.models.vgg import VGG16
from secateur.nearest import require_one_of

__all__ = ["MODELS", "VGG16", "AlexNet", "LeNet5", "LeNet300100", "ResNet50", "build"]

MODELS: dict[str, type[nn.Module]] = {
    "lenet-300-100": LeNet300100,
    "lenet-5": LeNet5,
    "alexnet": AlexNet,
    "vgg-16": VGG16,
    "resnet-50": ResNet50,
}


def build(name: str, seed: int | None = None) -> nn.Module:
    """Build the network called `name`.

    With a seed, its weights are a function of that seed alone and the global generator is left as it was;
    without one they are drawn from the global generator, as torch does.
    """
    require_one_of("network", name, MODELS)
    if seed is None:
        return MODELS[name]()
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every GPU's generator too, and nothing here would put those back.
        torch.default_generator.manual_seed(seed)
        return MODELS[name]()
