"""One-shot magnitude pruning: train, set the smallest weights to zero, retrain what is left.

The baseline of the field (Blalock et al. 2020, arXiv 2003.03033), ranked in the whole network or in each layer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Doc, Self

from secateur.budget import Budget
from secateur.methods.method import Method
from secateur.methods.targeted import highest, ratio_of, require_ratio
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

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with the ratio of a budget."""
        return replace(self, ratio=ratio_of(budget, self))

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


def largest(weights: Sequence[Tensor], ratio: float, scope: Scope) -> list[Tensor]:
    """Return which weights to keep, as booleans: the largest of all or of each layer, one of each among them."""
    sizes = [weight.detach().abs() for weight in weights]
    groups = [sizes] if scope == "global" else [[size] for size in sizes]
    return [kept for group in groups for kept in highest(group, sum(size.numel() for size in group) / ratio)]
