"""Objects that follow a training run: told after every step and every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import nn

LogLine: TypeAlias = dict[str, Any]


class Observer(Protocol):
    """Follows training: told after every step and after every epoch."""

    def note(self, text: str) -> None:
        """Take note of something to know before training."""
        ...

    def step(self, stage: str, done: int, total: int) -> None:
        """Take note that `done` of the stage's `total` steps are done."""
        ...

    def epoch(self, line: LogLine) -> None:
        """Take note of an epoch's log line."""
        ...

    def network(self, line: LogLine, model: nn.Module) -> None:
        """Look at the network after an epoch, without changing it."""
        ...


class Silent:
    """An observer that does nothing."""

    def note(self, text: str) -> None:
        """Ignore a note."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Ignore a step."""

    def epoch(self, line: LogLine) -> None:
        """Ignore an epoch."""

    def network(self, line: LogLine, model: nn.Module) -> None:
        """Ignore the network."""


@dataclass(frozen=True)
class Observers:
    """Several observers in the place of one."""

    each: tuple[Observer, ...]

    def note(self, text: str) -> None:
        """Pass a note on to all of them."""
        for observer in self.each:
            observer.note(text)

    def step(self, stage: str, done: int, total: int) -> None:
        """Pass a step on to all of them."""
        for observer in self.each:
            observer.step(stage, done, total)

    def epoch(self, line: LogLine) -> None:
        """Pass an epoch on to all of them."""
        for observer in self.each:
            observer.epoch(line)

    def network(self, line: LogLine, model: nn.Module) -> None:
        """Show all of them the network."""
        for observer in self.each:
            observer.network(line, model)
