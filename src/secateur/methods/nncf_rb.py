"""RB sparsity of NNCF (Intel, github.com/openvinotoolkit/nncf), a rival from outside under our protocol.

Regularisation-based sparsity after Louizos et al. 2018, "Learning Sparse Neural Networks through L0 Regularization"
(arXiv 1712.01312). Every weight has a score s, and in each step of training a layer reads it with probability σ(s):

    r = w · 1[σ(s + logit ξ) > ½],  ξ uniform;    loss L + ((share of s above 0 − (1 − level)) ÷ p)²

with straight-through gradients; in the end the weights with s > 0 are left. `RBPruningMask`, its sampling and gradients
are NNCF's. The loss is the formula of its `RBLoss`, written here because that one looks for masks in NNCF's own hooks.

NNCF's example trains masks by Adam at 1e-2 and raises the level in steps, with p = 0.1; here masks have ten times the
weights' learning rate, and the level rises by the cubic law of gradual magnitude pruning. The final cut keeps the
N/ratio highest scores; a share of the epochs after it is ours. Nothing is published for the LeNets.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.functions.outside import OutsideFunction
from secateur.methods.gradual_magnitude import sparsity
from secateur.methods.rivals import import_rival, require_rival
from secateur.methods.targeted import Selecting, cut_and_fine_tune, read_through
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage

_MODULE = "nncf.torch.function_hook.pruning.rb.modules"
_RATES = {"sgd": 1.0, "adam": 10.0}  # of scores ÷ learning rate of weights
_WIDTH = 0.1  # p of NNCF's example


@dataclass(frozen=True, kw_only=True)
class NncfRb(Selecting):
    """Sample masks by learned scores while the network trains (NNCF's RB sparsity)."""

    name: ClassVar[str] = "nncf-rb"
    package: ClassVar[str] = "nncf"

    level: Annotated[float, Doc("share of zeros that the loss asks for; a ratio takes its place")] = 0.9
    ramp: Annotated[float, Doc("share of the pruning after which that share is asked for in full")] = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("level", self.level), ("ramp", self.ramp)):
            if not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value}")

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if NNCF is not installed, or if the ratio leaves less than a weight a layer."""
        require_rival(self)
        super().check(model)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network while masks are learned, then what is left of it, and return that."""
        masks = import_rival(self, _MODULE)
        pruning, fine_tuning = recipe.split(self.fine_tune)
        found = read_through(
            model, lambda tensor: OutsideFunction(masks.RBPruningMask(tuple(tensor.stored.shape)), _score, _kept)
        )
        weights = sum(tensor.stored.numel() for tensor, _ in found)
        level = self.level if self.ratio is None else 1 - 1 / self.ratio

        @torch.no_grad()
        def between(done: int, total: int) -> None:
            for _, function in found:
                function.pressure.fill_(sparsity(min(done / (self.ramp * total), 1.0), level))

        def off_level(model: nn.Module) -> Tensor:
            return ((penalty(model, 1.0) / weights - (1 - found[0][1].pressure)) / _WIDTH).square()

        between(0, 1)
        yield Stage(
            name="prune",
            model=model,
            recipe=pruning,
            rho=_RATES[recipe.optimizer],
            between=between,
            terms={"masks": off_level},
            target=self.target,
        )
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))


def _score(module: nn.Module, weight: Tensor) -> Tensor:
    return cast("Tensor", module.mask)


def _kept(module: Any) -> Tensor:
    """Return how many weights are kept, with the straight-through gradient of NNCF."""
    kept: Tensor = module.loss().sum()
    return kept
