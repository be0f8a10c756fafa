"""Guo et al. 2016, "Dynamic Network Surgery for Efficient DNNs" (arXiv 1608.04493): cut weights may grow back.

A network that is trained is pruned and trained on. The mask h of a weight follows its size,

    h = 0 if |w| < a,    1 if |w| > b,    unchanged in between    with    a, b = 0.9, 1.1 · (μ + c·σ)     (equation 3)

where μ and σ are mean and deviation of the layer's |w| at the start. All weights are trained on, w ← w − β · ∂L/∂(h·w),
those that are not read as well (equation 2). Masks change with probability 1 ÷ (1 + γ·step), and are fixed in the end.
Published: LeNet-300-100 56× at 1.99 % error, LeNet-5 108× at 0.91 %, AlexNet 17.7× at 43.09 %.

The paper chooses c by hand for every layer. Here one c for all layers is solved every ten steps, so that a number of
weights which falls geometrically from N to N/ratio is above the thresholds; in the end exactly so many are kept. Shares
of the epochs train the dense network first and what is left afterwards. γ is that of the authors' code for the LeNets.
Surgery is done by SGD, as published: Adam moves every weight that is not read by its learning rate at each step. They
cross the thresholds in crowds, and the network is lost (LeNet-300-100, 60×).
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import nn
from typing_extensions import Doc

from secateur.functions.spliced_mask import SplicedMask
from secateur.methods.targeted import Targeted, dense_first, highest, read_through, require_parts
from secateur.prune import keep_zeros, prune
from secateur.train.recipe import Recipe, require_not_negative
from secateur.train.stage import Stage

_SOLVED_EVERY = 10  # steps between two solutions for c
_RAMP = 0.5  # of the surgery


@dataclass(frozen=True, kw_only=True)
class NetworkSurgery(Targeted):
    """Cut and splice weights by their size while the network trains on."""

    name: ClassVar[str] = "network-surgery"

    dense: Annotated[float, Doc("share of the epochs that train the dense network first")] = 0.3
    gamma: Annotated[float, Doc("γ, masks change with probability 1 ÷ (1 + γ·step)")] = 1e-4
    sgd_lr: Annotated[float, Doc("learning rate of the surgery under a recipe of Adam: it is done by SGD")] = 0.05
    fine_tune: Annotated[float, Doc("share of the epochs after masks are fixed")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_parts(self.dense, self.fine_tune)
        require_not_negative(gamma=self.gamma, sgd_lr=self.sgd_lr)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, the same under surgery, then what is left of it, and return that."""
        surgery, fine_tuning = yield from dense_first(model, recipe, self.dense, self.fine_tune)
        if recipe.optimizer == "adam":
            surgery = replace(surgery, optimizer="sgd", lr=self.sgd_lr)
        found = read_through(model, lambda tensor: SplicedMask(tensor.stored.detach()))
        weights = [tensor.stored for tensor, _ in found]
        masks = [function for _, function in found]
        weights_in_all = sum(weight.numel() for weight in weights)

        def between(done: int, total: int) -> None:
            if done % _SOLVED_EVERY == 1 or done == total:
                number = weights_in_all / self.ratio ** min(done / (_RAMP * total), 1.0)
                sizes = [mask.deviations(weight.detach()) for mask, weight in zip(masks, weights, strict=True)]
                c = torch.cat([size.flatten() for size in sizes]).topk(max(int(number), 1)).values[-1]
                for mask, weight in zip(masks, weights, strict=True):
                    mask.set_threshold(c, weight.detach())
                if done == total:
                    for mask, keep in zip(masks, highest(sizes, number), strict=True):
                        mask.mask.copy_(keep)
                    return
            # Random, but the same in a run that is resumed.
            if random.Random(done).random() < 1 / (1 + self.gamma * done):
                for mask, weight in zip(masks, weights, strict=True):
                    mask.update(weight.detach())

        yield Stage(name="surgery", model=model, recipe=surgery, between=between, target={"ratio": self.ratio})
        pruned = prune(model)
        if not fine_tuning.epochs:
            return pruned
        yield Stage(name="fine-tune", model=keep_zeros(pruned), recipe=fine_tuning, phase="fine-tune")
        return prune(pruned)
