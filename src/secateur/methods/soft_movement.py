"""Soft movement pruning: Sanh et al. 2020, "Movement Pruning: Adaptive Sparsity by Fine-Tuning" (arXiv 2005.07683).

Weights are kept by where they go, not by where they are. Every weight has a score S, and a layer reads

    r = w · 1[σ(S) > τ]    with    ∂L/∂S := ∂L/∂r · w,    so that after many steps    S ≈ −lr · Σ (∂L/∂r · w)

The loss is L + λ · mean σ(S), which lowers all scores; τ and λ rise by the cubic law of gradual magnitude pruning. The
method is meant for pretrained networks: BERT with 3 % of its weights has an F1 of 82.3 on SQuAD, magnitude pruning 59.6
(authors' repository); nothing is published for the LeNets. Here a share of the epochs trains the dense network first.

With a ratio, τ is not given but solved every ten steps, so that the number of weights follows the cubic law to N/ratio.
Without one, τ and λ decide how many are left. The paper trains S by Adam at 1e-2; under SGD the weights' rate suffices.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.functions.movement import MovementMask
from secateur.methods.gradual_magnitude import sparsity
from secateur.methods.targeted import Selecting, cut_and_fine_tune, dense_first, read_through, require_parts
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe, require_not_negative
from secateur.train.stage import Stage

_EVERY = 10  # steps between two bounds
_RATES = {"sgd": 1.0, "adam": 10.0}  # of scores ÷ learning rate of weights


@dataclass(frozen=True, kw_only=True)
class SoftMovement(Selecting):
    """Learn a score for every weight by how it moves, and read those whose score is high enough."""

    name: ClassVar[str] = "soft-movement"

    lambda_s: Annotated[float, Doc("λ, the weight of the mean σ(S) in the loss at the end of the ramp")] = 100.0
    bound: Annotated[float, Doc("τ at the end of the ramp; a ratio takes its place")] = 0.1
    dense: Annotated[float, Doc("share of the epochs that train the dense network first")] = 0.3
    ramp: Annotated[float, Doc("share of the pruning after which no further weight is cut")] = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(lambda_s=self.lambda_s)
        require_parts(self.dense, self.fine_tune)
        for name, value in (("bound", self.bound), ("ramp", self.ramp)):
            if not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value}")

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, the same while scores are learned, then what is left of it, and return that."""
        pruning, fine_tuning = yield from dense_first(model, recipe, self.dense, self.fine_tune)
        found = read_through(model, lambda tensor: MovementMask(tensor.stored.detach()))
        total_weights = sum(tensor.stored.numel() for tensor, _ in found)

        @torch.no_grad()
        def between(done: int, total: int) -> None:
            if done % _EVERY and done != total:
                return
            progress = sparsity(min(done / (self.ramp * total), 1.0), 1.0)
            if self.ratio is None:
                share = self.bound * progress
                wanted = torch.tensor(math.log(share / (1 - share)))
            else:
                everything = torch.cat([function.score.flatten() for _, function in found])
                cut = int(total_weights * progress * (1 - 1 / self.ratio))
                wanted = everything.kthvalue(max(cut, 1)).values
            for _, function in found:
                function.bound.copy_(torch.minimum(wanted, _below_highest(function.score)))
                function.strength.fill_(self.lambda_s * progress / total_weights)

        yield Stage(
            name="prune",
            model=model,
            recipe=pruning,
            rho=_RATES[recipe.optimizer],
            between=between,
            terms={"scores": lambda model: penalty(model, 1.0)},
            target=self.target,
        )
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))


def _below_highest(score: Tensor) -> Tensor:
    """Return a bound that keeps the highest score of a layer, which would pass nothing on without it."""
    return torch.nextafter(score.max(), torch.tensor(-torch.inf))
