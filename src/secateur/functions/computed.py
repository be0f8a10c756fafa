"""A weight that is computed from smaller tensors: what its layer reads, and what a file stores instead of it."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from typing_extensions import Self

from secateur.encode.formulas import ComputedTensor
from secateur.weights.function import WeightFunction
from secateur.weights.reading import attach
from secateur.weights.tensors import NetworkTensor


class Computed(WeightFunction):
    """A layer reads what is computed from this function's own tensors; the stored weight is no longer needed."""

    reads_weight = False

    @classmethod
    @abstractmethod
    def of(cls, tensor: ComputedTensor) -> Self:
        """Return the function that reads these smaller tensors and trains them, as far as they can be."""

    @abstractmethod
    def small(self) -> ComputedTensor:
        """Return the smaller tensors as a file stores them."""

    def settle(self, weight: Tensor) -> Tensor:
        """Return the plain value, every bit of it as a file with the smaller tensors gives it."""
        return self.small().value()


def compute_from(tensor: NetworkTensor, function: Computed) -> None:
    """Let the layers that read `tensor` compute it by `function` from now on, in place, and drop the stored weight."""
    attach(tensor, function)
    places = [place.chain for place in tensor.places]
    first = tensor.places[0].originals[0]
    # As many dimensions as before, for what asks whether this is a weight, and no memory.
    empty = nn.Parameter(first.new_empty((0,) * first.dim()), requires_grad=False)
    for chain in places:
        assert chain is not None
        chain.original = empty


def small_form(tensor: NetworkTensor) -> ComputedTensor | None:
    """Return the smaller tensors that a tensor is computed from, or None if it is stored itself."""
    functions = tensor.functions
    return functions[-1].small() if functions and isinstance(functions[-1], Computed) else None


def is_small(model: nn.Module) -> bool:
    """Return whether some weight of a network is computed from smaller tensors."""
    return any(isinstance(module, Computed) for module in model.modules())


def as_parameter(part: Tensor) -> nn.Parameter:
    """Return a part of a computed tensor in memory of its own, to be trained."""
    return nn.Parameter(part.detach().clone(memory_format=torch.contiguous_format))
