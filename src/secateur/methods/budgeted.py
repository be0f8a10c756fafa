"""Learned thresholds with a budget: the user says how small, and λ_t, ρ and the thresholds follow.

Manessi et al. 2018 with its loss turned round; the form, its formulas and why it needs no constants are at the head of
`secateur.pruner.controller`. The last part of the epochs trains what is left with its zeros kept and the learning rate
started anew: on LeNet-300-100 at 110× and 190× that took about an eighth and a fifth off the validation error (one seed
each). There dropout shrinks with the connections, by the rule of Han et al. 2015: a layer with few weights left needs
less of it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc, Self

from secateur.budget import Budget
from secateur.methods.error_budget import as_far_as_allowed
from secateur.methods.layers import adjust_dropout_, read_dropouts
from secateur.methods.method import Aids, Method
from secateur.prune import keep_zeros, prune
from secateur.pruner import FIXED, Pruner, final_ratio
from secateur.sibling import Granularity, SiblingConfig, targets
from secateur.train.recipe import Recipe, require_not_negative, require_share, require_whole
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Budgeted(Method):
    """Prune to a budget while the network trains, cut it, and fine-tune what is left."""

    name: ClassVar[str] = "budget"

    budget: Annotated[Budget, Doc("how small the network has to become")] = field(
        default_factory=lambda: Budget(ratio=20)
    )
    granularity: Annotated[Granularity, Doc("what shares one threshold")] = "layer"
    fine_tune: Annotated[float, Doc("share of the epochs after the cut, with every zero kept")] = 0.3
    prune_epochs: Annotated[int | None, Doc("passes over the training images while it prunes (none: the recipe's)")] = (
        None
    )
    prune_lr: Annotated[float | None, Doc("learning rate of the weights while it prunes (none: the recipe's)")] = None

    def __post_init__(self) -> None:
        require_share(fine_tune=self.fine_tune)
        if self.prune_epochs is not None:
            require_whole(least=1, prune_epochs=self.prune_epochs)
        if self.prune_lr is not None:
            require_not_negative(prune_lr=self.prune_lr)
        if self.budget.bytes is not None:
            raise ValueError(
                'a budget of bytes is a matter of values as well as of weights: choose method "joint" for it'
            )

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with another budget."""
        return replace(self, budget=budget)

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the budget keeps fewer weights than the layers need."""
        found = targets(model, SiblingConfig(granularity=self.granularity))
        if self.budget.error_increase is None:
            final_ratio(self.budget, [target.weights for target in found])

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network while its thresholds rise, then what is left of it, and return that."""
        return (yield from self.aided_stages(model, recipe, Aids()))

    def aided_stages(self, model: nn.Module, recipe: Recipe, aids: Aids) -> Generator[Stage, None, nn.Module]:
        """Do what `stages` does; a budget of error needs validation images for it."""
        recipe = self._own(recipe)
        if self.budget.error_increase is not None:
            yield from as_far_as_allowed(model, recipe, aids, self.budget.error_increase, self.granularity)
            return prune(model)
        dropouts = read_dropouts(model)
        first, second = recipe.split(self.fine_tune)
        fixed = 1.0 if second.epochs else FIXED  # what is kept is fixed by the fine-tune, or else before the end
        pruner = Pruner(model, self.budget, granularity=self.granularity, fixed=fixed)
        target = self.budget.final_ratio
        yield Stage(
            name="train",
            model=model,
            recipe=first,
            between=pruner.advance,
            target={} if target is None else {"ratio": target},
        )
        pruned = prune(model)
        if not second.epochs:
            return pruned
        adjust_dropout_(pruned, dropouts)
        yield Stage(name="fine-tune", model=keep_zeros(pruned), recipe=second, phase="fine-tune")
        return prune(pruned)

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs of all stages."""
        own = self._own(recipe).epochs
        return own if self.budget.error_increase is None else 2 * own

    def _own(self, recipe: Recipe) -> Recipe:
        epochs = recipe.epochs if self.prune_epochs is None else self.prune_epochs
        return replace(recipe, epochs=epochs, lr=recipe.lr if self.prune_lr is None else self.prune_lr)
