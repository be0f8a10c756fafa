"""No pruning at all: the reference is a method like the others."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from secateur.methods.method import Method
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Dense(Method):
    """Train the network as it is."""

    name: ClassVar[str] = "dense"
    leaves: ClassVar[str] = "dense"
    is_reference: ClassVar[bool] = True

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network once."""
        yield Stage(name="train", model=model, recipe=recipe)
        return model

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs."""
        return recipe.epochs
