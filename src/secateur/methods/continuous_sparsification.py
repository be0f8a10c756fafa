"""Savarese et al. 2020, "Winning the Lottery with Continuous Sparsification" (arXiv 1912.04427): gates that harden.

Every weight has a gate s of its own. The step of ℓ₀ regularisation is approached by smooth functions,

    min  L(w ⊙ σ(β·s)) + λ · Σ σ(β·s)    with    β = 200^progress, from 1 to 200      (equation 4)

so that σ(β·s) → 1[s > 0], and the weights with s > 0 are kept. How many these are follows from λ and from s₀, where all
gates start. Published as curves for ResNet-18 and VGG-16 on CIFAR-10 and ResNet-50 on ImageNet, not for the LeNets.

With a ratio, λ is raised or lowered while the network trains, so that about N/ratio gates are above zero, and the final
cut keeps the N/ratio highest. λ is some hundred times the 10⁻⁸ of the paper, for networks of about a hundredth of the
weights. There is one round and no rewinding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from typing_extensions import Doc

from secateur.functions.smooth_gate import SmoothGate
from secateur.methods.learned import Learned
from secateur.train.recipe import require_not_negative
from secateur.weights.tensors import NetworkTensor


@dataclass(frozen=True, kw_only=True)
class ContinuousSparsification(Learned[SmoothGate]):
    """Multiply every weight by a learned gate, which becomes 0 or 1 while the network trains."""

    name: ClassVar[str] = "continuous-sparsification"
    term: ClassVar[str] = "gates"

    lambda_s: Annotated[float, Doc("λ, the weight of Σ σ(β·s) in the loss")] = 5e-6
    start: Annotated[float, Doc("s₀, where gates start; lower ones leave fewer weights")] = 0.0
    last_beta: Annotated[float, Doc("β at the end")] = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(lambda_s=self.lambda_s)
        if not math.isfinite(self.start):
            raise ValueError(f"start must be finite, got {self.start}")
        if not 1 <= self.last_beta < math.inf:
            raise ValueError(f"last_beta must be at least 1 and finite, got {self.last_beta}")

    @property
    def strength(self) -> float:
        """λ."""
        return self.lambda_s

    def function(self, tensor: NetworkTensor) -> SmoothGate:
        """Return the gates of a layer."""
        return SmoothGate(tensor.stored.detach(), self.start)

    def move(self, functions: Sequence[SmoothGate], done: int, total: int, epochs: int) -> None:
        """Let β grow geometrically to its last value."""
        for function in functions:
            function.beta.fill_(self.last_beta ** (done / total))
