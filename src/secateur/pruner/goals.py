"""What a budget is about: how many weights it leaves in the end, and what each of a layer's weights costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from secateur.budget import Budget
from secateur.pruner.pruned import Pruned, least_kept
from secateur.quantize import tensor_bits
from secateur.weights.tensors import NetworkTensor


def final_ratio(budget: Budget, sizes: Sequence[int]) -> float:
    """Return all weights ÷ weights kept in the end; raise a ValueError if layers of these sizes need more."""
    ratio, total, least = budget.final_ratio, sum(sizes), sum(map(least_kept, sizes))
    if ratio is None:
        raise ValueError(f"a pruner needs a number of weights or of bytes to go to, got {budget}")
    if total / ratio < least:
        raise ValueError(
            f"{budget} would keep {total / ratio:.3g} of {total:,} weights: layers need at least the cube root of "
            f"their weights, {least:,} in all, so {total / least:.4g}× is the most"
        )
    return ratio


class Goal(Protocol):
    """What the budget is about: how many weights it leaves in the end, and what each of a layer's weights costs."""

    def ratio(self, pruned: list[Pruned]) -> float:
        """Return all weights ÷ weights kept in the end, as far as that is known now."""
        ...

    def prices(self, pruned: list[Pruned]) -> list[float]:
        """Return β, the price of a weight, for every layer."""
        ...


@dataclass(frozen=True)
class Ratio:
    """A ratio that is given: all weights cost the same."""

    final: float

    def ratio(self, pruned: list[Pruned]) -> float:
        """Return the ratio that was given."""
        return self.final

    def prices(self, pruned: list[Pruned]) -> list[float]:
        """Return 1 for every layer."""
        return [1.0] * len(pruned)


class Size:
    """A number of bytes: a weight costs the bits that it takes in its layer."""

    def __init__(self, size: int, others: list[NetworkTensor]) -> None:
        self.bits, self.others = 8 * size, others

    def ratio(self, pruned: list[Pruned]) -> float:
        """Return what the bits of the weights kept now make of the budget, calibrated by the last file."""
        others = sum(float(tensor_bits(tensor)) for tensor in self.others)
        if others >= self.bits:
            raise ValueError(
                f"{self.bits // 8:,} bytes are less than the {others / 8:,.0f} that biases and other tensors take that "
                "are not pruned"
            )
        kept, total = sum(each.kept for each in pruned), sum(each.weight.numel() for each in pruned)
        bits = sum(float(tensor_bits(each.tensor)) for each in pruned) / max(kept, 1)
        final = (self.bits / float(pruned[0].function.calibration) - others) / bits
        return total / min(max(final, sum(each.least for each in pruned)), total)

    def prices(self, pruned: list[Pruned]) -> list[float]:
        """Return the bits of a kept weight in every layer."""
        return [float(tensor_bits(each.tensor)) / max(each.kept, 1) for each in pruned]
