"""A low-rank product: a layer reads A·B, and both factors are trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import Self

from secateur.encode.formulas import ComputedTensor, Product
from secateur.functions.computed import Computed, as_parameter


class LowRank(Computed):
    """A layer reads A·B, folded to the shape of its weight.

        ∂L/∂A = G·Bᵀ    ∂L/∂B = Aᵀ·G    with G the gradient of the product

    `formula` says which dimensions of the weight count the rows of A.
    """

    left: nn.Parameter
    right: nn.Parameter

    def __init__(self, formula: Product, shape: tuple[int, ...], left: Tensor, right: Tensor) -> None:
        super().__init__()
        self.formula, self.shape = formula, shape
        self.left, self.right = as_parameter(left), as_parameter(right)
        rows, columns = formula.sides(len(shape))
        self.folded = [shape[d] for d in (*rows, *columns)]
        self.order = [(*rows, *columns).index(d) for d in range(len(shape))]

    @classmethod
    def truncated(cls, weight: Tensor, rank: int, pairing: int = 1) -> Self:
        """Return the nearest product of a rank: U·√S and √S·Vᵀ of the singular value decomposition W = U·S·Vᵀ."""
        formula = Product(pairing, rank)
        left, values, right = torch.linalg.svd(unfolded(weight, pairing).double(), full_matrices=False)
        roots = values[:rank].sqrt()
        left, right = left[:, :rank] * roots, roots[:, None] * right[:rank]
        return cls(formula, tuple(weight.shape), left.to(weight.dtype), right.to(weight.dtype))

    @classmethod
    def of(cls, tensor: ComputedTensor) -> Self:
        """Return the function with these factors."""
        assert isinstance(tensor.formula, Product)
        left, right = tensor.parts
        return cls(tensor.formula, tensor.shape, left, right)

    def small(self) -> ComputedTensor:
        """Return the factors."""
        return ComputedTensor(self.formula, (self.left, self.right), self.shape, self.left.dtype)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the product."""
        return (self.left @ self.right).view(self.folded).permute(self.order).contiguous()

    def extra_repr(self) -> str:
        """Show the shape and the rank."""
        return f"shape={self.shape}, rank={self.formula.rank}, pairing={self.formula.pairing}"


def unfolded(weight: Tensor, pairing: int) -> Tensor:
    """Return a weight as the matrix that a product with this pairing approximates."""
    rows, columns = Product(pairing, 1).sides(weight.dim())
    return weight.detach().permute(*rows, *columns).reshape(math.prod(weight.shape[d] for d in rows), -1)
