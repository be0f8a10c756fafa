"""Learned thresholds with a budget: the user says how small, and λ_t, ρ and the thresholds follow.

Manessi et al. 2018 with its loss turned round; the form, its formulas and why it needs no constants are at the head of
`secateur.pruner`. The ramp to the budget takes the first half of the training, the second half trains what is left.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc

from secateur.budget import Budget
from secateur.methods.method import Method
from secateur.prune import keep_zeros, prune
from secateur.pruner import Pruner, final_ratio
from secateur.sibling import Granularity, SiblingConfig, targets
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage


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

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the budget keeps fewer weights than the layers need."""
        found = targets(model, SiblingConfig(granularity=self.granularity))
        final_ratio(self.budget, [target.weights for target in found])

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network while its thresholds rise, then what is left of it, and return that."""
        pruner = Pruner(model, self.budget, granularity=self.granularity)
        yield Stage(
            name="train",
            model=model,
            recipe=recipe,
            between=pruner.advance,
            target={"ratio": pruner.weights / pruner.wanted(1)},
            forms=lambda: {"cut": model},
        )
        pruned = prune(model)
        if not self.fine_tune_epochs:
            return pruned
        recipe = replace(recipe, epochs=self.fine_tune_epochs)
        yield Stage(name="fine-tune", model=keep_zeros(pruned), recipe=recipe, phase="fine-tune")
        return prune(pruned)

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs before and after the cut."""
        return recipe.epochs + self.fine_tune_epochs
