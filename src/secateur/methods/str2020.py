"""STR: Kusupati et al. 2020, "Soft Threshold Weight Reparameterization for Learnable Sparsity" (arXiv 2002.03231).

A layer reads its weights through a soft threshold with a parameter of its own, trained like a weight,

    S(w, s) = sign(w) · relu(|w| − g(s))    with    g(s) = σ(s)      (equation 3)

and weight decay λ of s does the pruning: s starts far below zero, so that g(s) ≈ 0, and rises towards it. How many
weights are left follows from λ and from where s starts. Published: ResNet-50 on ImageNet 76.1 % top-1 with 81 % zeros,
74.3 % with 90 %, 70.2 % with 95 %, 61.5 % with 98 % (authors' repository); nothing for the LeNets.

With a ratio, λ is raised or lowered while the network trains, so that about N/ratio weights are left, and the final cut
keeps the N/ratio largest |w| − g(s), as if all thresholds rose or fell by the same small amount. Weights keep what the
layers read; one that lies below its own threshold starts from itself. The s of the paper starts at −3200 for 500,000
steps, with the decay of the weights. For some thousand steps it starts at −8 here, with a decay of its own. Under Adam
s moves by its learning rate at most, whatever the decay is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar

from typing_extensions import Doc

from secateur.functions.soft_threshold import SoftThreshold
from secateur.methods.learned import Learned
from secateur.train.recipe import require_not_negative
from secateur.weights.tensors import NetworkTensor


@dataclass(frozen=True, kw_only=True)
class Str(Learned[SoftThreshold]):
    """Learn a soft threshold for every layer, which the weight decay of its parameter raises."""

    name: ClassVar[str] = "str"
    term: ClassVar[str] = "thresholds"
    rates: ClassVar[Mapping[str, float]] = MappingProxyType({"sgd": 1.0, "adam": 10.0})

    lambda_s: Annotated[float, Doc("λ, the weight of Σ s² in the loss")] = 1e-3
    start: Annotated[float, Doc("where s starts; the threshold is σ(s)")] = -8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(lambda_s=self.lambda_s)
        if not (math.isfinite(self.start) and self.start < 0):
            raise ValueError(f"start must be below 0 and finite, got {self.start}")

    @property
    def strength(self) -> float:
        """λ."""
        return self.lambda_s

    def function(self, tensor: NetworkTensor) -> SoftThreshold:
        """Return the soft threshold of a layer."""
        return SoftThreshold(tensor.stored.detach(), self.start)
