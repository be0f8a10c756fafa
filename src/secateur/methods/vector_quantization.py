"""Gong et al. 2014, "Compressing Deep Convolutional Networks using Vector Quantization" (arXiv 1412.6115).

The weights of linear layers are trained, then replaced by entries of codebooks (their section 3):

    k-means    W[i, j] ≈ c[z_ij]                       one codebook of numbers for a layer
    product    W[i, segment s] ≈ c_s[z_is]             the columns cut into segments, a codebook of vectors for each
    residual   W[i] ≈ c_1[z_i1] + c_2[z_i2] + …        each codebook clusters what those before it leave

Published: an ImageNet network compressed 16–24 times with 1 % loss of accuracy. They do not train afterwards
(`fine_tune=0`); here entries are fine-tuned, while indices stay.

An index counts as a stored number, like an entry, however few its bits: `ratio` is about these. The wanted ratio
decides how many entries codebooks have and how wide segments are, so that indices hold the most bits. Convolutions and
layers too small for a codebook of two entries stay as they are, and the last layer, whose classes would share rows.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn
from typing_extensions import Doc, Self

from secateur.budget import Budget
from secateur.encode.formulas import Vectors
from secateur.functions.computed import compute_from
from secateur.functions.vector_codebook import VectorCodebook
from secateur.methods.small import SmallMethod, last_to_leave, weights_of
from secateur.nearest import require_choices
from secateur.train.recipe import Recipe, require_share, require_whole
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class VectorQuantization(SmallMethod):
    """Train the network, replace pieces of its linear layers by entries of codebooks, and fine-tune these."""

    name: ClassVar[str] = "vector-quantization"
    leaves: ClassVar[str] = "vectors"
    trains_dense: ClassVar[bool] = True

    scheme: Annotated[
        Literal["kmeans", "product", "residual"], Doc("numbers, segments of rows, or whole rows by sums")
    ] = "product"
    ratio: Annotated[float, Doc("all prunable weights ÷ stored numbers, indices too (product, residual)")] = 3.0
    centroids: Annotated[int, Doc("entries of a codebook (product: at most; residual: the ratio says)")] = 16
    codebooks: Annotated[int, Doc("codebooks whose entries are added up (residual)")] = 2
    fine_tune: Annotated[float, Doc("share of the epochs after the quantisation (0: the paper)")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self, scheme=("kmeans", "product", "residual"))
        require_whole(least=2, centroids=self.centroids)
        require_whole(least=1, codebooks=self.codebooks)
        require_share(fine_tune=self.fine_tune)

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with the ratio of a budget."""
        if self.scheme == "kmeans":
            raise ValueError('scheme "kmeans" stores an index for every weight: choose "product" or "residual"')
        return super().with_budget(budget)

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if no codebooks are as small as the ratio wants."""
        self._plan(model)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, then its codebooks, and return these."""
        plan = self._plan(model)
        first, second = recipe.split(self.fine_tune)
        yield Stage(name="train", model=model, recipe=first, forms=lambda: {"dense": model})
        for tensor in weights_of(model):
            if tensor.name in plan:
                compute_from(tensor, VectorCodebook.fitted(tensor.stored, plan[tensor.name]))
        yield Stage(name="fine-tune", model=model, recipe=second, phase="fine-tune")
        return model

    def _plan(self, model: nn.Module) -> dict[str, Vectors]:
        """Return the codebooks of each linear layer, the smallest first: what one does not take, others may."""
        weights = weights_of(model)
        last = None if self.scheme == "kmeans" else last_to_leave(model, self.ratio)
        linear = [t for t in weights if isinstance(t.places[0].module, nn.Linear) and t.name != last]
        left = sum(tensor.stored.numel() for tensor in weights) / self.ratio
        left -= sum(tensor.stored.numel() for tensor in weights if tensor not in linear)
        waiting = sum(tensor.stored.numel() for tensor in linear)
        found = {}
        for tensor in sorted(linear, key=lambda tensor: tensor.stored.numel()):
            (rows, columns), size = tensor.stored.shape, tensor.stored.numel()
            formula = self._formula(rows, columns, left * size / waiting)
            if formula is not None:
                found[tensor.name] = formula
            left -= size if formula is None else _numbers(formula, rows, columns)
            waiting -= size
        if left < 0 and self.scheme != "kmeans":
            raise ValueError(f"codebooks of these layers cannot reach a ratio of {self.ratio:g}: choose a smaller one")
        return found

    def _formula(self, rows: int, columns: int, most: float) -> Vectors | None:
        """Return codebooks of at most so many numbers whose indices hold the most bits, or None."""
        if self.scheme == "kmeans":
            return Vectors(columns, 1, 1, self.centroids)
        if self.scheme == "residual":
            choices = ((n, min(int((most / n - rows) / columns), rows)) for n in range(self.codebooks, 0, -1))
            return next((Vectors(1, rounds, 1, entries) for rounds, entries in choices if entries > 1), None)
        segments = [number for number in range(1, columns + 1) if columns % number == 0]
        fitting = [
            Vectors(number, 1, number, entries)
            for entries in range(2, min(self.centroids, rows) + 1)
            for number in segments
            if rows * number + entries * columns <= most
        ]
        return max(fitting, key=lambda each: each.segments * math.log2(each.centroids), default=None)


def _numbers(formula: Vectors, rows: int, columns: int) -> int:
    width = columns // formula.segments
    return formula.rounds * (rows * formula.segments + formula.codebooks * formula.centroids * width)
