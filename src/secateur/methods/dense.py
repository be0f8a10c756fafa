"""No pruning at all: the reference is a method like the others."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from torch import nn

from secateur.methods.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Train the network as it is."""

    def stages(self, model: nn.Module) -> Generator[Stage, None, nn.Module]:
        """Yield the network once."""
        yield Stage("train", model, "train")
        return model
