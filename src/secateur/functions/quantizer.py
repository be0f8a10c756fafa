"""What all quantisers share: a layer reads one of few values in place of each weight.

A quantiser stands last in a tensor's chain, behind what prunes it. Zeros stay zero and everything else stays non-zero,
except behind a learned threshold, where `LearnedStep` moves the zero bin: that is pruning, learned together with it.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from secateur.weights.function import WeightFunction

_SMALLEST_HALF, _LARGEST_HALF = 2.0**-24, 65504.0


class Quantizer(WeightFunction):
    """A layer reads one of few values in place of each weight; `half_codebook` rounds them to float16 in the end."""

    half_codebook: bool = False

    @abstractmethod
    def few_values(self, weight: Tensor) -> Tensor:
        """Return the quantised weight for good, its centroids, steps and scales rounded by `side`."""

    def settle(self, weight: Tensor) -> Tensor:
        """Return the quantised weight for good."""
        with torch.no_grad():
            values = self.few_values(weight)
        if not torch.isfinite(values).all():
            raise ValueError(
                "would freeze to NaN or infinite values: its training diverged, so go back to an earlier checkpoint or "
                "train with a smaller learning rate"
            )
        return values

    def side(self, values: Tensor) -> Tensor:
        """Round centroids, steps or scales to float16 with `half_codebook`, unless one becomes zero or infinite."""
        size = values.abs()
        fits = self.half_codebook and bool(((size >= _SMALLEST_HALF) & (size <= _LARGEST_HALF)).all())
        return values.to(torch.float16).to(values.dtype) if fits else values
