"""The networks of the paper's MNIST experiments, by name."""

from difflib import get_close_matches

import torch
from torch import nn

from secateur.models.lenet import LeNet5, LeNet300100

__all__ = ["MODELS", "LeNet5", "LeNet300100", "build"]

MODELS: dict[str, type[nn.Module]] = {"lenet-300-100": LeNet300100, "lenet-5": LeNet5}


def build(name: str, seed: int | None = None) -> nn.Module:
    """Build the network called `name`.

    With a seed, its weights are a function of that seed alone and the global generator is left as it was;
    without one they are drawn from the global generator, as torch does.
    """
    if name not in MODELS:
        nearest = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"it is one of {', '.join(MODELS)}"
        raise ValueError(f"there is no model {name!r}: {hint}")
    if seed is None:
        return MODELS[name]()
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every GPU's generator too, and nothing here would put those back.
        torch.default_generator.manual_seed(seed)
        return MODELS[name]()
