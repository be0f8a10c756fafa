"""Vector codebooks: a layer reads sums of entries of codebooks in place of pieces of its rows; entries are trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from secateur.encode.formulas import ComputedTensor, Vectors
from secateur.functions.computed import Computed, as_parameter
from secateur.kmeans import cluster_points


class VectorCodebook(Computed):
    """A layer reads Σ_t c_t[index_t] for each segment of each row; indices stay as k-means made them.

    The gradient of an entry is the sum over the segments that it stands for.
    """

    codebook: nn.Parameter
    index: Tensor

    def __init__(self, formula: Vectors, shape: tuple[int, ...], codebook: Tensor, index: Tensor) -> None:
        super().__init__()
        self.formula, self.shape = formula, shape
        self.codebook = as_parameter(codebook.reshape(-1, codebook.shape[-1]))  # an entry of some codebook a row
        self.register_buffer("index", index.int())

    @classmethod
    def fitted(cls, weight: Tensor, formula: Vectors, seed: int = 0) -> Self:
        """Return codebooks by k-means: of each segment, or of all with one codebook; then of what is left."""
        rows, segments = len(weight), formula.segments
        left = weight.detach().double().reshape(rows, segments, -1)
        books, indices = [], []
        for round_number in range(formula.rounds):
            # (codebooks, points of each, width)
            points = left.transpose(0, 1) if formula.codebooks > 1 else left.reshape(1, rows * segments, -1)
            found = [cluster_points(each, formula.centroids, seed=seed + round_number) for each in points]
            books.append(torch.stack([centroids for centroids, _ in found]))
            index = torch.stack([assignment for _, assignment in found])
            indices.append(index.T if formula.codebooks > 1 else index.view(rows, segments))
            left = left - books[-1][torch.arange(segments) % formula.codebooks, indices[-1]]
        return cls(formula, tuple(weight.shape), torch.stack(books).to(weight.dtype), torch.stack(indices))

    @classmethod
    def of(cls, tensor: ComputedTensor) -> Self:
        """Return the function with these codebooks and indices."""
        assert isinstance(tensor.formula, Vectors)
        codebook, index = tensor.parts
        return cls(tensor.formula, tensor.shape, codebook, index)

    def small(self) -> ComputedTensor:
        """Return codebooks and indices."""
        formula, width = self.formula, self.codebook.shape[1]
        codebook = self.codebook.view(formula.rounds, formula.codebooks, formula.centroids, width)
        return ComputedTensor(formula, (codebook, self.index), self.shape, self.codebook.dtype)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the sums of the entries."""
        rounds, books, segments = self.formula.rounds, self.formula.codebooks, self.formula.segments
        first = torch.arange(rounds, device=self.index.device).view(-1, 1, 1) * books
        book = first + torch.arange(segments, device=self.index.device) % books
        flat = (book * self.formula.centroids + self.index).flatten()
        return self.codebook.index_select(0, flat).view(rounds, -1).sum(0).view(self.shape)

    def extra_repr(self) -> str:
        """Show the shape and the formula."""
        return f"shape={self.shape}, {self.formula}"
