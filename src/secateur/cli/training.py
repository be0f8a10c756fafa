"""Commands that train a network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import tyro
from rich.console import Console
from torch import nn
from typing_extensions import Doc, Self, override

from secateur import data, networks
from secateur.cli.complaints import MOST_THREADS, require_at_least, usable_threads, usage
from secateur.cli.flags import (
    Command,
    DataRoot,
    KeptIn,
    allow_imports,
    flags,
    model_of,
    optional,
    parse,
)
from secateur.cli.summary import Network, without_memory
from secateur.cli.words import job_in, likely_network
from secateur.encode.codecs import choose
from secateur.experiments.directory import RunDirectory
from secateur.experiments.input_shape import find_input_shape
from secateur.experiments.presets import preset_names, run_name, settings
from secateur.experiments.reference import needs_training
from secateur.experiments.runner import run
from secateur.job import Coding, InputConfig, Job
from secateur.methods import FewValues, Method, first_methods
from secateur.plain_data import to_plain
from secateur.pretrained import BY_NAME, require_start
from secateur.report.finish import finish, leave_speed
from secateur.report.terminal import Watcher, say, summary_table
from secateur.results import RunError
from secateur.sibling import SiblingConfig, left_out, targets
from secateur.train.observers import Observer, Observers, Silent
from secateur.train.processes import is_main_process
from secateur.train.recipe import Recipe


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(frozen=True, kw_only=True)
class Training(Command):
    """The flags of every command that trains; the settings of the chosen method are added to them."""

    interrupted: ClassVar[str] = "interrupted; the run is kept: the same command with --resume continues it"

    network: Network
    data: Annotated[
        str,
        Doc(
            f"{_listed(data.names())}, a folder with a folder of pictures per class, or package.module:callable, which "
            "returns training and validation data, and test data if there are any"
        ),
    ] = "mnist"
    preset: Annotated[
        str,
        Doc(
            f"settings that the other flags then change: {_listed(preset_names())}; general is the default for "
            "all networks but the LeNets"
        ),
    ] = "paper"
    method: Annotated[
        str | None, optional("STR"), Doc(f"{_listed(first_methods())}, instead of the preset's method")
    ] = None
    from_: Annotated[
        str,
        optional("PATH", flag="from"),
        Doc("weights to start from: pretrained, a .safetensors or .cut file, or a run; random ones if not given"),
    ] = ""
    seed: Annotated[int, Doc("seed of the initial weights, the order of images and all other randomness")] = 0
    threads: Annotated[
        int | None, optional("INT"), Doc("CPU threads; a seed and a thread count determine every bit")
    ] = None
    reference: Annotated[
        Literal["published", "train"],
        Doc("the dense network to compare with: the preset's published one if it exists, or one trained first"),
    ] = "published"
    runs: KeptIn = Path("runs")
    data_root: DataRoot = None
    resume: Annotated[bool, Doc("continue an unfinished run")] = False
    json: Annotated[bool, Doc("print the result as JSON and nothing else")] = False
    verbose: Annotated[bool, Doc("print a table of all layers as well")] = False
    tensorboard: Annotated[bool, Doc("write TensorBoard's events into the run's directory")] = False
    recipe: Recipe = field(default_factory=Recipe)
    inputs: InputConfig = field(default_factory=InputConfig)
    coding: Coding = field(default_factory=Coding)

    @override
    @classmethod
    def parsed(cls, words: list[str]) -> Self:
        """Parse the flags on top of the preset's settings, with those of the chosen method among them."""
        chosen = cls._parsed(words, likely_network(words))
        with usage():
            networks.require_known(chosen.network)
        chosen = cls._parsed(words, chosen.network)  # a name among the words may have been the value of a flag
        with usage():
            if not networks.is_import_path(chosen.data):
                data.require_known(chosen.data)
            if chosen.from_:
                require_start(_weights(chosen.from_), chosen.network)
            require_at_least(0, most=2**63 - 1, seed=chosen.seed)
            require_at_least(1, most=MOST_THREADS, threads=chosen.threads)
            allow_imports(chosen.job().modules)
            if networks.is_import_path(chosen.network):
                shape = find_input_shape(chosen.job(), chosen.job().modules)
                chosen = replace(chosen, inputs=replace(chosen.inputs, input_shape=shape))
            network = _network(chosen.job())
            if not networks.is_import_path(chosen.data):
                data.require_crop(chosen.data, chosen.inputs.crop)
            chosen.job().methods[0].check(network)
        return chosen

    @classmethod
    def _parsed(cls, words: list[str], network: str | None) -> Self:
        """Parse the flags with the defaults that the preset has for a network, or for any if that is not known yet."""
        with usage():
            start = job_in(words, network)
            kind = type(start.methods[0])
            entry = ("settings", kind, field(default_factory=kind))
            command = make_dataclass(cls.__name__, [entry], bases=(cls,), frozen=True, kw_only=True)
            command.__doc__ = cls.__doc__
            twice = [flag for flag, count in Counter(flags(command)).items() if count > 1]
            if twice:
                raise ValueError(f'method "{kind.name}" has a setting {twice[0]}, which is another flag: rename it')
        defaults = cls.defaults(start) | ({} if network else {"network": tyro.MISSING})
        chosen: Self = parse(command, words, default=command(**defaults))
        return chosen

    @classmethod
    def defaults(cls, start: Job) -> dict[str, Any]:
        """Return the flags that a preset sets."""
        return {
            "network": start.network,
            "preset": start.preset,
            "settings": start.methods[0],
            "recipe": start.recipe,
            "inputs": start.inputs,
            "coding": start.coding,
        }

    def job(self) -> Job:
        """Return the training that was asked for."""
        choose(self.coding.codec)
        start = _weights(self.from_)
        method: Method = self.settings  # type: ignore[attr-defined]  # a field that `parsed` adds
        return Job(
            network=self.network,
            data=self.data if self._is_named else str(Path(self.data).resolve()),
            start=start if start in ("", BY_NAME) else str(Path(start).resolve()),
            preset=self.preset,
            methods=(method,),
            recipe=self.recipe,
            inputs=self.inputs,
            coding=self.coding,
            seed=self.seed,
        )

    @property
    def _is_named(self) -> bool:
        return self.data in data.DATA_SETS or networks.is_import_path(self.data)

    @override
    def __call__(self) -> int:
        if (threads := usable_threads(self.threads)) is not None:
            torch.set_num_threads(threads)
        job, console = self.job(), Console(stderr=self.json)
        directory = RunDirectory(self.runs / run_name(job))
        trains_reference = self.reference == "train" or needs_training(job, self.runs)
        if directory.is_finished:
            self._say(console, f"{directory.path} is finished already: it was not trained again")
        else:
            self._announce(console, job)
        if trains_reference and not job.is_dense:
            self._train_reference(console, job)
        directory = self._run(console, job)
        if not is_main_process():
            return 0
        directory.result.touch()  # the newest run is the one that was asked for, not its reference
        leave_speed(console, directory, trust=job.modules)
        finish(console, directory, verbose=self.verbose and not self.json, silent=self.json)
        if self.json:
            print(json.dumps(to_plain(directory.read_result())))
        return 0

    def _train_reference(self, console: Console, job: Job) -> None:
        """Train the dense network to compare with; if that fails, the run itself may still succeed."""
        directory = RunDirectory(self.runs / run_name(job.reference()))
        if not directory.is_finished:
            self._say(console, f"First the dense network to compare with: {directory.path}")
        try:
            self._run(console, job.reference())
        except (RunError, FloatingPointError) as error:
            self._say(console, f"There is no dense network to compare with: {error}")

    def _run(self, console: Console, job: Job) -> RunDirectory:
        directory = RunDirectory(self.runs / run_name(job))
        with _observed(console, directory, tensorboard=self.tensorboard) as observer:
            return run(
                job,
                self.runs,
                data_root=self.data_root,
                resume=self.resume,
                observer=observer,
                trust=job.modules,  # which the user has typed
            )

    def _say(self, console: Console, line: str) -> None:
        if is_main_process():
            say(console, line)

    def _announce(self, console: Console, job: Job) -> None:
        """Show before training which tensors get thresholds, if the method has any."""
        if not is_main_process():
            return
        model = _network(job)
        settings = [getattr(job.methods[0], entry.name) for entry in fields(job.methods[0])]
        for config in (each for each in settings if isinstance(each, SiblingConfig)):
            console.print(summary_table(targets(model, config), left_out(model, config)))


