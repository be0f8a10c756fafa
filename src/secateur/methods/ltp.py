"""LTP: Azarian et al. 2020, "Learned Threshold Pruning" (arXiv 2003.00075).

Each layer has a threshold τ for squared weights, learned through a sigmoid whose width follows the layer's weights,

    v = w · σ((w² − τ) / T)    with    T = T₀ · Var|w|      (equation 15)

and the loss is L + λ · Σ σ((w² − τ) / T), a soft ℓ₀ norm (equation 6), which works with batch norm where ℓ₁ and ℓ₂ do
not. In ∂L/∂w the derivative of the sigmoid is left out; in ∂L/∂τ and in that of the ℓ₀ norm it is not. λ decides how
many weights are left. Published: AlexNet 26.4× at 79.1 % top-5 accuracy, ResNet-50 9.1× at 92.0 %, in 30 epochs from
pretrained weights; nothing for the LeNets.

With a ratio, λ is raised or lowered while the network trains, so that about N/ratio weights are left, and the final cut
keeps the N/ratio largest |w| − √τ. T₀ is a
hundred times the paper's 10⁻³, because in layers of a thousand weights hardly one would be in the sigmoid's slope. τ is
learned in units of the layer's mean square. A share of the epochs trains the dense network first.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc

from secateur.functions.soft_l0 import SoftCount
from secateur.methods.targeted import Selecting, cut_and_fine_tune, dense_first, read_through, steered
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe, require_not_negative, require_share
from secateur.train.stage import Stage

_RATES = {"sgd": 1.0, "adam": 5.0}  # of thresholds ÷ learning rate of weights


@dataclass(frozen=True, kw_only=True)
class Ltp(Selecting):
    """Learn a threshold for the squared weights of every layer by a soft count of what is above it."""

    name: ClassVar[str] = "ltp"

    lambda_0: Annotated[float, Doc("λ, the weight of the soft number of weights in the loss")] = 1e-6
    temperature: Annotated[float, Doc("T₀, width of the sigmoid ÷ variance of |w|")] = 0.1
    dense: Annotated[float, Doc("share of the epochs that train the dense network first")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(lambda_0=self.lambda_0)
        require_share(dense=self.dense, **{"dense + fine_tune": self.dense + self.fine_tune})
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, the same while thresholds are learned, then what is left of it, and return that."""
        others = yield from dense_first(model, recipe, self.dense)
        pruning, fine_tuning = others.split(self.fine_tune / (1 - self.dense))
        found = read_through(model, lambda tensor: SoftCount(tensor.stored.detach(), self.temperature))
        yield Stage(
            name="prune",
            model=model,
            recipe=pruning,
            rho=_RATES[recipe.optimizer],
            between=steered(found, self.ratio),
            terms={"count": lambda model: penalty(model, self.lambda_0 * float(found[0][1].pressure))},
            target=self.target,
        )
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))
