"""Manessi et al. 2018, "Automated Pruning for Deep Neural Network Compression": thresholds learned by gradient descent.

The method that this package is built around; here it is in the form in which it stands beside its rivals.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated

from torch import nn
from typing_extensions import Doc

from secateur.methods.stage import Stage
from secateur.prune import prune, require_cutoff
from secateur.sibling import SiblingConfig, build_sibling


@dataclass(frozen=True, kw_only=True)
class Manessi2018:
    """Train the sibling once, thresholds and weights together, and cut it."""

    sibling: Annotated[SiblingConfig, Doc("how a weight gets its threshold")] = field(default_factory=SiblingConfig)
    cutoff: Annotated[float, Doc("γ, weights with |θ(w)| below it are cut")] = 1e-3

    def __post_init__(self) -> None:
        require_cutoff(self.cutoff)

    def stages(self, model: nn.Module) -> Generator[Stage, None, nn.Module]:
        """Yield the sibling once and return what is left of it."""
        sibling = build_sibling(model, self.sibling)
        yield Stage("train", sibling, "train")
        return prune(sibling, self.cutoff)
