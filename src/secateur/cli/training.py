"""Commands that train a network, and the one that shows beforehand what they would prune."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import torch
import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import MOST_THREADS, require_at_least, require_known, usage
from secateur.cli.flags import Command, DataRoot, Json, KeptIn, named, optional, parse
from secateur.cli.printing import leave_page
from secateur.experiments.compress import Compression
from secateur.experiments.job import Job
from secateur.experiments.rundir import RunDirectory
from secateur.sibling import SiblingConfig, Target, targets
from secateur.train.loop import Observer, Observers, TrainConfig, is_main_process


@dataclass(frozen=True, kw_only=True)
class Training(Command):
    """What every command that trains is told."""

    interrupted: ClassVar[str] = "interrupted; the run is kept: the same command with --resume goes on with it"

    network: Annotated[tyro.conf.Positional[str], named("NETWORK"), Doc("lenet-300-100 or lenet-5")]
    data: Annotated[str, Doc("mnist, fashion-mnist, cifar10, or digits (needs no download)")] = "mnist"
    preset: Annotated[
        str, Doc("settings that the other flags then change: paper, quick, accurate, best or best-augmented")
    ] = "paper"
    seed: Annotated[int, Doc("of the weights, the order of images and everything else random")] = 0
    threads: Annotated[
        int | None, optional("INT"), Doc("CPU threads; a seed and a thread count determine every bit")
    ] = None
    runs: KeptIn = Path("runs")
    data_root: DataRoot = None
    resume: Annotated[bool, Doc("go on with an unfinished run")] = False
    json: Annotated[bool, Doc("print the result as JSON and nothing else")] = False
    tensorboard: Annotated[bool, Doc("write TensorBoard's events into the run's directory")] = False
    sibling: SiblingConfig = field(default_factory=SiblingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def job(self) -> Job:
        """Return the training that was asked for."""
        from secateur.experiments.presets import preset

        start = preset(self.preset, self.network)
        return replace(start, data=self.data, seed=self.seed, sibling=self.sibling, train=self.train)

    def show(self, console: Console, directory: RunDirectory, file: RunDirectory | None = None) -> int:
        """Leave the page of a finished run, and show what came of it."""
        from secateur.report.terminal import print_file, print_run

        if not is_main_process():
            return 0
        leave_page(console, directory)
        if self.json:
            print(json.dumps(directory.read(directory.result) if file is None else file.read(file.file_record)))
            return 0
        print_run(console, directory)
        if file is not None:
            print_file(console, file)
        return 0


@dataclass(frozen=True, kw_only=True)
class Compress(Training):
    """Prune a network, quantise what is left and write it as one small file: the whole pipeline."""

    compression: Compression = field(default_factory=Compression)

    @override
    def __call__(self) -> int:
        from secateur.encode.codecs import choose
        from secateur.experiments.compress import compress

        with usage():
            choose(self.compression.codec)
            self.compression.rules()
        job = self.job()
        with _under_way(self, job) as (console, observer):
            directory, file = compress(
                job, self.compression, self.runs, data_root=self.data_root, resume=self.resume, observer=observer
            )
        return self.show(console, directory, file)


@dataclass(frozen=True, kw_only=True)
class Prune(Training):
    """Train the sibling of a network, cut it, fine-tune what is left, and leave a sparse network with its record."""

    dense: Annotated[bool, Doc("train the dense reference instead: same settings, no thresholds")] = False

    @override
    def __call__(self) -> int:
        from secateur.experiments.job import run

        job = replace(self.job(), method="dense") if self.dense else self.job()
        with _under_way(self, job) as (console, observer):
            directory = run(job, self.runs, data_root=self.data_root, resume=self.resume, observer=observer)
        return self.show(console, directory)


@dataclass(frozen=True, kw_only=True)
class Summary(Command):
    """Show what would be pruned in a network, before training."""

    network: Annotated[
        tyro.conf.Positional[str], named("NETWORK"), Doc("lenet-300-100, lenet-5, alexnet, vgg-16 or resnet-50")
    ]
    json: Json = False
    sibling: SiblingConfig = field(default_factory=SiblingConfig)

    @override
    def __call__(self) -> int:
        from secateur.report.terminal import summary_table

        with usage():
            found = _targets(self.network, self.sibling)
        if self.json:
            tensors = [asdict(target) | {"weights": target.weights} for target in found]
            totals = {key: sum(tensor[key] for tensor in tensors) for key in ("weights", "thresholds")}
            print(json.dumps({**totals, "tensors": tensors}))
        else:
            Console().print(summary_table(found))
        return 0


Trains = TypeVar("Trains", bound=Training)


def parse_on_preset(command: type[Trains], words: list[str]) -> Trains:
    """Parse a command that trains: its preset first, then every flag on top of it."""
    from secateur.experiments.presets import compression_preset, preset

    chosen = parse(command, words)
    with usage():
        require_known(chosen.network, chosen.data)
        require_at_least(0, most=2**63 - 1, seed=chosen.seed)
        require_at_least(1, most=MOST_THREADS, threads=chosen.threads)
        start = preset(chosen.preset, chosen.network)
        settings: dict[str, Any] = {"sibling": start.sibling, "train": start.train}
        if command is Compress:
            settings["compression"] = compression_preset(chosen.preset)
    return parse(command, words, default=replace(chosen, **settings))


@contextmanager
def _under_way(chosen: Training, job: Job) -> Iterator[tuple[Console, Observer]]:
    """Show what will be pruned and then how it goes, on the terminal and, if it was asked for, in TensorBoard."""
    from secateur.report.terminal import Watcher, summary_table

    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    console = Console(stderr=chosen.json)
    if is_main_process() and job.method == "prune":
        console.print(summary_table(_targets(job.network, job.sibling)))
    with Watcher(console) as watcher:
        if not (chosen.tensorboard and is_main_process()):
            yield console, watcher
            return
        from secateur.report.tensorboard import TensorBoard

        with closing(TensorBoard(RunDirectory(chosen.runs / job.name).events)) as board:
            yield console, Observers((watcher, board))


def _targets(network: str, config: SiblingConfig) -> tuple[Target, ...]:
    from secateur import models

    with torch.device("meta"):  # shapes are all it takes
        return targets(models.build(network), config)
