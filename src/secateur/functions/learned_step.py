"""A grid with a learned step: a layer reads multiples of Δ, and Δ is trained with the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from secateur.functions.grid import Grid, round_to_levels
from secateur.functions.quantizer import Quantizer
from secateur.rate import SIDE_BITS, grid_bits

_ENOUGH_VALUES = 100_000  # to choose a first step by


class LearnedStep(Quantizer):
    """A uniform quantiser with a learned step Δ: a layer reads Δ · level, and Δ and the weights are trained.

        level = sign(w) · clip(round(|w| / Δ), 1, largest)    where |w| ≥ cutoff, else 0
        ∂q/∂w = 1                                             straight through rounding, clipping and the zero bin
        ∂q/∂Δ = level − w/Δ    where |w| ≤ largest · Δ, else level

    The last is LSQ's (Esser et al. 2020). LSQ stops the gradient of clipped weights; with few levels many are, and they
    would never come back. Without `keep_survivors`, for biases, small values may round to zero. Stored is log Δ, so Δ
    stays positive and a step of Adam changes it by a share of itself; its gradient is multiplied by LSQ's
    1 / √(weights · largest), which matters to SGD, wherever it comes from: the loss or the rate.
    """

    log_step: nn.Parameter

    def __init__(self, weight: Tensor, largest: int, cutoff: float, *, keep_survivors: bool) -> None:
        super().__init__()
        self.largest, self.cutoff, self.keep_survivors = largest, cutoff, keep_survivors
        self.log_step = nn.Parameter(self.fitted(weight).log())
        self.gradient_scale = 1 / math.sqrt(weight.numel() * largest)

    def fitted(self, weight: Tensor, enough: int = _ENOUGH_VALUES) -> Tensor:
        """Return the step of least squared error for `enough` of the weights that are not zero, or 1 if all are."""
        size = weight.detach().abs().to(torch.promote_types(weight.dtype, torch.float32))
        size = size[(size >= self.cutoff) & (size > 0)]
        size = size[:: len(size) // enough + 1]
        return _best_step(size, self.largest, self.keep_survivors) if len(size) else size.new_ones(())

    @property
    def step(self) -> Tensor:
        """Δ, as everything reads it."""
        fixed = self.log_step.detach()
        return (fixed + (self.log_step - fixed) * self.gradient_scale).exp()

    def forward(self, weight: Tensor) -> Tensor:
        """Return the nearest multiple of the step."""
        levels = self.levels(weight)
        out: Tensor = Grid.apply(weight, self.step, levels, self.largest)  # type: ignore[no-untyped-call]  # torch's
        return out

    def levels(self, weight: Tensor) -> Tensor:
        """Return the whole numbers that the step is multiplied by, without gradient."""
        return round_to_levels(weight.detach(), self.step.detach(), self.largest, self.cutoff, self.keep_survivors)

    def few_values(self, weight: Tensor) -> Tensor:
        """Return the multiples of the step; those of a float16 up to the 8192nd are exact in float32."""
        return self.levels(weight) * self.side(self.step)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of the levels, with a gradient to the weights and to the step."""
        fixed = self.keep_survivors and self.cutoff == 0
        return SIDE_BITS + grid_bits(weight / self.step, self.levels(weight), self.largest, zeros_are_fixed=fixed)

    def extra_repr(self) -> str:
        """Show the step."""
        return f"step={self.step.item():.3g}, largest={self.largest}"


def _best_step(size: Tensor, largest: int, keep_survivors: bool) -> Tensor:
    """Return the step of least squared error among a hundred between max / (8 · largest) and max."""
    candidates = size.max() / torch.logspace(0, math.log10(8 * largest), 100, dtype=size.dtype, device=size.device)
    errors = [
        (size - step * round_to_levels(size, step, largest, 0.0, keep_survivors)).square().sum() for step in candidates
    ]
    return candidates[int(torch.stack(errors).argmin())]
