"""ADMM: Zhang et al. 2018, "A Systematic DNN Weight Pruning Framework using ADMM" (arXiv 1804.03294).

Minimise L(W) where W has at most N/ratio weights. With a sparse copy Z of W and a scaled dual variable U, alternate

    W ← argmin L(W) + ρ/2 · ‖W − Z + U‖²     by some epochs of SGD
    Z ← Π(W + U)                             the nearest sparse point
    U ← U + W − Z

from Z = Π(W) and U = 0 on, then cut W and retrain what is left. Published: LeNet-5 71× at 0.8 % error, AlexNet 21× at
a top-5 accuracy of 80.2 %; with targets that grow in steps, LeNet-5 246× at almost no loss (Ye et al. 2019, arXiv
1903.09769).

The paper sets the number of weights of every layer by hand. Here Π keeps the N/ratio largest of the whole network,
which is the nearest point with so many weights in all, so that layers compete. ρ grows tenfold twice, as in the later
code of the authors. The dense network, ADMM and retraining share the epochs of the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import nn
from typing_extensions import Doc

from secateur.functions.augmented import AugmentedLagrangian
from secateur.methods.targeted import Targeted, cut_and_fine_tune, dense_first, highest, read_through, require_parts
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage

_GROWTHS, _GROWTH = 3, 10.0  # ρ is the same for a third of the stage, then ten times as large


@dataclass(frozen=True, kw_only=True)
class Admm(Targeted):
    """Draw the weights to their nearest sparse point, again and again, while the network trains; then cut it."""

    name: ClassVar[str] = "admm"

    rho: Annotated[float, Doc("ρ, the weight of ½‖W − Z + U‖² at the start")] = 1e-3
    projections: Annotated[int, Doc("how often Z and U are updated")] = 30
    dense: Annotated[float, Doc("share of the epochs that train the dense network first")] = 0.3
    fine_tune: Annotated[float, Doc("share of the epochs after the cut, with every zero kept")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rho < math.inf:
            raise ValueError(f"rho must be positive and finite, got {self.rho}")
        require_whole(least=1, projections=self.projections)
        require_parts(self.dense, self.fine_tune)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, the same under ADMM, then what is left of it, and return that."""
        admm, fine_tuning = yield from dense_first(model, recipe, self.dense, self.fine_tune)
        found = read_through(model, lambda tensor: AugmentedLagrangian(tensor.stored, self.rho))
        number = sum(tensor.stored.numel() for tensor, _ in found) / self.ratio

        @torch.no_grad()
        def project() -> None:
            kept = highest([function.point(tensor.stored).abs() for tensor, function in found], number)
            for (tensor, function), keep in zip(found, kept, strict=True):
                function.project(tensor.stored, keep)

        def between(done: int, total: int) -> None:
            if done % max(total // self.projections, 1) == 0:
                project()
                for tensor, function in found:
                    function.update_dual(tensor.stored.detach())
                    function.set_rho(self.rho * _GROWTH ** min(_GROWTHS * done // total, _GROWTHS - 1))

        project()
        yield Stage(
            name="admm",
            model=model,
            recipe=admm,
            between=between,
            terms={"admm": lambda model: penalty(model, 1.0)},
            target={"ratio": self.ratio},
        )
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))
