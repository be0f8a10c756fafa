"""The linear algebra of Optimal Brain Surgeon: saliencies, and what the weights that are kept gain from a cut.

The formulas are at the head of `secateur.methods.obs`. Matrices are over the weights that are left: cutting S from the
weights K of a block leaves R, and the Hessian of R is H_RR.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.methods.curvature import Curvature

_DAMPING = 1e-2  # ε ÷ the mean of H's diagonal
_BLOCK = 128  # vectors that the identity is applied to at once, which gives the same as one after the other
_SMALLEST = 1e-12  # of H's diagonal: a layer whose inputs are all zero has none


class WholeLayer:
    """A layer with one Hessian, whose inverse the Woodbury identity builds up from the gradients of samples."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.shape = weight.flatten().double(), weight.shape
        self.left = self.weight != 0
        self.gradients: list[Tensor] = []
        self.inverse: Tensor | None = None

    def add(self, seen: Curvature) -> None:
        """Take note of the gradients of a batch."""
        places = len(seen.inputs) // seen.samples
        slopes, inputs = (rows.double().view(seen.samples, places, -1) for rows in (seen.slopes, seen.inputs))
        self.gradients.append(torch.einsum("spu,spw->suw", slopes, inputs).flatten(1))

    def saliencies(self) -> Tensor:
        """Return the loss that cutting each weight would cost; below zero for those that are cut already."""
        if self.inverse is None:
            size = int(self.left.sum())
            vectors = torch.cat(self.gradients)[:, self.left] if self.gradients else self.weight.new_zeros(0, size)
            self.inverse = inverse_hessian(vectors, size)
        scores = torch.full_like(self.weight, -1.0)
        scores[self.left] = self.weight[self.left].square() / (2 * self.inverse.diagonal())
        return scores.view(self.shape).float()

    def cut(self, keep: Tensor) -> None:
        """Cut all but some weights, and let these make up for it."""
        assert self.inverse is not None
        stays = keep.flatten()[self.left]
        weight, inverse = self.weight[self.left], self.inverse
        across = inverse[:, ~stays]
        solved = torch.linalg.solve(inverse[~stays][:, ~stays], torch.cat([weight[~stays, None], across.T], 1))
        weight = weight - across @ solved[:, 0]
        self.inverse = (inverse - across @ solved[:, 1:])[stays][:, stays]
        self.left = keep.flatten()
        self.weight = torch.zeros_like(self.weight)
        self.weight[self.left] = weight[stays]


class UnitByUnit:
    """A layer whose units share a Hessian, that of their inputs, each with a factor of its own."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.shape = weight.flatten(1).clone(), weight.shape
        units, inputs = self.weight.shape
        self.left = self.weight != 0
        self.hessian, self.factors = self.weight.new_zeros(inputs, inputs), self.weight.new_zeros(units)
        self.samples = self.rows = 0
        self.diagonal: Tensor | None = None  # of the inverse, of what is left of every unit

    def add(self, seen: Curvature) -> None:
        """Take note of the inputs of a batch."""
        self.samples += seen.samples
        self.rows += len(seen.inputs)
        self.hessian += seen.inputs.T @ seen.inputs
        self.factors += seen.slopes.square().sum(0)

    def saliencies(self) -> Tensor:
        """Return the loss that cutting each weight would cost; below zero for those that are cut already."""
        if self.diagonal is None:
            self.diagonal = torch.ones_like(self.weight)
            if self.samples:  # both are sums over rows: a mean of one, and of the other what a sample adds
                self.factors = self.factors / self.rows
                self.hessian = self.hessian / self.samples
                self.hessian += _damping(self.hessian.diagonal()) * torch.eye(len(self.hessian))
                self._factorise()
            else:  # the Hessian is the identity: no weight can make up for another
                self.factors = torch.ones_like(self.factors)
        scores = self.factors[:, None] * self.weight.square() / (2 * self.diagonal)
        return torch.where(self.left, scores, -1.0).view(self.shape)

    def cut(self, keep: Tensor) -> None:
        """Cut all but some weights, and let these make up for it."""
        before, self.left = self.weight, keep.flatten(1)
        self.weight = before * self.left
        if self.samples:
            self._factorise(before - self.weight)

    def _factorise(self, cut: Tensor | None = None) -> None:
        """Find the diagonal of every unit's inverse Hessian, and make up for weights that were cut: H_RR⁻¹·H_RS·w_S."""
        assert self.diagonal is not None
        known: tuple[Tensor, Tensor] | None = None
        for unit, left in enumerate(self.left):
            if known is None or not torch.equal(left, known[0]):
                known = left, torch.linalg.cholesky(self.hessian[left][:, left])
                inverse = torch.linalg.solve_triangular(known[1], torch.eye(len(known[1])), upper=False)
            self.diagonal[unit, left] = inverse.square().sum(0)
            if cut is not None:
                gained = (self.hessian[left] @ cut[unit])[:, None]
                self.weight[unit, left] += (inverse.T @ (inverse @ gained)).squeeze(1)


def inverse_hessian(vectors: Tensor, size: int) -> Tensor:
    """Return (ε + Σ XXᵀ / P)⁻¹ of P vectors (vectors, size), by the Woodbury identity; 1 if there are none."""
    if not len(vectors):
        return torch.eye(size, dtype=torch.float64)
    number = len(vectors)
    inverse = torch.eye(size, dtype=vectors.dtype) / _damping(vectors.square().mean(0))
    for block in vectors.split(_BLOCK):
        product = inverse @ block.T
        inner = number * torch.eye(len(block), dtype=vectors.dtype) + block @ product
        inverse -= product @ torch.linalg.solve(inner, product.T)
    return inverse


def _damping(diagonal: Tensor) -> float:
    return _DAMPING * max(float(diagonal.mean()), _SMALLEST)
