"""Hanson & Pratt 1989, "Comparing Biases for Minimal Network Construction with Back-Propagation" (NIPS 1).

Weight decay that is biased against small units: with w_i = Σ_j |w_ij|, all that unit i reads, the loss gains

    hyperbolic     Σ_i  λw_i / (1 + λw_i)        whose slope in w_ij is  sign(w_ij) · λ / (1 + λw_i)²
    exponential    Σ_i  1 − exp(−λw_i)           whose slope in w_ij is  sign(w_ij) · λ · exp(−λw_i)

so that a unit with small weights loses them and one with large weights is left alone. It replaces λ_wd·‖W‖², and the
smallest weights are then cut, once, and the others retrained without it. Published: fewer hidden units in counting
problems and in speech recognition; no ratio of weights.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.methods.method import Aids
from secateur.methods.rounds import Rounds
from secateur.methods.targeted import highest
from secateur.nearest import require_choices
from secateur.train.recipe import Recipe, require_not_negative
from secateur.train.stage import Stage, Term
from secateur.weights.tensors import NetworkTensor, parameters

Bias: TypeAlias = Literal["hyperbolic", "exponential"]


@dataclass(frozen=True, kw_only=True)
class BiasedDecay(Rounds):
    """Train with a decay that is strongest for units of small weights, cut the smallest weights, and retrain."""

    name: ClassVar[str] = "biased-decay"

    rounds: Annotated[int, Doc("how often the network is cut and retrained, each time by the same factor")] = 1
    dense: Annotated[float, Doc("share of the epochs before the first cut")] = 0.6
    bias: Annotated[Bias, Doc("the form of the decay")] = "hyperbolic"
    steepness: Annotated[float, Doc("λ, how fast the decay fades as the weights of a unit grow")] = 0.1
    strength: Annotated[float, Doc("weight of the decay in the loss")] = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self, bias=get_args(Bias))
        require_not_negative(steepness=self.steepness, strength=self.strength)

    def aided_stages(self, model: nn.Module, recipe: Recipe, aids: Aids) -> Generator[Stage, None, nn.Module]:
        """Yield the stages without the recipe's own weight decay, which this one replaces."""
        return (yield from super().aided_stages(model, replace(recipe, lambda_wd=0.0), aids))

    def terms(self) -> dict[str, Term]:
        """Return the decay as a term of the loss."""

        def decay(model: nn.Module) -> Tensor:
            units = (tensor.stored.abs().flatten(1).sum(1) for tensor in parameters(model) if tensor.is_weight)
            return self.strength * torch.stack([self.cost(unit).sum() for unit in units]).sum()

        return {"biased decay": decay}

    def cost(self, unit: Tensor) -> Tensor:
        """Return the cost of units with so large a sum of weights: from 0 to 1."""
        scaled = self.steepness * unit
        return scaled / (1 + scaled) if self.bias == "hyperbolic" else 1 - (-scaled).exp()

    def keep(self, weights: Sequence[NetworkTensor], model: nn.Module, ratio: float, aids: Aids) -> list[Tensor]:
        """Keep the largest weights of the network."""
        sizes = [tensor.stored.detach().abs() for tensor in weights]
        return highest(sizes, sum(size.numel() for size in sizes) / ratio)
