"""Commands that run a network: on pictures, and against the clock."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import MOST_THREADS, complain, require_at_least, usage
from secateur.cli.flags import Command, Json, named, optional
from secateur.cli.printing import leave_page
from secateur.nearest import require_one_of
from secateur.report.terminal import say


@dataclass(frozen=True, kw_only=True)
class Predict(Command):
    """Say what pictures show, by the network in a .cut file."""

    file: Annotated[tyro.conf.Positional[Path], named("FILE.cut"), Doc("the network")]
    pictures: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        optional("PICTURE ..."),
        Doc("pictures, folders of pictures, or - for one on standard input; each is resized to the network's input"),
    ]
    top: Annotated[int, Doc("how many classes to name, the likeliest first")] = 3
    invert: Annotated[
        bool, Doc("for ink on paper: MNIST is white on black, and a network trained on it expects that")
    ] = False
    batch: Annotated[int, Doc("pictures that are answered at a time")] = 64
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.run.predict import predict

        with usage():
            if not self.pictures:
                raise ValueError("there is no picture to look at: secateur predict --help")
            require_at_least(1, top=self.top, batch=self.batch)
        answers = predict(self.file, self.pictures, top=self.top, invert=self.invert, batch=self.batch)
        failures = 0
        for index, answer in enumerate(answers):
            if self.json:
                # A list that can be read while it grows: one picture a line.
                print(("[" if index == 0 else ",\n ") + json.dumps(asdict(answer), ensure_ascii=False), end="")
            elif answer.failure is None:
                print(answer)
            if answer.failure is not None:
                failures += 1
                complain(answer.failure, 1)
        if self.json:
            print("]")
        return 1 if failures else 0


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Time a network sparse and dense, layer by layer, beside other engines and what this machine allows."""

    source: Annotated[
        tyro.conf.Positional[str],
        named("NET_OR_FILE"),
        Doc("a .cut file, the directory of a run, or a network by name, whose weights are then random"),
    ]
    batch: Annotated[tuple[int, ...], Doc("batch sizes")] = (1,)
    threads: Annotated[int | None, optional("INT"), Doc("CPU threads, instead of torch's own choice")] = None
    repeats: Annotated[int, Doc("turns of each rival")] = 50
    density: Annotated[
        float | None, optional("FLOAT"), Doc("share of random weights that is kept; 0.1 if not given")
    ] = None
    engines: Annotated[
        tuple[str, ...], Doc("dense rivals: eager (always there), onnxruntime, compile (slow to start)")
    ] = ("eager", "onnxruntime")
    run: Annotated[
        Path | None,
        optional("PATH"),
        Doc("the run that a file belongs to: the result is written there, as speed.json"),
    ] = None
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.experiments.speed import subject, write_speed
        from secateur.measure import dense_bytes
        from secateur.report.speed import print_batch, print_limits, print_subject
        from secateur.run.bench import bench

        self._require_sense()
        what = subject(self.source, density=self.density, run=self.run)
        console = Console(stderr=self.json)
        if not self.json:
            print_subject(console, what.source, what.network, what.density, self.repeats)
        weight = dense_bytes(what.model)
        found = bench(
            what.model,
            what.sample_shape,
            network=what.network,
            density=what.density,
            batches=self.batch,
            threads=self.threads,
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
            if what.directory.page.exists():  # it knows of no speed, or of an older one
                leave_page(console, what.directory)
        return 0

    def _require_sense(self) -> None:
        from secateur.experiments.speed import require_subject
        from secateur.measure.engines import ENGINES
        from secateur.run.bench import LEAST_REPEATS

        with usage():
            require_subject(self.source, density=self.density, run=self.run)
            if not self.batch:
                raise ValueError("batch needs at least one size, got none")
            require_at_least(1, batch=min(self.batch))
            require_at_least(1, most=MOST_THREADS, threads=self.threads)
            require_at_least(LEAST_REPEATS, repeats=self.repeats)
            for engine in self.engines:
                require_one_of("engine", engine, ENGINES)
