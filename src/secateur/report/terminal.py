"""A run on the terminal: a live line while it trains, tables at the end; plain lines when nobody watches live."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from secateur.experiments.rundir import RunDirectory
from secateur.sibling import Target
from secateur.train.loop import Phase, Record


class Watcher:
    """An observer that shows progress, with the time left, and one line per epoch where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, tuple[float, int]] = {}
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

    def step(self, phase: Phase, done: int, total: int) -> None:
        """Move the bar."""
        now = time.monotonic()
        since, first = self._started.setdefault(phase, (now, done))
        if self._console.is_terminal:
            if phase not in self._tasks:
                self._tasks[phase] = self._progress.add_task(phase, total=total, completed=done, state="")
            self._progress.update(self._tasks[phase], completed=done)
        elif done > first:
            seconds = (now - since) / (done - first) * (total - done)
            self._left = f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"

    def epoch(self, record: Record) -> None:
        """Show what the epoch brought."""
        state = epoch_line(record)
        if self._console.is_terminal and record["phase"] in self._tasks:
            self._progress.update(self._tasks[record["phase"]], state=state)
        else:
            place = f"{record['phase']} {record['epoch']}/{record['epochs']}"
            self._console.print(f"{place:>16}  {state}  {self._left}", highlight=False, soft_wrap=True)

    def network(self, record: Record, model: nn.Module) -> None:
        """Leave the network alone: its numbers are in the record."""


_LAYERS_SHOWN = 4  # thresholds for which a line of 80 columns has room


def epoch_line(record: Record) -> str:
    """Put an epoch in half a line: validation error, ratio, and the mean threshold of every layer, or their range."""
    line = f"error {record['error']:5.2f} %"
    if "thresholds" in record:
        line += f"  {record['ratio']:6.1f}×  t {_thresholds(list(record['thresholds'].values()))}"
    elif record.get("ratio", 1) > 1:
        line += f"  {record['ratio']:6.1f}×"
    if "coded_bytes" in record:
        line += f"  about {record['coded_bytes'] / 1000:.2f} kB"
    return line


def _thresholds(means: list[float]) -> str:
    if len(means) <= _LAYERS_SHOWN:
        return " ".join(f"{t:.3f}" for t in means)
    return f"{min(means):.3f} … {max(means):.3f}"


def summary_table(targets: tuple[Target, ...]) -> Table:
    """Show what will be pruned, before anything is trained."""
    table = Table("tensor", "shape", title="To be pruned", title_justify="left")
    for heading in ("weights", "thresholds", "per threshold", "α"):
        table.add_column(heading, justify="right")
    for target in targets:
        shape = "×".join(map(str, target.shape))
        each = target.weights / target.thresholds
        name = " = ".join(target.names)
        table.add_row(
            name,
            shape,
            f"{target.weights:,}",
            f"{target.thresholds:,}",
            f"{each:,.0f}",
            f"{target.config.alpha:g}",
        )
    weights, thresholds = sum(t.weights for t in targets), sum(t.thresholds for t in targets)
    table.add_row("total", "", f"{weights:,}", f"{thresholds:,}", "", "", style="bold")
    return table


def result_table(result: dict[str, Any]) -> Table:
    """Show where the weights went, layer by layer."""
    network, data = result["job"]["network"], result["job"]["data"]
    table = Table("layer", title=f"{network} on {data}, seed {result['job']['seed']}", title_justify="left")
    for heading in ("weights", "kept", "pruned", "ratio", "threshold"):
        table.add_column(heading, justify="right")
    for layer in result["layers"]:
        thresholds = result.get("thresholds", {}).get(layer["name"], [])
        mean = f"{sum(thresholds) / len(thresholds):.4f}" if thresholds else "–"
        table.add_row(layer["name"], *_kept(layer["weights"], layer["kept"]), mean)
    table.add_row("all prunable weights", *_kept(result["prunable"], result["kept"]), "", style="bold")
    table.add_row("whole model", *_kept(result["parameters"], result["parameters_kept"]), "")
    return table


def _kept(weights: int, kept: int) -> tuple[str, str, str, str]:
    ratio = f"{weights / kept:.1f}×" if kept else "∞"
    return f"{weights:,}", f"{kept:,}", f"{1 - kept / weights:.1%}", ratio


def print_run(console: Console, directory: RunDirectory) -> None:
    """Show a finished run: the table, the errors, the files it left."""
    result = directory.read(directory.result)
    console.print(result_table(result))
    _tell(console, _errors("validation", result["validation"], result["validation_images"]))
    if directory.test.exists():
        test = directory.read(directory.test)
        _tell(console, _errors("test", test["error"], test["test_images"]))
    seconds = sum(result["seconds"].values())
    say(console, f"Trained on {result['training_images']:,} images in {seconds:.0f} s, {result['threads']} thread(s).")
    say(console, f"Files in {directory.path}:")
    for path in sorted(path for path in directory.path.iterdir() if path.is_file()):
        console.print(f"  {path.name:32} {path.stat().st_size:>12,} bytes", highlight=False)
    if directory.page.exists():
        say(console, f"To look at: {directory.page}")
    if not directory.test.exists():
        say(console, f"Next: secateur evaluate {directory.path}")


def print_file(console: Console, directory: RunDirectory) -> None:
    """Show the file that a run was compressed to, and what each step on the way has cost."""
    record = directory.read(directory.file_record)
    words = {
        "pruned": "pruned",
        "quantized": "quantised",
        "trained": "its values trained",
        "decoded": "read back from the file",
    }
    steps = [f"{words[step]} {error:.2f} %" for step, error in record["validation"].items()]
    _tell(console, "Error on validation images: " + "; ".join(steps))
    ratio = record["fp32_bytes"] / record["bytes"]
    say(
        console,
        f"File {directory.packed}, {record['bytes']:,} bytes: 32-bit floats would take {ratio:,.1f} times as many",
    )
    if directory.test.exists():
        test = directory.read(directory.test)
        say(console, f"Error on {test['test_images']:,} test images: {test['error']['decoded']:.2f} %")


def print_evaluation(console: Console, directory: RunDirectory) -> None:
    """Show how a finished run did, without the table that was printed at its end."""
    result, test = directory.read(directory.result), directory.read(directory.test)
    say(console, f"Run {directory.path}")
    _tell(console, _errors("validation", result["validation"], result["validation_images"]))
    _tell(console, _errors("test", test["error"], test["test_images"]))
    weights, kept, _, ratio = _kept(result["prunable"], result["kept"])
    say(console, f"Kept {kept} of {weights} prunable weights: {ratio} fewer")
    say(console, f"Model {directory.model}, {directory.model.stat().st_size:,} bytes")


def say(console: Console, line: str) -> None:
    """Print a line as it is: a path may be long, and its brackets mean nothing."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _tell(console: Console, sentence: str) -> None:
    """Print a sentence in one line, or on a terminal in lines broken between words."""
    console.print(sentence, soft_wrap=not console.is_terminal, highlight=False, markup=False)


def _errors(on: str, errors: dict[str, float], images: int) -> str:
    words = {
        "sibling": "sibling",
        "theta": "cut, survivors θ(w)",
        "raw": "cut, survivors w (θ⁻¹)",
        "final": "finished network",
    }
    parts = [f"{words[key]} {value:.2f} %" for key, value in errors.items()]
    return f"Error on {images:,} {on} images: " + "; ".join(parts)
