"""How far a stage of training is, which a checkpoint says next to the tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Progress:
    """The epochs that are done, the steps of the one under way, and what its log line adds up."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    log_bytes: int = 0
    loss: float = 0.0
    terms: dict[str, Tensor | float] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)  # of fp16's gradients

    @property
    def sums(self) -> Tensor:
        """The sums of the loss and its terms over the steps of an epoch, which every process has of its own samples."""
        return torch.tensor([self.loss, *map(float, self.terms.values())], dtype=torch.float64)

    @sums.setter
    def sums(self, values: Tensor) -> None:
        self.loss, *terms = values.tolist()
        self.terms = dict(zip(self.terms, terms, strict=True))

    def end_epoch(self) -> None:
        """Begin to count the next epoch."""
        self.epoch, self.step, self.loss, self.terms = self.epoch + 1, 0, 0.0, {}

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; sums of 32-bit numbers stay exact."""
        return {**vars(self), "terms": {name: float(value) for name, value in self.terms.items()}}