@dataclass(frozen=True, kw_only=True)
class Prune(Training):
    """Train and prune a network, without quantising its weights."""


@dataclass(frozen=True, kw_only=True)
class Compress(Training):
    """Prune a network, quantise what is left and write it as one small file."""

    quantize: Annotated[bool, Doc("let layers share a few values")] = True
    few_values: FewValues = field(default_factory=FewValues)

    @override
    @classmethod
    def defaults(cls, start: Job) -> dict[str, Any]:
        """Return the flags that a preset sets, those of few values included."""
        return {**super().defaults(start), "few_values": settings(start.preset, start.network).few_values}

    @override
    def job(self) -> Job:
        """Return the whole pipeline that was asked for."""
        pruning = super().job()
        is_done = pruning.methods[0].leaves_few_values or not self.quantize
        return pruning if is_done else replace(pruning, methods=(*pruning.methods, self.few_values))


def _weights(given: str) -> str:
    """Return what a run starts from as typed; the directory of another run stands for its network."""
    return given if given in ("", BY_NAME) else str(model_of(Path(given)))


def _network(job: Job) -> nn.Module:
    """Return the network of a job, for the classes and the size of its data; one that fits none raises.

    One of ours takes no memory. What is in a folder is not known before it is read: a network of ours is given its own
    number of classes.
    """
    entry, trust = data.DATA_SETS.get(job.data), networks.modules_of(job.network)
    classes = None if entry is None else len(entry.classes)
    if entry is None and trust and not networks.is_import_path(job.data):
        classes = len(data.classes_of(Path(job.data)))
    shape = job.inputs.input_shape if entry is None else find_input_shape(job, job.modules)
    with without_memory(job.network):
        return networks.build(job.network, seed=job.seed, classes=classes, input_shape=shape, trust=trust)


@contextmanager
def _observed(console: Console, directory: RunDirectory, *, tensorboard: bool) -> Iterator[Observer]:
    """Show progress on the terminal and, if it was asked for, in TensorBoard."""
    if not is_main_process():
        yield Silent()
        return
    with Watcher(console) as watcher:
        if not tensorboard:
            yield watcher
            return
        from secateur.report.tensorboard import TensorBoard

        with closing(TensorBoard(directory.events)) as board:
            yield Observers((watcher, board))
