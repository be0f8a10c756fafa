"""LTP: Azarian et al. 2020, "Learned Threshold Pruning" (arXiv 2003.00075).

Each layer has a threshold τ for squared weights, learned through a sigmoid whose width follows the layer's weights,

    v = w · σ((w² − τ) / T)    with    T = T₀ · Var|w|      (equation 15)

and the loss is L + λ · Σ σ((w² − τ) / T), a soft ℓ₀ norm (equation 6), which works with batch norm where ℓ₁ and ℓ₂ do
not. In ∂L/∂w the derivative of the sigmoid is left out; in ∂L/∂τ and in that of the ℓ₀ norm it is not. λ decides how
many weights are left. Published: AlexNet 26.4× at 79.1 % top-5 accuracy, ResNet-50 9.1× at 92.0 %, in 30 epochs from
pretrained weights; nothing for the LeNets.

With a ratio, λ is raised or lowered while the network trains, so that about N/ratio weights are left, and the final cut
keeps the N/ratio largest |w| − √τ. T₀ is a hundred times the paper's 10⁻³, because in layers of a thousand weights
hardly one would be in the sigmoid's slope. τ is learned in units of the layer's mean square. Under Adam it moves by its
learning rate at most, twenty times that of the weights: with five times, 20 epochs of MNIST would not bring it to nine
units, and the cut would have to make up for that. A share of the epochs trains the dense network first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar

from typing_extensions import Doc

from secateur.functions.soft_l0 import SoftCount
from secateur.methods.learned import Learned
from secateur.methods.targeted import require_parts
from secateur.train.recipe import require_not_negative
from secateur.weights.tensors import NetworkTensor


@dataclass(frozen=True, kw_only=True)
class Ltp(Learned[SoftCount]):
    """Learn a threshold for the squared weights of every layer by a soft count of what is above it."""

    name: ClassVar[str] = "ltp"
    term: ClassVar[str] = "count"
    rates: ClassVar[Mapping[str, float]] = MappingProxyType({"sgd": 1.0, "adam": 20.0})

    lambda_0: Annotated[float, Doc("λ, the weight of the soft number of weights in the loss")] = 1e-6
    temperature: Annotated[float, Doc("T₀, width of the sigmoid ÷ variance of |w|")] = 0.1
    dense: Annotated[float, Doc("share of the epochs that train the dense network first")] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(lambda_0=self.lambda_0)
        require_parts(self.dense, self.fine_tune)
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")

    @property
    def strength(self) -> float:
        """λ."""
        return self.lambda_0

    @property
    def dense_share(self) -> float:
        """The share of the epochs that train the dense network first."""
        return self.dense

    def function(self, tensor: NetworkTensor) -> SoftCount:
        """Return the soft count of a layer."""
        return SoftCount(tensor.stored.detach(), self.temperature)
