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
import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.budget import Budget
from secateur.functions.late_step import LateStep
from secateur.functions.solved_threshold import SolvedThreshold, solved_thresholds
from secateur.graph.hidden_units import without_dead_units
from secateur.methods.method import Aids, Method
from secateur.pruner import RAMP, Pruner
from secateur.quantize import freeze, require_levels, tensor_bits
from secateur.train.recipe import Recipe, require_share
from secateur.train.stage import Stage
from secateur.weights.reading import attach
from secateur.weights.tensors import NetworkTensor, parameters, tensors

_CALIBRATIONS = 10  # how often in a stage the estimate is compared with a real file
_LAST_TRIES = 8  # at the end, to make the file fit
_SLACK = 2  # bytes: the file will name its error, and a few digits more or less compress differently
_GAIN = 8  # a file that is 1 % too large raises the price of a bit by 8 %


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
        progress = _Progress(model, pruner, self.bytes, aids)
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


class _Progress:
    """What happens between steps: thresholds move, grids begin, and the estimate is compared with a file."""

    def __init__(self, model: nn.Module, pruner: Pruner, size: int, aids: Aids) -> None:
        self.model, self.pruner, self.size, self.aids = model, pruner, size, aids
        self.grids: list[tuple[NetworkTensor, LateStep]] = [
            (tensor, grid) for tensor in tensors(model) if (grid := tensor.function(LateStep)) is not None
        ]

    @torch.no_grad()
    def choose(self, done: int, total: int) -> None:
        """Move the thresholds, and begin with the grids once the budget is reached."""
        self.pruner.advance(done, total)
        if done >= RAMP * total and not self.grids[0][1].began:
            for tensor, grid in self.grids:
                grid.begin(tensor.read())
        if done >= RAMP * total and done % max(total // _CALIBRATIONS, 1) == 0:
            self._calibrate()
        if done == total:
            self._fit()

    @torch.no_grad()
    def settle(self, done: int, total: int) -> None:
        """Keep the size of the file near the budget."""
        if done % max(total // _CALIBRATIONS, 1) == 0:
            self._calibrate()
        if done == total:
            self._fit()

    def rate(self, model: nn.Module) -> Tensor:
        """Return λ·bits of all that is on a grid."""
        if not self.grids[0][1].began:
            return torch.zeros(())
        parts = []
        for tensor, grid in self.grids:
            threshold = tensor.function(SolvedThreshold)
            if threshold is None:
                parts.append(grid.bits(tensor.stored))
            else:
                kept = threshold.kept(tensor.stored).flatten().nonzero().squeeze(1)
                parts.append(grid.rate(tensor.stored, kept))
        pressure = next(iter(solved_thresholds(self.model).values())).pressure
        return max(self.pruner.multiplier, 0.0) * float(pressure) * torch.stack(parts).sum()

    def _calibrate(self) -> None:
        estimate = sum(float(tensor_bits(tensor)) for tensor in tensors(self.model)) / 8
        size = self._file_size()
        for function in solved_thresholds(self.model).values():
            function.calibration.fill_(size / estimate)
            if function.is_fixed:
                function.pressure.mul_(min(max((size / self.size) ** _GAIN, 0.5), 2.0))

    def _file_size(self) -> int:
        """Return the size of the file that would be written now."""
        return self.aids.file_size(without_dead_units(freeze(self.model, half_codebook=True)))

    def _fit(self) -> None:
        """Cut a few more weights if the file is too large."""
        for _ in range(_LAST_TRIES):
            size = self._file_size()
            if size <= self.size - _SLACK:
                return
            self.pruner.keep_exactly(math.floor(self.pruner.kept * 0.998 * self.size / size))
