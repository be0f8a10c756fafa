"""A grid that begins in the middle of a training: until then a layer reads its weight as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.functions.grid import round_to_levels
from secateur.functions.learned_step import LearnedStep
from secateur.rate import SIDE_BITS, grid_bits, level_bits

_ENOUGH_FOR_AN_ESTIMATE = 2_000  # values to fit a step to that nothing is rounded with yet


class LateStep(LearnedStep):
    """A uniform quantiser with a learned step that does nothing until `begin` fits its step to the weights.

    It is there from the first step on, so that optimizers and checkpoints see one network from beginning to end.
    """

    began: Tensor

    def __init__(self, weight: Tensor, largest: int, *, keep_survivors: bool) -> None:
        super().__init__(weight, largest, 0.0, keep_survivors=keep_survivors)
        self.register_buffer("began", torch.tensor(False))

    @torch.no_grad()
    def begin(self, weight: Tensor) -> None:
        """Fit the step to the weights, and round to its multiples from now on."""
        self.log_step.copy_(self.fitted(weight).log())
        self.began.fill_(True)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the nearest multiple of the step, or the weight as it is before `begin`."""
        if self.began:
            return super().forward(weight)
        return weight + 0 * self.log_step  # distributed training stops at a parameter without a gradient

    def few_values(self, weight: Tensor) -> Tensor:
        """Return the multiples of the step, or the weight as it is before `begin`."""
        return super().few_values(weight) if self.began else weight

    def rate(self, weight: Tensor, kept: Tensor) -> Tensor:
        """Return the bits of the levels of those weights that are `kept`, indices of the flattened weight.

        Unlike `bits` it leaves out positions, which no gradient of a weight or a step can change here, and so costs a
        training step little when few weights are left.
        """
        chosen = weight.flatten()[kept]
        return level_bits(chosen / self.step, self.levels(chosen), self.largest)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the levels; before `begin` of those that it would fit now, without gradient."""
        if self.began:
            return super().bits(weight)
        with torch.no_grad():
            step = self.fitted(weight, _ENOUGH_FOR_AN_ESTIMATE)
            levels = round_to_levels(weight, step, self.largest, 0.0, self.keep_survivors)
            return SIDE_BITS + grid_bits(weight / step, levels, self.largest, zeros_are_fixed=True)
