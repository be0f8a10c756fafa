"""A tensor that is pruned to a budget: its weight, its threshold, and what is compared with the common scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.functions.solved_threshold import SolvedThreshold
from secateur.weights.tensors import NetworkTensor

SAMPLE = 1 << 19  # weights of a large layer that are looked at before the choice is final


def least_kept(weights: int) -> int:
    """Return how many weights a layer keeps in any case: an empty one would pass nothing on, and never recover."""
    return math.ceil(math.pow(weights, 1 / 3))


def sampling_stride(most: int, weights: Iterable[Tensor]) -> int:
    """Return the largest stride up to `most` by which a sample meets all places of the filters alike.

    Weights in the middle of a filter are larger than those at its edge. A stride that shares a factor with a side of
    the filters meets some of their places only: in ResNet-20 every third weight is in the left column of a 3×3 filter,
    and 9 % more weights were kept than wanted.
    """
    sides = math.prod({side for weight in weights for side in weight.shape[2:]})
    return next(stride for stride in range(most, 0, -1) if math.gcd(stride, sides) == 1)


@dataclass(frozen=True)
class Pruned:
    """A tensor, its stored weight and its threshold."""

    tensor: NetworkTensor
    weight: Tensor
    function: SolvedThreshold

    @property
    def name(self) -> str:
        """What the network calls it."""
        return self.tensor.name

    @property
    def kept(self) -> int:
        """How many weights would be kept now."""
        return int(self.function.kept(self.weight).sum())

    @property
    def least(self) -> int:
        """How many weights the layer keeps in any case."""
        return least_kept(self.weight.numel())

    @property
    def unit(self) -> Tensor:
        """u·exp(r), in which s is counted; never zero."""
        function = self.function
        return function.unit.clamp(min=torch.finfo(function.unit.dtype).tiny) * function.relative.exp()

    @property
    def scale(self) -> Tensor:
        """s, as far as the thresholds that were set last tell."""
        return (self.function.solved / self.unit).mean()

    def relative_sizes(self, stride: int = 1) -> Tensor:
        """Return |w| / (u·exp(r)), which is compared with s, for one weight in `stride`, flat."""
        weight, unit = self.weight.detach(), self.unit
        if stride > 1:
            weight, unit = (each.flatten()[::stride] for each in torch.broadcast_tensors(weight, unit))
        return (weight.abs().to(unit.dtype) / unit).flatten()

    def with_least(self, sizes: Tensor) -> Tensor:
        """Return the flat sizes with those of the weights that are kept in any case set to infinity."""
        return sizes.scatter(0, sizes.topk(self.least).indices, torch.inf)

    def set_threshold(self, scale: Tensor) -> None:
        """Set t = s·u·exp(r)."""
        self._set(scale * self.function.unit * self.function.relative.exp())

    def lower_threshold(self) -> None:
        """Set t to the smallest of the weights that the layer keeps in any case."""
        self._set_to_smallest_of(self.with_least(self.relative_sizes()).isinf().view(self.weight.shape))

    def set_to_smallest(self) -> None:
        """Set t to the smallest weight that is not zero."""
        self._set_to_smallest_of(self.weight.detach() != 0)

    def _set_to_smallest_of(self, chosen: Tensor) -> None:
        solved = self.function.solved
        size = torch.where(chosen, self.weight.detach().abs().to(solved.dtype), torch.inf)
        shared = [dim for dim, length in enumerate(solved.shape) if length == 1]
        smallest = size.amin(shared, keepdim=True) if shared else size
        self._set(torch.where(smallest.isfinite(), smallest, solved))

    def _set(self, threshold: Tensor) -> None:
        self.function.solved.copy_(threshold)
        self.function.threshold.copy_(threshold)

    def norm_slope(self) -> Tensor:
        """Return ∂‖θ‖₁/∂t, of a sample of a large layer."""
        weight = self.weight.detach()
        if self.function.threshold.numel() > 1:
            return self.function.norm_slope(weight)
        stride = sampling_stride(math.ceil(weight.numel() / SAMPLE), [weight])
        sample = weight.flatten()[::stride].contiguous().view((-1,) + (1,) * (weight.dim() - 1))
        return self.function.norm_slope(sample) * stride
