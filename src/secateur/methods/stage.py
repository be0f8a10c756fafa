"""What a method asks for: one stretch of training after the other."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from secateur.train.loop import Phase


@dataclass(frozen=True)
class Stage:
    """A network to be trained in place, before its first cut ("train") or after one ("fine-tune")."""

    name: str
    model: nn.Module
    phase: Phase


class Method(Protocol):
    """How a network is made smaller."""

    def stages(self, model: nn.Module) -> Generator[Stage, None, nn.Module]:
        """Yield what is to be trained before the method can go on, and return a plain network."""
        ...
