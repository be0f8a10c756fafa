"""How many weights a network has, and how many of them are zero."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from secateur.functions.computed import small_form
from secateur.measure.evaluating import evaluating
from secateur.weights.tensors import NetworkTensor, tensors


@dataclass(frozen=True, kw_only=True)
class Tally:
    """A number of weights, and how many of them need not be stored: those that are exactly zero (NaN is not).

    A tensor that is computed from smaller ones keeps as many weights as numbers have to be stored for it.
    """

    weights: int
    zeros: int

    @property
    def kept(self) -> int:
        """The weights that are not zero."""
        return self.weights - self.zeros

    @property
    def sparsity(self) -> float:
        """Zeros ÷ all, from 0 to 1; 0 where there are no weights."""
        return self.zeros / self.weights if self.weights else 0.0

    @property
    def ratio(self) -> float:
        """All ÷ kept; infinite when none is kept, 1 where there are no weights."""
        if self.kept:
            return self.weights / self.kept
        return math.inf if self.weights else 1.0


@dataclass(frozen=True)
class TensorCount(Tally):
    """The tally of one tensor, under the first of its names."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Total(Tally):
    """The tally of several tensors together."""

    tensors: tuple[TensorCount, ...]


@dataclass(frozen=True)
class Counts:
    """Weights and zeros of a network: of its prunable weights, and of all its parameters."""

    prunable: Total
    whole: Total

    def __repr__(self) -> str:
        return f"Counts(prunable={_brief(self.prunable)}, whole={_brief(self.whole)})"


def count(model: nn.Module, prunable: Collection[str] | None = None) -> Counts:
    """Count the weights and zeros of `model`, tensor by tensor, as its layers read them.

    A tied tensor counts once. A parametrized one counts as what comes out of its parametrization, whose own
    parameters (thresholds, scales) are not weights; one masked by `torch.nn.utils.prune` counts as masked. A tensor
    that is computed from smaller ones keeps as many weights as these have numbers that are not zero: the factors of a
    product, the buckets of a hash, a codebook and its indices (each is a number, however few its bits). Buffers are not
    parameters. `prunable` names the prunable tensors, by default those of `prunable_names`.
    """
    wanted = set(prunable_names(model) if prunable is None else prunable)
    chosen, everything = [], []
    with evaluating(model):
        for tensor in tensors(model):
            if tensor.is_parameter:
                everything.append(_count_tensor(tensor))
                if wanted.intersection(tensor.names):
                    chosen.append(everything[-1])
                wanted.difference_update(tensor.names)
    if wanted:
        raise ValueError(f'prunable: the model has no parameter "{min(wanted)}"')
    return Counts(_add_up(chosen), _add_up(everything))


def prunable_names(model: nn.Module) -> tuple[str, ...]:
    """Name the weights that `build_sibling` prunes by default: the matrices of the layers that it knows.

    These are linear, convolution, embedding, bilinear, attention and recurrent layers, and mixtures of experts. Frozen
    weights and those behind weight norm count, though they are not pruned unless asked for. Biases (also `bias_k` and
    `bias_v` of attention), norms and the tensors of other layers are left out. A tied tensor has the first of its
    names, a parametrized one its name in the plain model: `fc.weight`, `rnn.weight_ih_l0`, `attention.in_proj_weight`.
    """
    with evaluating(model):
        return tuple(tensor.name for tensor in tensors(model) if tensor.is_weight)


def _brief(total: Total) -> str:
    """Say in a few words what there is, without a line per tensor."""
    kept = f"{total.kept:,} of {total.weights:,} weights kept"
    return f"<{kept} in {len(total.tensors)} tensors, {total.ratio:.4g}×>"


def _count_tensor(tensor: NetworkTensor) -> TensorCount:
    small, value = small_form(tensor), tensor.read()
    if value.is_meta:
        raise ValueError(f'"{tensor.name}" is on the meta device and has no values to count: load them first')
    weights = value.numel()
    # Stored as it is, a tensor takes no more numbers than it has.
    kept = int(torch.count_nonzero(value)) if small is None else min(small.stored, weights)
    return TensorCount(tensor.name, tuple(value.shape), weights=weights, zeros=weights - kept)


def _add_up(tensors: Iterable[TensorCount]) -> Total:
    tensors = tuple(tensors)
    weights, zeros = sum(tensor.weights for tensor in tensors), sum(tensor.zeros for tensor in tensors)
    return Total(tensors, weights=weights, zeros=zeros)
