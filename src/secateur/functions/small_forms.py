"""The small form of a network: which of its weights are computed from smaller tensors, and by which function."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from secateur.encode.formulas import ComputedTensor, Formula, Hashed, Predicted, Product, Signs, Vectors
from secateur.functions.computed import Computed, compute_from, small_form
from secateur.functions.hashed import HashedWeights
from secateur.functions.low_rank import LowRank
from secateur.functions.packed_signs import PackedSigns
from secateur.functions.predicted import PredictedWeights
from secateur.functions.vector_codebook import VectorCodebook
from secateur.weights.tensors import tensors

_FUNCTIONS: dict[type[Formula], type[Computed]] = {
    Product: LowRank,
    Hashed: HashedWeights,
    Vectors: VectorCodebook,
    Signs: PackedSigns,
    Predicted: PredictedWeights,
}


def small_forms(model: nn.Module) -> dict[str, ComputedTensor]:
    """Return the smaller tensors of all weights that are computed, by the names of these."""
    found = ((tensor, small_form(tensor)) for tensor in tensors(model))
    return {name: form for tensor, form in found if form is not None for name in tensor.names}


def attach_small_forms(model: nn.Module, forms: Mapping[str, ComputedTensor]) -> None:
    """Let layers of a plain model compute their weights from smaller tensors, in place."""
    for tensor in tensors(model):
        form = next((forms[name] for name in tensor.names if name in forms), None)
        if form is not None:
            function = _FUNCTIONS[type(form.formula)].of(form)
            compute_from(tensor, function.to(tensor.stored.device))
