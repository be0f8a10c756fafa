"""Hwang & Sung 2014, "Fixed-point feedforward deep neural network design using weights +1, 0, and −1" (SiPS 2014).

A weight of a layer is −Δ, 0 or Δ, and signals between layers have 3 bits. A network is trained in full precision, then

    Δ = argmin Σ (w − Q(w))²        Q(w) = Δ · clip(round(w / Δ), −1, 1)

is fitted to every layer: it is the mean of the k largest |w| for the k with the largest (Σ|w|)² / k. The network is
retrained: it computes with Q(w) and with signals on a grid, and gradients by these move full-precision shadows w; Δ
stays. Inputs of the first layer have 8 bits. Published: character recognition and phoneme recognition with "only
negligible performance loss"; no figure for this network.

Returns a network of the original class whose layers have a child `inputs` that rounds what they are given
(`secateur.functions.inputs`): weights alone cannot say that. Files keep its buffers, and `load` restores it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.functions.inputs import RoundedInputs, attach_inputs
from secateur.functions.learned_step import LearnedStep
from secateur.methods.method import Method
from secateur.quantize import freeze
from secateur.train.recipe import Recipe, require_share, require_whole
from secateur.train.stage import Stage
from secateur.weights.reading import attach
from secateur.weights.tensors import parameters


@dataclass(frozen=True, kw_only=True)
class TernaryFixedPoint(Method):
    """Train, round weights to −Δ, 0 and Δ and activations to a few levels, and retrain with these."""

    name: ClassVar[str] = "ternary"
    leaves: ClassVar[str] = "ternary"
    leaves_few_values: ClassVar[bool] = True
    changes_inputs: ClassVar[bool] = True
    trains_dense: ClassVar[bool] = True

    retrain: Annotated[float, Doc("share of the epochs with few values")] = 0.5
    activation_bits: Annotated[int, Doc("bits of what layers read of each other")] = 3
    input_bits: Annotated[int, Doc("bits of what the first layer reads")] = 8

    def __post_init__(self) -> None:
        require_share(retrain=self.retrain)
        require_whole(least=2, activation_bits=self.activation_bits, input_bits=self.input_bits)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, then the one with few values, and return that."""
        first, second = recipe.split(self.retrain)
        if not first.epochs or not second.epochs:
            raise ValueError(f'method "{self.name}" trains and retrains: give it at least 2 epochs')
        yield Stage(name="train", model=model, recipe=first, forms=lambda: {"dense": model})
        weights = [tensor for tensor in parameters(model) if tensor.is_weight]
        for tensor in weights:
            layer = tensor.places[0].module
            if isinstance(layer, nn.Linear | nn.Conv2d):
                bits = self.input_bits if tensor is weights[0] else self.activation_bits
                attach_inputs(layer, RoundedInputs(bits))
            step = LearnedStep(tensor.stored.detach(), 1, 0.0, keep_survivors=False)
            step.log_step.requires_grad_(False).copy_(nearest_delta(tensor.stored).log())
            attach(tensor, step)
        yield Stage(name="retrain", model=model, recipe=second, phase="quantize")
        return freeze(model, half_codebook=True)

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs: retraining takes a share of them."""
        return recipe.epochs


@torch.no_grad()
def nearest_delta(weight: Tensor) -> Tensor:
    """Return Δ of least squared error; 1 if all weights are zero."""
    sums = weight.abs().flatten().double().sort(descending=True).values.cumsum(0)
    means = sums / torch.arange(1, len(sums) + 1, device=sums.device)
    return means[(sums * means).argmax()] if sums[-1] > 0 else torch.ones_like(sums[-1])
