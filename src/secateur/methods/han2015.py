"""Han et al. 2015, "Learning both Weights and Connections for Efficient Neural Networks" (arXiv 1506.02626).

Train, cut the small weights, retrain what is left, and again: the pruning stage of Deep Compression. As published:
a layer's threshold is one quality parameter times the standard deviation of its weights (section 4), the weights kept
retain their values, the fully connected layers are retrained while the convolutions are fixed and the other way round
(3.3), dropout shrinks with the connections (3.2), retraining takes a tenth of the learning rate (4.1). L2 decay (3.1)
is part of the recipe. The pipeline (Han2015, FewValues) is Deep Compression.

Ours, to compare methods at equal size: with a ratio the quality is solved in every round, as the one number that leaves
all layers together as many weights as the round may keep.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor, nn
from typing_extensions import Doc, Self

from secateur.budget import Budget
from secateur.methods.layers import KINDS, adjust_dropout_, kinds, layers, others_fixed, read_dropouts
from secateur.methods.method import Method
from secateur.methods.quality import cut_, solve_quality
from secateur.methods.targeted import ratio_of, require_ratio
from secateur.prune import keep_zeros, prune
from secateur.train.recipe import Recipe, require_not_negative, require_whole
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Han2015(Method):
    """Cut weights below quality × standard deviation and retrain, for a number of rounds."""

    name: ClassVar[str] = "han2015"
    trains_dense: ClassVar[bool] = True
    published_as: ClassVar[str] = "Han et al. 2015"

    quality: Annotated[float, Doc("threshold of a layer ÷ standard deviation of its weights")] = 1.0
    rounds: Annotated[int, Doc("how often all layers are cut and retrained")] = 5
    retrain_epochs: Annotated[int, Doc("passes over the training images for each kind of layer and round")] = 6
    retrain_lr: Annotated[float, Doc("learning rate of retraining: a tenth of the first one")] = 1e-4
    ratio: Annotated[float | None, Doc("all prunable weights ÷ weights kept in the end: solves the quality")] = None

    def __post_init__(self) -> None:
        if self.ratio is not None:
            require_ratio(self.ratio)
        if not (math.isfinite(self.quality) and self.quality > 0):
            raise ValueError(f"quality must be positive and finite, got {self.quality}")
        require_whole(rounds=self.rounds, retrain_epochs=self.retrain_epochs)
        require_not_negative(retrain_lr=self.retrain_lr)

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with the ratio of a budget."""
        return replace(self, ratio=ratio_of(budget, self))

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, then in every round what is left, once for each kind of layer it has."""
        present = kinds(model)
        if not present:
            raise ValueError(f"{type(model).__name__} has no linear or convolution layer to prune")
        yield Stage(name="train", model=model, recipe=recipe, forms=lambda: {"dense": model})
        retraining = replace(recipe, epochs=self.retrain_epochs, lr=self.retrain_lr)
        dropouts, order = read_dropouts(model), 0
        for number in range(1, self.rounds + 1):
            quality = self._quality(model, number)
            for kind in present:
                cut_(model, quality, kind)
                adjust_dropout_(model, dropouts)
                order += 1
                with others_fixed(model, kind):
                    yield Stage(
                        name=f"{self._cut}-round={number}-{kind}",
                        model=_masked(model),
                        recipe=retraining,
                        phase="fine-tune",
                        order=order,
                    )
                model = _plain(model)
        return model

    @property
    def _cut(self) -> str:
        return f"quality={self.quality:g}" if self.ratio is None else f"ratio={self.ratio:g}"

    def _quality(self, model: nn.Module, number: int) -> float:
        """Return the quality of a round: the given one, or the one that keeps N · ratio^(−round ÷ rounds) weights."""
        if self.ratio is None:
            return self.quality
        weights = [weight for kind in KINDS for _, weight in layers(model, kind)]
        return solve_quality(weights, int(sum(map(Tensor.numel, weights)) * self.ratio ** (-number / self.rounds)))

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs of the dense network and of all rounds, if it has layers of one kind."""
        return recipe.epochs + self.rounds * self.retrain_epochs

    def epochs_for(self, model: nn.Module, recipe: Recipe) -> int:
        """Return the same for the kinds of layer that a network has: each is retrained in every round."""
        return recipe.epochs + self.rounds * self.retrain_epochs * len(kinds(model))


def _masked(model: nn.Module) -> nn.Module:
    """Hold the zeros; a quality that has cut nothing yet leaves none to hold."""
    has_zeros = any(not weight.all() for kind in KINDS for _, weight in layers(model, kind))
    return keep_zeros(model) if has_zeros else model


def _plain(model: nn.Module) -> nn.Module:
    return prune(model) if any(nn.utils.parametrize.is_parametrized(module) for module in model.modules()) else model
