"""A run in TensorBoard: error, loss, ratio and thresholds after every epoch, and the weights as histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateur.functions.threshold import LearnedThreshold
from secateur.train.observers import LogLine
from secateur.weights.tensors import parameters


class TensorBoard:
    """An observer that writes events, each stage as a run of its own; `close` it at the end."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError("--tensorboard needs tensorboard: pip install 'secateur[tensorboard]'") from error
        self._new: Any = SummaryWriter
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._stage = ""

    def note(self, text: str) -> None:
        """Ignore a note: it is for the terminal."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Note which stage is being trained; numbers are written once per epoch."""
        self._stage = stage

    def epoch(self, line: LogLine) -> None:
        """Write every number of an epoch's log line, those of layers under the name of what they measure."""
        writer, at = self._writer(line), line["epoch"]
        for name, value in line.items():
            if isinstance(value, dict):
                for layer, number in value.items():
                    writer.add_scalar(f"{name}/{layer}", number, at)
            elif isinstance(value, int | float) and name not in ("epoch", "epochs"):
                writer.add_scalar(name, value, at)
        writer.flush()

    def network(self, line: LogLine, model: nn.Module) -> None:
        """Write histograms of the weights: as they are stored, and as the layers read them."""
        writer, at = self._writer(line), line["epoch"]
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

    def _writer(self, line: LogLine) -> Any:
        """Return the writer of a stage; events that an interrupted run wrote from this epoch on are discarded."""
        stage = self._stage or str(line["phase"])
        if stage not in self._writers:
            self._writers[stage] = self._new(str(self._folder / stage), purge_step=line["epoch"])
        return self._writers[stage]


def _weights(model: nn.Module) -> list[tuple[str, Tensor, Tensor | None]]:
    """Return the weights of a network, stored and, in a sibling, as read; pieces that a sharding holds are left out."""
    everything = [tensor for tensor in parameters(model) if type(tensor.stored) is nn.Parameter]
    learned = [tensor for tensor in everything if tensor.has(LearnedThreshold)]
    if learned:
        return [(name, tensor.stored, tensor.read()) for tensor in learned for name in tensor.names]
    return [(tensor.name, tensor.stored, None) for tensor in everything if tensor.stored.dim() >= 2]
