"""Hashed buckets: a layer reads ±value of the bucket that a hash gives each weight, and the values are trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from secateur.encode.formulas import ComputedTensor, Hashed
from secateur.functions.computed import Computed, as_parameter


class HashedWeights(Computed):
    """A layer reads W[i, j] = ξ(i, j) · w[h(i, j)].

        ∂L/∂w_k = Σ_{h(i, j) = k} ξ(i, j) · ∂L/∂W[i, j]

    Buckets and signs follow from the seed; they are kept in memory for speed, and are no part of a checkpoint.
    """

    values: nn.Parameter
    places: Tensor
    signs: Tensor

    def __init__(self, formula: Hashed, shape: tuple[int, ...], values: Tensor) -> None:
        super().__init__()
        self.formula, self.shape = formula, shape
        self.values = as_parameter(values)
        found = [(torch.from_numpy(places).int(), torch.from_numpy(odd)) for _, places, odd in formula.chunks(shape)]
        places, odd = (torch.cat(part) for part in zip(*found, strict=True))
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("signs", 1 - 2 * odd.view(shape).to(values.dtype), persistent=False)

    @classmethod
    def like(cls, weight: Tensor, buckets: int, seed: int) -> Self:
        """Return buckets for a weight that is still random: Σ ξ·W / √n of their n weights, which keeps the variance."""
        function = cls(Hashed(seed, buckets), tuple(weight.shape), weight.new_zeros(buckets))
        with torch.no_grad():
            sums = function.values.index_add(0, function.places, (weight * function.signs).flatten())
            counts = torch.bincount(function.places, minlength=buckets)
            function.values.copy_(sums / counts.clamp(min=1).sqrt())
        return function

    @classmethod
    def of(cls, tensor: ComputedTensor) -> Self:
        """Return the function with these buckets."""
        assert isinstance(tensor.formula, Hashed)
        return cls(tensor.formula, tensor.shape, *tensor.parts)

    def small(self) -> ComputedTensor:
        """Return the buckets."""
        return ComputedTensor(self.formula, (self.values,), self.shape, self.values.dtype)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the value of each weight's bucket with its sign."""
        # A flat gather of int32: its backward adds up each bucket.
        return self.values.index_select(0, self.places).view(self.shape) * self.signs

    def extra_repr(self) -> str:
        """Show the shape and the number of buckets."""
        return f"shape={self.shape}, buckets={self.formula.buckets}"
