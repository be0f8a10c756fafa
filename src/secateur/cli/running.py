"""Commands that run a network: on pictures, and to time it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import MOST_THREADS, complain, require_at_least, usable_threads, usage
from secateur.cli.flags import Classes, Command, InputShape, Json, NewestOf, Trust, allow_imports, file_of, optional
from secateur.experiments.directory import RunDirectory, newest_finished
from secateur.nearest import require_one_of
from secateur.report.finish import leave_page
from secateur.report.terminal import say

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Predict(Command):
    """Classify pictures with the network in a .cut file."""

    paths: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        optional("[FILE_OR_RUN] PICTURE ..."),
        Doc(
            "a .cut file or the directory of a run (none: the newest finished run), then pictures, folders of "
            "pictures, or - for one on standard input; each is resized to the network's input"
        ),
    ]
    top: Annotated[int, Doc("how many classes to name, the likeliest first")] = 3
    invert: Annotated[
        bool, Doc("for ink on paper: MNIST is white on black, and a network trained on it expects that")
    ] = False
    batch: Annotated[int, Doc("pictures that are classified at a time")] = 64
    runs: NewestOf = Path("runs")
    trust: Trust = ()
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.run.predict import predict

        with usage():
            file, pictures = self._network_and_pictures()
            if not pictures:
                raise ValueError("no picture was given: secateur predict --help")
            require_at_least(1, top=self.top, batch=self.batch)
        trust = allow_imports(self.trust)
        answers = predict(file, pictures, top=self.top, invert=self.invert, batch=self.batch, trust=trust)
        failures = 0
        for index, answer in enumerate(answers):
            if self.json:
                # A list that can be read while it grows: one picture a line.
                print(("[" if index == 0 else ",\n ") + json.dumps(asdict(answer)), end="")
            elif answer.failure is None:
                print(answer)
            if answer.failure is not None:
                failures += 1
                complain(answer.failure, 1)
        if self.json:
            print("]")
        return 1 if failures else 0

    def _network_and_pictures(self) -> tuple[Path, tuple[Path, ...]]:
        """Split the arguments into the network's file, which is optional, and the pictures."""
        first, *others = self.paths or (Path(),)
        is_network = first.suffix == ".cut" or RunDirectory(first).job.exists()
        if is_network and self.paths:
            return file_of(first, self.runs), tuple(others)
        return file_of(None, self.runs), self.paths


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Time a network sparse and dense, layer by layer, and under other engines."""

    source: Annotated[
        tyro.conf.Positional[str | None],
        optional("[NET_OR_FILE_OR_RUN]"),
        Doc(
            "a .cut file, the directory of a run (none: the newest finished one), or a network by name or as "
            "package.module:callable, whose weights are then random"
        ),
    ] = None
    batch: Annotated[tuple[int, ...], Doc("batch sizes")] = (1,)
    threads: Annotated[int | None, optional("INT"), Doc("CPU threads, instead of torch's own choice")] = None
    repeats: Annotated[int, Doc("turns of each engine")] = 50
    density: Annotated[
        float | None, optional("FLOAT"), Doc("share of random weights that is kept; 0.1 if not given")
    ] = None
    engines: Annotated[
        tuple[str, ...], Doc("dense engines: eager (always included), onnxruntime, openvino, compile (slow to start)")
    ] = ("eager", "onnxruntime", "openvino")
    hardware: Annotated[
        Literal["eie"] | None,
        optional("eie"),
        Doc("instead of timing, model the linear layers on this accelerator: cycles, load balance and energy"),
    ] = None
    classes: Classes = None
    input_shape: InputShape = None
    run: Annotated[
        Path | None,
        optional("PATH"),
        Doc("the run that a file belongs to: the result is written there, as speed.json"),
    ] = None
    runs: NewestOf = Path("runs")
    trust: Trust = ()
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.experiments.subject import named_modules, subject, write_speed
        from secateur.measure import dense_bytes
        from secateur.report.terminal.speed import print_batch, print_limits, print_subject
        from secateur.run.bench import bench

        source = str(newest_finished(self.runs).path) if self.source is None else self.source
        self._require_sense(source)
        what = subject(
            source,
            density=self.density,
            run=self.run,
            classes=self.classes,
            input_shape=self.input_shape,
            trust=allow_imports((*self.trust, *named_modules(source))),
        )
        console = Console(stderr=self.json)
        if self.hardware is not None:
            return self._model(what.model, what.sample_shape)
        if not self.json:
            print_subject(console, what.source, what.network, what.density, self.repeats)
        weight = dense_bytes(what.model)
        found = bench(
            what.model,
            what.sample_shape,
            network=what.network,
            density=what.density,
            batches=self.batch,
            threads=usable_threads(self.threads),
            repeats=self.repeats,
            engines=self.engines,
            observe=None if self.json else lambda speed: print_batch(console, speed, weight),
        )
        if self.json:
            print(found.to_json())
        else:
            print_limits(console, found)
        if what.directory is not None:
            say(console, f"wrote {write_speed(what.directory, found)}")
            if what.directory.page.exists():  # it has no speeds yet, or older ones
                leave_page(console, what.directory)
        return 0

    def _model(self, model: nn.Module, sample_shape: tuple[int, ...]) -> int:
        """Show what the linear layers of a network would take on an accelerator."""
        import torch

        from secateur.report.terminal.accelerator import cycles_json, print_cycles
        from secateur.run.bench.eie import network_cycles

        torch.manual_seed(0)
        found = network_cycles(model, torch.randn(1, *sample_shape))
        if self.json:
            print(cycles_json(found))
        else:
            print_cycles(Console(), found)
        return 0

    def _require_sense(self, source: str) -> None:
        from secateur.experiments.subject import require_subject
        from secateur.measure.engines import ENGINES
        from secateur.run.bench import LEAST_REPEATS

        with usage():
            require_subject(
                source, density=self.density, run=self.run, classes=self.classes, input_shape=self.input_shape
            )
            require_at_least(1, classes=self.classes)
            if not self.batch:
                raise ValueError("batch needs at least one size, got none")
            require_at_least(1, batch=min(self.batch))
            require_at_least(1, most=MOST_THREADS, threads=self.threads)
            require_at_least(LEAST_REPEATS, repeats=self.repeats)
            for engine in self.engines:
                require_one_of("engine", engine, ENGINES)
