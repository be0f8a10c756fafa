"""Learned thresholds with a budget: the user says how small, and λ_t, ρ and the thresholds follow.

Manessi et al. 2018 with its loss turned round; the form, its formulas and why it needs no constants are at the head of
`secateur.pruner`. The ramp to the budget takes the first half of the training, the second half trains what is left.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc, Self

from secateur.budget import Budget
from secateur.methods.method import Aids, Method
from secateur.prune import keep_zeros, prune
from secateur.pruner import Pruner, final_ratio
from secateur.sibling import Granularity, SiblingConfig, targets
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage

_RATE_OF_JUDGED = 0.3  # learning rate while validation is asked ÷ that of the dense training


@dataclass(frozen=True, kw_only=True)
class Budgeted(Method):
    """Prune to a budget while the network trains, cut it, and fine-tune what is left."""

    name: ClassVar[str] = "budget"

    budget: Annotated[Budget, Doc("how small the network has to become")] = field(
        default_factory=lambda: Budget(ratio=20)
    )
    granularity: Annotated[Granularity, Doc("what shares one threshold")] = "layer"
    fine_tune_epochs: Annotated[int, Doc("passes after the cut, with every zero kept")] = 0

    def __post_init__(self) -> None:
        require_whole(fine_tune_epochs=self.fine_tune_epochs)
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
        if self.budget.error_increase is None:
            pruner, target = Pruner(model, self.budget, granularity=self.granularity), self.budget.final_ratio
            yield Stage(
                name="train",
                model=model,
                recipe=recipe,
                between=pruner.advance,
                target={} if target is None else {"ratio": target},
            )
        else:
            yield from self._as_far_as_the_error_allows(model, recipe, aids)
        pruned = prune(model)
        if not self.fine_tune_epochs:
            return pruned
        recipe = replace(recipe, epochs=self.fine_tune_epochs)
        yield Stage(name="fine-tune", model=keep_zeros(pruned), recipe=recipe, phase="fine-tune")
        return prune(pruned)

    def _as_far_as_the_error_allows(self, model: nn.Module, recipe: Recipe, aids: Aids) -> Generator[Stage, None, None]:
        """Yield the dense network, and then the same while its thresholds rise, judged after every epoch."""
        increase = self.budget.error_increase
        assert increase is not None
        yield Stage(name="dense", model=model, recipe=recipe, forms=lambda: {"dense": model})
        # Without validation images a finished run can still be restored, which trains nothing.
        dense_error = math.nan if aids.error is None else aids.error(model)
        pruner = Pruner(model, self.budget, granularity=self.granularity, dense_error=dense_error)

        def judge() -> None:
            if aids.error is None:
                raise ValueError("a budget of error_increase needs validation images, and there are none")
            pruner.judge(aids.error(model))

        yield Stage(
            name="train",
            model=model,
            # A lower rate than from scratch: errors in the middle of the training then say what the end will be.
            recipe=replace(recipe, lr=_RATE_OF_JUDGED * recipe.lr),
            between=pruner.advance,
            after_epoch=judge,
            order=1,
        )
        if aids.error is not None and (reached := aids.error(model)) > dense_error + increase:
            aids.note(
                f"the error is {reached - dense_error:.2f} points above that of the dense network, more than the "
                f"{increase:g} that were asked for: train for more epochs, or allow more"
            )

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs of all stages."""
        passes = 1 if self.budget.error_increase is None else 2
        return passes * recipe.epochs + self.fine_tune_epochs
