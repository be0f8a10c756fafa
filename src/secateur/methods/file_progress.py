"""What happens between the steps of method `joint`, so that its file has the size that was asked for."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from secateur.functions.late_step import LateStep
from secateur.functions.solved_threshold import SolvedThreshold, solved_thresholds
from secateur.graph.hidden_units import without_dead_units
from secateur.methods.method import Aids
from secateur.pruner import RAMP, Pruner
from secateur.quantize import freeze, tensor_bits
from secateur.weights.tensors import NetworkTensor, tensors

_CALIBRATIONS = 10  # how often in a stage the estimate is compared with a real file
_LAST_TRIES = 8  # at the end, to make the file fit
_SLACK = 2  # bytes: the file will name its error, and a few digits more or less compress differently
_GAIN = 8  # a file that is 1 % too large raises the price of a bit by 8 %


class FileProgress:
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
