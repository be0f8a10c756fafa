"""One-shot magnitude pruning: train, set the smallest weights to zero, retrain what is left.

The baseline of the field (Blalock et al. 2020, arXiv 2003.03033), ranked in the whole network or in each layer.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.methods.method import Method
from secateur.nearest import require_choices
from secateur.prune import keep_zeros, prune
from secateur.train.recipe import Recipe, require_not_negative, require_whole
from secateur.train.stage import Stage
from secateur.weights.tensors import parameters

Scope: TypeAlias = Literal["global", "layer"]


@dataclass(frozen=True, kw_only=True)
class Magnitude(Method):
    """Set the smallest weights to zero once, and retrain the others."""

    name: ClassVar[str] = "magnitude"
    trains_dense: ClassVar[bool] = True

    ratio: Annotated[float, Doc("all prunable weights ÷ weights kept")] = 20.0
    scope: Annotated[Scope, Doc("rank weights in the whole network, or in each layer")] = "global"
    retrain_epochs: Annotated[int, Doc("passes over the training images after the cut")] = 10
    retrain_lr: Annotated[float, Doc("learning rate after the cut")] = 1e-3

    def __post_init__(self) -> None:
        require_ratio(self.ratio)
        require_choices(self, scope=get_args(Scope))
        require_whole(retrain_epochs=self.retrain_epochs)
        require_not_negative(retrain_lr=self.retrain_lr)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, then what is left of it, and return that."""
        yield Stage(name="train", model=model, recipe=recipe, forms=lambda: {"dense": model})
        weights = [tensor.stored for tensor in parameters(model) if tensor.is_weight]
        with torch.no_grad():
            for weight, kept in zip(weights, largest(weights, self.ratio, self.scope), strict=True):
                weight[~kept] = 0
        recipe = replace(recipe, epochs=self.retrain_epochs, lr=self.retrain_lr)
        is_cut = not all(weight.all() for weight in weights)  # a ratio next to 1 may cut nothing
        yield Stage(name="retrain", model=keep_zeros(model) if is_cut else model, recipe=recipe, phase="fine-tune")
        return prune(model) if is_cut else model

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs before and after the cut."""
        return recipe.epochs + self.retrain_epochs


def require_ratio(ratio: float) -> None:
    """Raise a ValueError unless a network can have so many times fewer weights."""
    if not (math.isfinite(ratio) and ratio > 1):
        raise ValueError(f"ratio must be above 1 and finite, got {ratio}")


def largest(weights: Sequence[Tensor], ratio: float, scope: Scope) -> list[Tensor]:
    """Return which weights to keep, as booleans: the largest of all or of each layer, and one of each layer anyway."""
    sizes = [weight.detach().abs().flatten() for weight in weights]
    groups = [torch.cat(sizes)] if scope == "global" else sizes
    found = []
    for group in groups:
        kept = torch.zeros(len(group), dtype=torch.bool, device=group.device)
        kept[group.topk(max(round(len(group) / ratio), 1)).indices] = True
        found.append(kept)
    masks = list(found[0].split([len(size) for size in sizes])) if scope == "global" else found
    for size, mask in zip(sizes, masks, strict=True):
        mask[size.argmax()] = True  # an empty layer would pass nothing on
    return [mask.view(weight.shape) for weight, mask in zip(weights, masks, strict=True)]
