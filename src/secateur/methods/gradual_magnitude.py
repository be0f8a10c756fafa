"""Zhu & Gupta 2017, "To prune, or not to prune" (arXiv 1710.01878): magnitude pruning while the network trains.

The share of zeros rises by a cubic law and the mask follows it every few steps,

    s(p) = s_f · (1 − (1 − p)³)    with p the share of the ramp that is done,

so that many weights go early, while the network can recover, and few go late. After the ramp the mask is fixed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar, get_args

import torch
from torch import nn
from typing_extensions import Doc

from secateur.functions.mask import FixedMask
from secateur.methods.magnitude import Scope, largest
from secateur.methods.targeted import Targeted
from secateur.nearest import require_choices
from secateur.prune import prune
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage
from secateur.weights.reading import attach
from secateur.weights.tensors import parameters


@dataclass(frozen=True, kw_only=True)
class GradualMagnitude(Targeted):
    """Set more and more of the smallest weights to zero while the network trains."""

    name: ClassVar[str] = "gradual-magnitude"

    scope: Annotated[Scope, Doc("rank weights in the whole network, or in each layer")] = "global"
    ramp: Annotated[float, Doc("share of the training after which no further weight is cut")] = 0.75
    every: Annotated[int, Doc("steps between two updates of the mask")] = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self, scope=get_args(Scope))
        require_whole(least=1, every=self.every)
        if not 0 < self.ramp <= 1:
            raise ValueError(f"ramp must lie in (0, 1], got {self.ramp}")

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network once, its masks updated between steps, and return what is left of it."""
        weights = [tensor for tensor in parameters(model) if tensor.is_weight]
        masks = [FixedMask(torch.ones_like(tensor.stored, dtype=torch.uint8)) for tensor in weights]
        for tensor, mask in zip(weights, masks, strict=True):
            attach(tensor, mask)

        def between(done: int, total: int) -> None:
            end = max(round(self.ramp * total), 1)
            if done == end or (done < end and done % self.every == 0):
                ratio = 1 / (1 - sparsity(done / end, 1 - 1 / self.ratio))
                kept = largest([tensor.stored for tensor in weights], ratio, self.scope)
                for mask, keep in zip(masks, kept, strict=True):
                    mask.mask.copy_(keep)

        yield Stage(name="train", model=model, recipe=recipe, between=between)
        return prune(model)


def sparsity(progress: float, final: float) -> float:
    """Return the share of zeros after a share of the ramp."""
    return final * (1 - (1 - progress) ** 3)
