"""Predicted weights: a layer reads V·D, of which V is trained and the dictionary D follows from a few places."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from secateur.encode.formulas import ComputedTensor, Predicted
from secateur.functions.computed import Computed, as_parameter


class PredictedWeights(Computed):
    """A layer reads V·(K + λ·1)⁻¹·k, the kernel ridge regression of its weights at a few places.

    The dictionary is kept in memory for speed, and is no part of a checkpoint.
    """

    values: nn.Parameter
    constants: Tensor
    places: Tensor
    dictionary: Tensor

    def __init__(
        self, formula: Predicted, shape: tuple[int, ...], constants: Tensor, places: Tensor, values: Tensor
    ) -> None:
        super().__init__()
        self.formula, self.shape = formula, shape
        self.values = as_parameter(values)
        # As numbers, and not as a buffer, which a cast of the network would round.
        self.constants = constants.double().clone()
        self.register_buffer("places", places.int())
        found = np.stack([formula.dictionary(self.constants, own) for own in places.cpu()])
        self.register_buffer("dictionary", torch.from_numpy(found).to(values.dtype), persistent=False)

    @classmethod
    def like(cls, weight: Tensor, formula: Predicted, *, length: float, ridge: float, seed: int) -> Self:
        """Return the prediction from a weight's own values at random places of every group.

        `length` is the σ of the kernel exp(−distance² / 2σ²).
        """
        matrix = weight.detach().reshape(len(weight), -1)
        draw = torch.Generator().manual_seed(seed)
        drawn = [torch.randperm(matrix.shape[1], generator=draw)[: formula.known] for _ in range(formula.groups)]
        places = torch.stack(drawn).sort(1).values
        values = [rows[:, own] for rows, own in zip(matrix.chunk(formula.groups), places, strict=True)]
        constants = torch.tensor([math.exp(-0.5 / length**2), ridge], dtype=torch.float64)
        return cls(formula, tuple(weight.shape), constants, places, torch.cat(values))

    @classmethod
    def of(cls, tensor: ComputedTensor) -> Self:
        """Return the function with these values."""
        assert isinstance(tensor.formula, Predicted)
        constants, places, values = tensor.parts
        return cls(tensor.formula, tensor.shape, constants, places, values)

    def small(self) -> ComputedTensor:
        """Return the constants, the places and the values there."""
        return ComputedTensor(self.formula, (self.constants, self.places, self.values), self.shape, self.values.dtype)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the prediction."""
        groups, known = self.places.shape
        return torch.bmm(self.values.view(groups, -1, known), self.dictionary).view(self.shape)

    def extra_repr(self) -> str:
        """Show the shape and the formula."""
        return f"shape={self.shape}, {self.formula}"
