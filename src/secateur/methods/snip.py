"""SNIP: Lee et al. 2019, "Single-shot Network Pruning based on Connection Sensitivity" (arXiv 1810.02340).

Prune once, before training, by how much the loss depends on each connection c_j of the untrained network:

    s_j = |g_j| ÷ Σ_k |g_k|    with    g_j = ∂L(c ⊙ w)/∂c_j  at c = 1,    so    g_j = w_j · ∂L/∂w_j

Keep the N/ratio highest of all layers together, and train these as usual. Published: LeNet-300-100 with 5 % of its
weights 1.6 % error, with 2 % 2.4 %; LeNet-5 with 2 % 0.8 %, with 1 % 1.1 %.

The paper takes L from one batch. Here the first epoch of the recipe goes into it, at a learning rate of zero, so that g
is the gradient on all training images, and its steps count as the method's own.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from secateur.functions.sensitivity import ConnectionSensitivity
from secateur.methods.targeted import Targeted, cut_and_fine_tune, read_through
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Snip(Targeted):
    """Prune the untrained network by the sensitivity of its connections, and train what is left."""

    name: ClassVar[str] = "snip"

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network while gradients are collected, then what is kept of it, and return that."""
        if recipe.epochs < 2:
            raise ValueError(f'method "snip" takes one epoch to rank weights: train for 2 or more, got {recipe.epochs}')
        read_through(model, lambda tensor: ConnectionSensitivity(tensor.stored))
        # Clipping would weight batches differently.
        yield Stage(name="rank", model=model, recipe=replace(recipe, epochs=1, lr=0.0, clip_norm=None))
        training = replace(recipe, epochs=recipe.epochs - 1)
        return (yield from cut_and_fine_tune(model, self.ratio, training, phase="train"))
