"""A run in TensorBoard: error, loss, ratio and thresholds after every epoch, and the weights as histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateur.parametrization import readings
from secateur.threshold import LearnedThreshold
from secateur.train.loop import Phase, Record


class TensorBoard:
    """An observer that writes events, each phase as a run of its own beside the others; `close` it at the end."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError("--tensorboard needs tensorboard: pip install 'secateur[tensorboard]'") from error
        self._new: Any = SummaryWriter
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def step(self, phase: Phase, done: int, total: int) -> None:
        """Ignore a step: an epoch is fine enough."""

    def epoch(self, record: Record) -> None:
        """Write every number of an epoch's log line, those of layers under the name of what they measure."""
        writer, at = self._writer(record), record["epoch"]
        for name, value in record.items():
            if isinstance(value, dict):
                for layer, number in value.items():
                    writer.add_scalar(f"{name}/{layer}", number, at)
            elif isinstance(value, int | float) and name not in ("epoch", "epochs"):
                writer.add_scalar(name, value, at)
        writer.flush()

    def network(self, record: Record, model: nn.Module) -> None:
        """Write histograms of the weights: as they are stored, and as the layers read them."""
        writer, at = self._writer(record), record["epoch"]
        with torch.no_grad():
            for name, raw, read in _weights(model):
                writer.add_histogram(f"weights/{name}", raw, at)
                if read is not None:
                    writer.add_histogram(f"weights as read/{name}", read, at)
        writer.flush()

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, record: Record) -> Any:
        """Return the writer of a phase; what an interrupted run wrote from this epoch on is repeated, so forgotten."""
        phase = record["phase"]
        if phase not in self._writers:
            self._writers[phase] = self._new(str(self._folder / phase), purge_step=record["epoch"])
        return self._writers[phase]


def _weights(model: nn.Module) -> list[tuple[str, Tensor, Tensor | None]]:
    """Return the weights of a network, stored and, in a sibling, as read; pieces that a sharding holds are left out."""
    found: list[tuple[str, Tensor, Tensor | None]] = []
    learned = list(readings(model, LearnedThreshold))
    for reading in learned:
        if type(reading.original) is nn.Parameter:
            found.append((reading.full_name, reading.original, reading.chain()))
    if not learned:
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and type(parameter) is nn.Parameter:
                found.append((name.replace("parametrizations.", "").removesuffix(".original"), parameter, None))
    return found
