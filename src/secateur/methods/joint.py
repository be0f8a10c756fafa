"""Thresholds, weights, steps and biases learned together under one budget of bytes: the paper's last wish.

Manessi et al. 2018 end their future work with "a pruning+quantization step learnable by stochastic gradient descent
methods". Here a layer reads a grid with a learned step behind its threshold, and the loss is

    L₀ + λ·bits

with the bits of `secateur.rate` and their multiplier λ from the budget (`secateur.pruner`): what a bit is worth where
thresholds compete is what it costs where weights and steps choose their levels. The thresholds reach the budget in the
first half of the first stage. Grids begin then: on weights about to be cut they would only add noise. In the second
stage the learning rate starts anew. It is fixed then which weights are kept, so that their values alone can change the
size, and the price of a bit is raised or lowered wherever the estimate is compared with a real file.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import nn
from typing_extensions import Doc

from secateur.budget import Budget
from secateur.functions.late_step import LateStep
from secateur.functions.solved_threshold import SolvedThreshold
from secateur.graph.hidden_units import without_dead_units
from secateur.methods.file_progress import FileProgress
from secateur.methods.method import Aids, Method
from secateur.pruner import Pruner
from secateur.quantize import freeze, require_levels
from secateur.train.recipe import Recipe, require_share
from secateur.train.stage import Stage
from secateur.weights.reading import attach
from secateur.weights.tensors import parameters


@dataclass(frozen=True, kw_only=True)
class Joint(Method):
    """Learn which weights to keep and their few values in one training run, for a file of a given size."""

    name: ClassVar[str] = "joint"
    leaves: ClassVar[str] = "joint"
    leaves_few_values: ClassVar[bool] = True

    bytes: Annotated[int, Doc("size of the whole file")] = 5_000
    largest_level: Annotated[int, Doc("a weight is −largest … largest times its layer's step")] = 15
    bias_values: Annotated[int, Doc("values per bias vector")] = 31
    settle: Annotated[float, Doc("share of the epochs after it is fixed which weights are kept")] = 0.3
    rate: Annotated[bool, Doc("let weights and steps pay for their bits, too, not only the thresholds")] = True

    def __post_init__(self) -> None:
        Budget(bytes=self.bytes)
        require_share(settle=self.settle)
        require_levels("largest_level", self.largest_level)
        require_levels("bias_values", self.bias_values, least=3, why=" (−1, 0 and 1 at least)")

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network once, while everything is learned, and return it with its few values."""
        return (yield from self.aided_stages(model, recipe, Aids()))

    def aided_stages(self, model: nn.Module, recipe: Recipe, aids: Aids) -> Generator[Stage, None, nn.Module]:
        """Do what `stages` does for a file as the run writes it."""
        self._refuse_too_small(model, aids)
        pruner = Pruner(model, Budget(bytes=self.bytes), fixed=1.0)
        for tensor in parameters(model):
            if tensor.has(SolvedThreshold):
                attach(tensor, LateStep(tensor.stored, self.largest_level, keep_survivors=True))
            elif tensor.is_offset:
                attach(tensor, LateStep(tensor.stored, (self.bias_values - 1) // 2, keep_survivors=False))
        progress = FileProgress(model, pruner, self.bytes, aids)
        train, settle = recipe.split(self.settle)
        first = Stage(
            name="train",
            model=model,
            recipe=train,
            between=progress.choose,
            target={"bytes": self.bytes},
            terms={"rate": progress.rate} if self.rate else {},
        )
        yield first
        if settle.epochs:
            yield replace(first, name="settle", recipe=settle, phase="quantize", between=progress.settle)
        return without_dead_units(freeze(model, half_codebook=True))

    def _refuse_too_small(self, model: nn.Module, aids: Aids) -> None:
        """Refuse a budget that a file without a single weight would exceed."""
        empty = copy.deepcopy(model)
        with torch.no_grad():
            for tensor in parameters(empty):
                tensor.stored.zero_()
        least = aids.file_size(empty)
        if least >= self.bytes:
            raise ValueError(f"{self.bytes:,} bytes are too few: without a single weight the file takes {least:,}")

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs: there is no other stage."""
        return recipe.epochs
