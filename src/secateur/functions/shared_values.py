"""Shared values: a layer has few different weights, and these are trained (weight sharing, Deep Compression)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.functions.quantizer import Quantizer
from secateur.kmeans import Init, assign, cluster
from secateur.rate import SIDE_BITS, adaptive_bits, position_bits


class SharedValues(Quantizer):
    """Weight sharing (Deep Compression): a layer reads centroids[assignment], and the centroids are trained.

    The gradient of a centroid is the sum over its cluster, ∂L/∂c_k = Σ_{i in k} ∂L/∂w_i. Assignments stay as k-means
    made them, and the raw weights are no longer read.
    """

    reads_weight = False
    centroids: nn.Parameter
    assignment: Tensor

    def __init__(self, weight: Tensor, count: int, init: Init, seed: int) -> None:
        super().__init__()
        kept = weight[weight != 0]
        centroids = cluster(kept, count, init, seed=seed) if len(kept) else weight.new_ones(count).double()
        index = torch.where(weight != 0, assign(weight, centroids) + 1, 0)  # 0 stands for a pruned weight
        self.centroids = nn.Parameter(centroids.to(weight.dtype))
        self.register_buffer("assignment", index.to(torch.uint8 if count < 256 else torch.int32))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the centroid of each weight's cluster, and zero where the weight was zero."""
        values = torch.cat([self.centroids.new_zeros(1), _never_zero(self.centroids)])
        # A flat gather of int32: its backward adds up each cluster.
        return values.index_select(0, self.assignment.flatten().int()).view(self.assignment.shape).to(weight.dtype)

    def few_values(self, weight: Tensor) -> Tensor:
        """Return the centroids in their places."""
        centroids = self.side(self.centroids)
        values = torch.cat([centroids.new_zeros(1), _never_zero(centroids)])
        return values[self.assignment.long()].to(weight.dtype)

    def bits(self, weight: Tensor) -> Tensor:
        """Return the bits of assignments and codebook, which no gradient can change."""
        counts = torch.zeros(len(self.centroids) + 1, dtype=torch.float64, device=self.assignment.device)
        flat = self.assignment.flatten().long()
        counts = counts.index_add(0, flat, torch.ones_like(flat).double())[1:]
        positions = position_bits(self.assignment != 0)
        return (positions + adaptive_bits(counts) + SIDE_BITS * (counts > 0).sum()).float()

    def extra_repr(self) -> str:
        """Show the number of centroids."""
        return f"centroids={len(self.centroids)}"


def _never_zero(values: Tensor) -> Tensor:
    """Lift a value that is exactly zero, or would be flushed to zero, to the smallest there is; gradients pass."""
    fixed = values.detach()
    smallest = torch.finfo(values.dtype).tiny
    lifted = torch.where(fixed.abs() < smallest, torch.copysign(torch.full_like(fixed, smallest), fixed), fixed)
    return lifted + (values - fixed)
