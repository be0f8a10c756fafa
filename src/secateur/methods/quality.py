"""Thresholds by the standard deviation of a layer's weights, as Han et al. 2015 choose them: one quality for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secateur.methods.layers import Kind, layers


def threshold(weight: Tensor, quality: float) -> float:
    """Return quality × standard deviation of the weights that are there.

    What an earlier round has cut is no weight of the layer any more. So one quality serves all rounds, and since the
    standard deviation never exceeds the largest magnitude, one of at most 1 never empties a layer.
    """
    alive = weight.detach()[weight.detach() != 0]
    return quality * alive.std(correction=0).item() if len(alive) else 0.0


@torch.no_grad()
def solve_quality(weights: Sequence[Tensor], kept: int) -> float:
    """Return the quality that leaves so many weights: halfway between the last magnitude kept and the first cut.

    Magnitudes are those of the weights that are there, each in units of its layer's standard deviation.
    """
    sizes = torch.cat([weight[weight != 0].abs().double() / threshold(weight, 1.0) for weight in weights])
    if kept >= len(sizes):
        return 0.0
    return float(sizes.topk(kept + 1).values[-2:].mean())


@torch.no_grad()
def cut_(model: nn.Module, quality: float, kind: Kind) -> None:
    """Set every weight below its layer's threshold to zero, in all layers of a kind."""
    for name, weight in layers(model, kind):
        cut = weight.abs() < threshold(weight, quality)
        if cut.all():
            raise ValueError(
                f'"{name}" would lose all of its weights: the largest is below {quality:g} × their standard deviation; '
                "choose a smaller quality or ratio, or fewer rounds"
            )
        weight[cut] = 0
