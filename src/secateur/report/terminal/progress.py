"""A run on the terminal while it trains: a progress bar, or one line per epoch where the output is not a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from secateur.results import ERROR, figure
from secateur.train.observers import LogLine

_LAYERS_SHOWN = 4  # thresholds that fit in a line of 80 columns
_LONGEST_NAME = 16  # of a stage, in the same line


class Watcher:
    """An observer that shows progress with the time left; without a terminal it prints one line per epoch."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, tuple[float, int]] = {}
        self._stage = ""
        self._left = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {}  # type: ignore[var-annotated]  # rich's TaskID, which it does not export

    def __enter__(self) -> Watcher:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, stage: str, done: int, total: int) -> None:
        """Move the bar of a stage."""
        now = time.monotonic()
        since, first = self._started.setdefault(stage, (now, done))
        self._stage = stage
        if self._console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._progress.add_task(_shortened(stage), total=total, completed=done, state="")
            self._progress.update(self._tasks[stage], completed=done)
        elif done > first:
            seconds = (now - since) / (done - first) * (total - done)
            self._left = f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"

    def epoch(self, line: LogLine) -> None:
        """Show the error and the ratio after an epoch."""
        state, stage = epoch_line(line), self._stage or str(line["phase"])
        if self._console.is_terminal and stage in self._tasks:
            self._progress.update(self._tasks[stage], state=state)
        else:
            place = f"{stage} {line['epoch']}/{line['epochs']}"
            self._console.print(f"{place:>16}  {state}  {self._left}", highlight=False, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print what is to be known before training."""
        self._console.print(f"Note: {text}", highlight=False, markup=False, soft_wrap=True)

    def network(self, line: LogLine, model: nn.Module) -> None:
        """Ignore the network: its numbers are in the log line."""


def _shortened(stage: str) -> str:
    """Shorten the middle of a long name: its end tells the rounds of a method apart."""
    if len(stage) <= _LONGEST_NAME:
        return stage
    half = (_LONGEST_NAME - 1) // 2
    return f"{stage[: _LONGEST_NAME - 1 - half]}…{stage[-half:]}"


def epoch_line(line: LogLine) -> str:
    """Write an epoch in half a line: error or loss, ratio, and the mean threshold of every layer, or their range."""
    measure, target = line.get("measure", ERROR), line.get("target", {})
    text = f"error {line['error']:5.2f} %" if measure == ERROR else f"{measure} {figure(line['error'], measure)}"
    if "thresholds" in line or line.get("ratio", 1) > 1:
        text += f"  {line['ratio']:6.1f}×"
    if "ratio" in target:
        text += f" of {target['ratio']:.4g}×"
    if "thresholds" in line:
        text += f"  t {_thresholds(list(line['thresholds'].values()))}"
    if "coded_bytes" in line:
        text += f"  about {line['coded_bytes'] / 1000:.2f} kB"
    if "bytes" in target:
        text += f" of {target['bytes'] / 1000:.2f} kB"
    return text


def _thresholds(means: list[float]) -> str:
    if len(means) <= _LAYERS_SHOWN:
        return " ".join(f"{t:.3f}" for t in means)
    return f"{min(means):.3f} … {max(means):.3f}"
