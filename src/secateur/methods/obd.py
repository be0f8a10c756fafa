"""LeCun, Denker & Solla 1990, "Optimal Brain Damage" (NIPS 2): cut the weights that matter least to the loss.

To second order, and at a minimum, the loss grows by the saliency of a weight that is set to zero (their equation 5),

    s_k = ½ · h_kk · w_k²        with   h_kk = Σ ∂²E/∂a_i² · z_j²    over all samples and places that use w_k = w_ij

where a_i is what the weight adds to and z_j what it is multiplied by. They propagate ∂²E/∂a² back from layer to layer
and neglect its mixed terms; here these count (`secateur.methods.curvature`). Weights of low saliency are cut, the
others are retrained, and both are repeated. Published as curves only: a digit recogniser of
2,578 parameters loses about 30 % of them before its loss grows much, and about 60 % when it is retrained.

Without training data, as in a caller that trains stages by itself, every h_kk counts as 1.
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
from secateur.methods.targeted import highest
from secateur.train.recipe import require_whole
from secateur.weights.tensors import NetworkTensor, parameters


@dataclass(frozen=True, kw_only=True)
class OptimalBrainDamage(Rounds):
    """Cut the weights whose loss grows the loss of the network least, by second derivatives, and retrain, in rounds."""

    name: ClassVar[str] = "obd"

    samples: Annotated[int, Doc("training samples that second derivatives are measured on, before every cut")] = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(least=1, samples=self.samples)

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if a weight belongs to a layer whose second derivatives are not known."""
        super().check(model)
        require_known([tensor for tensor in parameters(model) if tensor.is_weight], self.name)

    def keep(self, weights: Sequence[NetworkTensor], model: nn.Module, ratio: float, aids: Aids) -> list[Tensor]:
        """Keep the weights of highest saliency."""
        require_known(weights, self.name)
        diagonals = {tensor.name: torch.zeros_like(tensor.stored) for tensor in weights}
        for seen in measured(weights, model, aids, self.samples):
            for name, layer in seen.items():
                found = layer.slopes.square().T @ layer.inputs.square()
                diagonals[name] += found.view(diagonals[name].shape)
        scores = [saliency(tensor.stored, diagonals[tensor.name], aids) for tensor in weights]
        return highest(scores, sum(score.numel() for score in scores) / ratio)


@torch.no_grad()
def saliency(weight: Tensor, diagonal: Tensor, aids: Aids) -> Tensor:
    """Return ½·h·w²; below zero for weights that are cut already."""
    found = 0.5 * weight.square() * (1.0 if aids.losses is None else diagonal)
    return torch.where(weight == 0, -1.0, found)
