"""Networks with zeros in random places, for benchmarks that need a density and no accuracy."""

from collections.abc import Sequence

import torch
from torch import nn


def random_zeros_(
    model: nn.Module,
    density: float,
    kinds: Sequence[type[nn.Module]] = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear),
    seed: int = 0,
) -> nn.Module:
    """Keep each weight of the layers of these `kinds` with probability `density`, set the others to zero.

    Which ones is a function of the seed alone, and a smaller density keeps a part of what a larger one keeps. Biases
    and other layers stay as they are. Returns the model.
    """
    if not 0 <= density <= 1:
        raise ValueError(f"density must lie between 0 and 1, got {density}")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, tuple(kinds)):
                weight = layer.get_parameter("weight")
                weight.masked_fill_(torch.rand(weight.shape, generator=generator) >= density, 0.0)
    return model
