"""Step 3, prune: cut the sibling at γ and return a plain network with exact zeros."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn
from torch.nn.parameter import is_lazy

from secateur.functions.mask import FixedMask
from secateur.functions.quantizer import Quantizer
from secateur.functions.threshold import (
    LearnedThreshold,
    learned_thresholds,
    warn_of_drowned_task,
    warn_of_soft_thresholds,
    warn_of_stuck_thresholds,
)
from secateur.weights.function import given
from secateur.weights.reading import attach, copied, settle_
from secateur.weights.tensors import parameters, tensors


def prune(
    sibling: nn.Module,
    cutoff: float = 1e-3,
    *,
    survivors: Literal["theta", "raw"] = "theta",
    allow_empty: bool = False,
) -> nn.Module:
    """Return a plain copy of the sibling's network in which every weight with |θ(w)| < `cutoff` is exactly zero.

    The paper's N_p keeps θ⁻¹(θ̄(θ(W; t); γ); t), that is the raw w where it survives: `survivors="raw"`. The network
    that was trained computes with θ(w), so by default the survivors keep that and the function is preserved.
    The sibling is left as it is. A model under `keep_zeros` is made plain in the same way.
    """
    require_cutoff(cutoff)
    if survivors not in ("theta", "raw"):
        raise ValueError(f'survivors must be "theta" or "raw", got {survivors!r}')
    _refuse_others(sibling)
    plain = copied(sibling)
    known = learned_thresholds(sibling)
    for name, function in learned_thresholds(plain).items():
        function.cutoff, function.survivors, function.allow_empty = cutoff, survivors, allow_empty
        function.optimizer_groups = known[name].optimizer_groups  # for what is said about an empty layer
    settle_(plain)
    warn_of_stuck_thresholds(sibling, stacklevel=2)
    warn_of_soft_thresholds(sibling, cutoff, stacklevel=2)
    warn_of_drowned_task(sibling, stacklevel=2)
    return plain


def prune_(sibling: nn.Module, cutoff: float = 1e-3) -> None:
    """Do what `prune` does, in place: the sibling itself becomes plain, and its parameters stay the same objects.

    A sibling that cannot be cut stays as it was.
    """
    require_cutoff(cutoff)
    _refuse_others(sibling)
    for tensor in tensors(sibling):
        function, chain = tensor.function(LearnedThreshold), tensor.places[0].chain
        if function is not None and chain is not None:
            function.cutoff = cutoff
            try:
                function.settle(given(function, chain))
            except ValueError as error:
                raise ValueError(f'"{tensor.name}" {error}') from None
    warn_of_stuck_thresholds(sibling, stacklevel=2)
    warn_of_soft_thresholds(sibling, cutoff, stacklevel=2)
    settle_(sibling)


def keep_zeros(model: nn.Module) -> nn.Module:
    """Hold every zero of the weights at zero while `model` is fine-tuned, in place; `prune` makes it plain again.

    Tensors without zeros are left alone, and so are those whose zeros are held already. Biases and norms are left alone
    too: their zeros are chance.
    """
    everything = parameters(model)
    for tensor in everything:
        if tensor.has(LearnedThreshold):
            raise ValueError(f'"{tensor.name}" has a threshold, and no zeros yet: prune the sibling first')
    with_zeros = [
        tensor
        for tensor in everything
        if not is_lazy(tensor.stored) and tensor.stored.dim() >= 2 and not tensor.stored.detach().all()
    ]
    if not with_zeros:
        raise ValueError(f"{type(model).__name__} has no zero weights to keep: prune it first")
    for tensor in with_zeros:
        if not tensor.has(FixedMask):
            attach(tensor, FixedMask.of(tensor.stored))
    return model


def require_cutoff(cutoff: float) -> None:
    """Raise a ValueError for an impossible γ."""
    if not (math.isfinite(cutoff) and cutoff >= 0):
        raise ValueError(f"cutoff must be ≥ 0 and finite, got {cutoff}")


def _refuse_others(sibling: nn.Module) -> None:
    """Refuse a network that is quantised, and one without thresholds or masks."""
    everything = tensors(sibling)
    for tensor in everything:
        if tensor.has(Quantizer):
            raise ValueError(f'"{tensor.name}" is quantised: freeze(model) makes the network plain')
    if not any(tensor.has(LearnedThreshold) or tensor.has(FixedMask) for tensor in everything):
        raise ValueError(
            f"{type(sibling).__name__} is not a sibling: it has no thresholds; call build_sibling(model) and train it"
        )
