"""Denil et al. 2013, "Predicting Parameters in Deep Learning" (arXiv 1306.0543).

The weights that a unit has to its inputs are smooth over these, so that a few of them predict the others. W = U·V, in
which V is trained and the dictionary U is fixed by kernel ridge regression from the places α of V (their equation 2):

    W[i] = V[i] · (K_α + λ·1)⁻¹ · k_α        k(a, b) = exp(−|a − b|² / 2σ²)

Units come in groups (their columns) with places of their own, so that together they see every input. Published: in
the best case, more than 95 % of the weights of a network predicted without any drop in accuracy.

A kernel needs a topology. Theirs is the image for the first layer and the covariance of the activations for the others,
which takes data to compute and a matrix to store; here inputs that are no image lie on a line, in their order, and
hidden units arrange themselves along it while they are trained from scratch. σ is the usual distance of two places.
Layers that are small anyway stay as they are, above all the last one: with a place or two, all rows of its classes
would be alike.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn
from typing_extensions import Doc

from secateur.encode.formulas import Predicted
from secateur.functions.computed import compute_from
from secateur.functions.predicted import PredictedWeights
from secateur.methods.small import SmallMethod, last_to_leave, require_room, weights_of
from secateur.train.recipe import Recipe, require_not_negative, require_whole
from secateur.train.stage import Stage

_CONSTANTS = 2  # q and λ, which a file stores for each layer
_SMALL = 0.08  # of all numbers that may be stored: layers of fewer weights stay as they are
_ROWS = 10  # of a group at least, so that its places cost little


@dataclass(frozen=True, kw_only=True)
class Denil2013(SmallMethod):
    """Train a share of each layer's weights from scratch, and predict the others by kernel ridge regression."""

    name: ClassVar[str] = "denil2013"
    leaves: ClassVar[str] = "predicted"

    ratio: Annotated[float, Doc("weights of a layer ÷ numbers that are stored for it")] = 5.0
    groups: Annotated[int, Doc("groups of units at most, each with places of its own")] = 10
    length: Annotated[float, Doc("σ of the kernel ÷ the usual distance of two places")] = 1.0
    ridge: Annotated[float, Doc("λ, what is added to the kernel's diagonal of ones")] = 0.01
    places_seed: Annotated[int, Doc("seed of the first layer's places; the next ones have the numbers that follow")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(least=1, groups=self.groups)
        require_whole(places_seed=self.places_seed)
        require_not_negative(length=self.length, ridge=self.ridge)
        if not (self.length and self.ridge):
            raise ValueError(f"length and ridge must be above 0, got {self.length} and {self.ridge}")

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the ratio leaves a layer without a place."""
        weights, formulas = {tensor.name: tensor.stored for tensor in weights_of(model)}, self._formulas(model)
        numbers = [_numbers(formula, weights[name]) for name, formula in formulas.items()]
        others = sum(weight.numel() for name, weight in weights.items() if name not in formulas)
        require_room(sum(numbers) + others, model, self.ratio)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network with its predicted weights once, and return it."""
        self.check(model)
        formulas = self._formulas(model)
        for number, tensor in enumerate(tensor for tensor in weights_of(model) if tensor.name in formulas):
            formula = formulas[tensor.name]
            is_line = formula.height == 1
            spread = tensor.stored[0].numel() / formula.known
            length = self.length * max(spread if is_line else math.sqrt(spread), 0.5)
            function = PredictedWeights.like(
                tensor.stored, formula, length=length, ridge=self.ridge, seed=self.places_seed + number
            )
            compute_from(tensor, function)
        yield Stage(name="train", model=model, recipe=recipe)
        return model

    def _formulas(self, model: nn.Module) -> dict[str, Predicted]:
        """Return how each layer is predicted but the smallest, which would lose more than they can save."""
        weights = weights_of(model)
        sizes = {tensor.name: tensor.stored.numel() for tensor in weights}
        left = sum(sizes.values()) / self.ratio
        last = last_to_leave(model, self.ratio)
        large = [tensor for tensor in weights if sizes[tensor.name] > _SMALL * left and tensor.name != last]
        waiting = sum(sizes[tensor.name] for tensor in large)
        left -= sum(sizes.values()) - waiting
        found = {}
        for tensor in sorted(large, key=lambda tensor: -tensor.stored.numel()):  # smaller ones take what one leaves
            size = sizes[tensor.name]
            formula = found[tensor.name] = self._formula(model, tensor.stored, left * size / waiting)
            left, waiting = left - _numbers(formula, tensor.stored), waiting - size
        return found

    def _formula(self, model: nn.Module, weight: Tensor, most: float) -> Predicted:
        """Return the grid of a layer's inputs, and how many places each group of its units has in so many numbers."""
        rows, columns = len(weight), weight[0].numel()
        image = getattr(model, "input_shape", None)
        if weight.dim() == 4:
            grid = tuple(weight.shape[1:])
        elif image is not None and len(image) == 3 and math.prod(image) == columns:
            grid = tuple(image)
        else:
            grid = (1, 1, columns)
        groups = max(min(self.groups, rows // _ROWS), 1)
        groups = next(number for number in range(groups, 0, -1) if rows % number == 0)
        known = int((most - _CONSTANTS) / (rows + groups))
        return Predicted(groups, min(max(known, 1), columns), *grid)


def _numbers(formula: Predicted, weight: Tensor) -> int:
    return formula.known * (len(weight) + formula.groups) + _CONSTANTS
