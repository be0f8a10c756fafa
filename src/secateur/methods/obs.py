"""Hassibi & Stork 1993, "Second order derivatives for network pruning: Optimal Brain Surgeon" (NIPS 5).

Cutting weight q grows the loss least, to second order, if the other weights w make up for it (their equation 5):

    δw = −(w_q / [H⁻¹]_qq) · H⁻¹e_q        L_q = w_q² / (2·[H⁻¹]_qq)

H = Σ XXᵀ / P over P samples. X is not the gradient of the loss, which vanishes in a trained network, but that of the
scores, as ∂²E/∂o² weighs them (`secateur.methods.curvature`). H⁻¹ is built up (equation 11, the Woodbury identity):

    H⁻¹ ← H⁻¹ − H⁻¹XXᵀH⁻¹ / (P + XᵀH⁻¹X)        from   H⁻¹ = 1/ε

A layer of up to `exact` weights is treated so. A larger one is treated unit by unit, as in L-OBS (Dong et al. 2017,
arXiv 1705.07565) and OBC (Frantar & Alistarh 2022): all units of a layer share H = Σ zzᵀ of what they read, times the
mean of ∂²E/∂a_i² of the unit, which makes saliencies of all layers comparable. Several weights S of a block go at once
by the same formula with matrices, δw = −H⁻¹_{·S}(H⁻¹_SS)⁻¹w_S, in a few steps a round, between which saliencies change.
Published: L-OBS 1.5 % of LeNet-300-100's weights at 2.0 % error. Without training data H is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.methods.curvature import measured, require_known
from secateur.methods.method import Aids
from secateur.methods.rounds import Rounds
from secateur.methods.surgery import UnitByUnit, WholeLayer
from secateur.methods.targeted import highest
from secateur.train.recipe import require_whole
from secateur.weights.tensors import NetworkTensor, parameters

_STEPS = 4  # of a round, each of which cuts by the same factor


@dataclass(frozen=True, kw_only=True)
class OptimalBrainSurgeon(Rounds):
    """Cut the weights whose loss the others make up for best, let them do so, and retrain, in rounds."""

    name: ClassVar[str] = "obs"

    samples: Annotated[int, Doc("training samples that second derivatives are measured on, before every cut")] = 2048
    exact: Annotated[int, Doc("most weights of a layer whose whole Hessian is inverted; larger go unit by unit")] = 1024
    widest: Annotated[int, Doc("most weights of a unit: their Hessian is inverted for every unit")] = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(least=1, samples=self.samples, widest=self.widest)
        require_whole(exact=self.exact)

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError for layers whose second derivatives are not known or too many."""
        super().check(model)
        self._require_narrow([tensor for tensor in parameters(model) if tensor.is_weight])

    def _require_narrow(self, weights: Sequence[NetworkTensor]) -> None:
        require_known(weights, self.name)
        for tensor in weights:
            inputs = tensor.stored[0].numel()
            if inputs > self.widest:
                raise ValueError(
                    f'"{tensor.name}" has {inputs:,} weights a unit: method "{self.name}" would invert a matrix of '
                    f"that size for every unit, and does so up to widest = {self.widest:,}"
                )

    def keep(self, weights: Sequence[NetworkTensor], model: nn.Module, ratio: float, aids: Aids) -> list[Tensor]:
        """Cut in steps, and add to the weights that are kept what makes up for the others."""
        self._require_narrow(weights)
        layers = {
            tensor.name: (WholeLayer if tensor.stored.numel() <= self.exact else UnitByUnit)(
                tensor.stored.detach().cpu()
            )
            for tensor in weights
        }
        for seen in measured(weights, model, aids, self.samples):
            for name, batch in seen.items():
                layers[name].add(batch.cpu())
        total = sum(tensor.stored.numel() for tensor in weights)
        before = total / max(sum(int(tensor.stored.count_nonzero()) for tensor in weights), 1)
        kept: list[Tensor] = []
        for step in range(1, _STEPS + 1):
            scores = [layer.saliencies() for layer in layers.values()]
            kept = highest(scores, total / (before * (ratio / before) ** (step / _STEPS)))
            for layer, keep in zip(layers.values(), kept, strict=True):
                layer.cut(keep)
        with torch.no_grad():
            for tensor in weights:
                tensor.stored.copy_(layers[tensor.name].weight.view(tensor.stored.shape))
        return [keep.view(tensor.stored.shape) for tensor, keep in zip(weights, kept, strict=True)]
