"""The command line: parsing only, each command is one call into the library."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar, cast

import torch
import tyro
from rich.console import Console
from typing_extensions import Doc

from secateur.experiments.compress import Compression
from secateur.experiments.job import Job
from secateur.experiments.rundir import RunDirectory, RunError
from secateur.nearest import require_one_of
from secateur.sibling import SiblingConfig, targets
from secateur.train.loop import Observer, Observers, TrainConfig, is_main_process

Command = TypeVar("Command")


def _named(placeholder: str) -> Any:
    """Say what a positional argument is called in the help."""
    return tyro.conf.arg(metavar=placeholder)


def _optional(placeholder: str) -> Any:
    """Say what an argument is called in the help whose text says what happens without it."""
    return tyro.conf.arg(metavar=placeholder, help_behavior_hint="")


@dataclass(frozen=True, kw_only=True)
class _Training:
    """What every command that trains is told."""

    network: Annotated[tyro.conf.Positional[str], _named("NETWORK"), Doc("lenet-300-100 or lenet-5")]
    data: Annotated[str, Doc("mnist, fashion-mnist, cifar10, or digits (needs no download)")] = "mnist"
    preset: Annotated[
        str, Doc("settings that the other flags then change: paper, quick, accurate, best or best-augmented")
    ] = "paper"
    seed: Annotated[int, Doc("of the weights, the order of images and everything else random")] = 0
    threads: Annotated[
        int | None, _optional("INT"), Doc("CPU threads; a seed and a thread count determine every bit")
    ] = None
    runs: Annotated[Path, Doc("where runs are kept")] = Path("runs")
    data_root: Annotated[
        Path | None, _optional("PATH"), Doc("where data sets are kept, instead of the user's cache")
    ] = None
    resume: Annotated[bool, Doc("go on with an unfinished run")] = False
    json: Annotated[bool, Doc("print the result as JSON and nothing else")] = False
    tensorboard: Annotated[bool, Doc("write TensorBoard's events into the run's directory")] = False
    sibling: SiblingConfig = field(default_factory=SiblingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


@dataclass(frozen=True, kw_only=True)
class Compress(_Training):
    """Prune a network, quantise what is left and write it as one small file: the whole pipeline."""

    compression: Compression = field(default_factory=Compression)


@dataclass(frozen=True, kw_only=True)
class Prune(_Training):
    """Train the sibling of a network, cut it, fine-tune what is left, and leave a sparse network with its record."""

    dense: Annotated[bool, Doc("train the dense reference instead: same settings, no thresholds")] = False


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Show what would be pruned in a network, before training."""

    network: Annotated[
        tyro.conf.Positional[str], _named("NETWORK"), Doc("lenet-300-100, lenet-5, alexnet, vgg-16 or resnet-50")
    ]
    json: Annotated[bool, Doc("print JSON and nothing else")] = False
    sibling: SiblingConfig = field(default_factory=SiblingConfig)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Read the test set, once, and judge a finished run by it."""

    run: Annotated[
        tyro.conf.Positional[Path | None],
        _optional("[RUN]"),
        Doc("the directory of a finished run, or else the newest one"),
    ] = None
    runs: Annotated[Path, Doc("where the newest run is looked for")] = Path("runs")
    data_root: Annotated[
        Path | None, _optional("PATH"), Doc("where data sets are kept, instead of the user's cache")
    ] = None
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Show the page of a run in the browser, on this machine only, and keep it up to date while the run goes on."""

    run: Annotated[
        tyro.conf.Positional[Path | None], _optional("[RUN]"), Doc("the directory of a run, or else the newest one")
    ] = None
    runs: Annotated[Path, Doc("where the newest run is looked for")] = Path("runs")
    port: Annotated[int, Doc("where to listen on 127.0.0.1; 0: any port that is free")] = 8765


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Run what a table or figure of the paper needs and is not in the results yet, and show it."""

    what: Annotated[
        tyro.conf.Positional[str],
        _named("WHAT"),
        Doc(
            "table1, table2, files, sensitivity, decay, rival (Deep Compression), search: how epochs were chosen, or "
            "figure1, figure2, figure3"
        ),
    ]
    networks: Annotated[tuple[str, ...], Doc("which rows")] = ("lenet-300-100", "lenet-5")
    preset: Annotated[str, Doc("the settings to run")] = "paper"
    seeds: Annotated[int, Doc("seeds 0 to this, exclusive; 0: show what is there")] = 0
    workers: Annotated[int, Doc("runs at a time, one thread each; 1: in this process")] = 2
    results: Annotated[Path, Doc("where published results are kept")] = Path("results")
    pictures: Annotated[Path, Doc("where figures are drawn, as SVG and PNG")] = Path("docs/figures")
    runs: Annotated[Path, Doc("where runs are kept")] = Path("runs")
    data_root: Annotated[
        Path | None, _optional("PATH"), Doc("where data sets are kept, instead of the user's cache")
    ] = None
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write a page to look at, one HTML file: of a run, or of several side by side."""

    run: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        _optional("[RUN ...]"),
        Doc("directories of runs, finished or not; none: the newest finished one"),
    ] = ()
    out: Annotated[
        Path | None,
        _optional("PATH"),
        Doc("the file to write, instead of report.html in the run's directory, or here for several"),
    ] = None
    runs: Annotated[Path, Doc("where the newest run is looked for")] = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Write the tensors of a safetensors file to a .cut file, every bit of them, as small as they get."""

    source: Annotated[tyro.conf.Positional[Path], _named("MODEL.safetensors"), Doc("a plain model, pruned or not")]
    target: Annotated[tyro.conf.Positional[Path], _named("OUT.cut"), Doc("the file to write")]
    codec: Annotated[str, Doc("raw, huffman, rans, context, or the smallest for each tensor")] = "smallest"


@dataclass(frozen=True, kw_only=True)
class Unpack:
    """Write the tensors of a .cut file to a safetensors file."""

    source: Annotated[tyro.conf.Positional[Path], _named("IN.cut"), Doc("the file to read")]
    target: Annotated[tyro.conf.Positional[Path], _named("OUT.safetensors"), Doc("the file to write")]
    max_gb: Annotated[float, Doc("refuse a file whose tensors take more memory than this")] = 4.0


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Show what a .cut file spends on each tensor."""

    file: Annotated[tyro.conf.Positional[Path], _named("FILE.cut"), Doc("the file to read")]
    max_gb: Annotated[float, Doc("refuse a file whose tensors take more memory than this")] = 4.0
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Decode a .cut file and check every bit, against the original and on test images if these are given."""

    file: Annotated[tyro.conf.Positional[Path], _named("FILE.cut"), Doc("the file to read")]
    against: Annotated[Path | None, _optional("PATH"), Doc("the safetensors file it was made from")] = None
    data: Annotated[
        str | None, _optional("STR"), Doc("count errors on its test images: mnist, fashion-mnist, cifar10, digits")
    ] = None
    data_root: Annotated[
        Path | None, _optional("PATH"), Doc("where data sets are kept, instead of the user's cache")
    ] = None
    max_gb: Annotated[float, Doc("refuse a file whose tensors take more memory than this")] = 4.0
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Weigh the same weights in every form: dense, compressed, sparse, by each codec, and their entropy."""

    source: Annotated[tyro.conf.Positional[Path], _named("MODEL.safetensors"), Doc("a plain model, pruned or not")]
    nncodec: Annotated[
        Path | None, _optional("PATH"), Doc("a Python interpreter with NNCodec, to weigh it as well")
    ] = None
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Say what pictures show, by the network in a .cut file."""

    file: Annotated[tyro.conf.Positional[Path], _named("FILE.cut"), Doc("the network")]
    pictures: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        _optional("PICTURE ..."),
        Doc("pictures, folders of pictures, or - for one on standard input; each is resized to the network's input"),
    ]
    top: Annotated[int, Doc("how many classes to name, the likeliest first")] = 3
    invert: Annotated[
        bool, Doc("for ink on paper: MNIST is white on black, and a network trained on it expects that")
    ] = False
    batch: Annotated[int, Doc("pictures that are answered at a time")] = 64
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Time a network sparse and dense, layer by layer, beside other engines and what this machine allows."""

    source: Annotated[
        tyro.conf.Positional[str],
        _named("NET_OR_FILE"),
        Doc("a .cut file, the directory of a run, or a network by name, whose weights are then random"),
    ]
    batch: Annotated[tuple[int, ...], Doc("batch sizes")] = (1,)
    threads: Annotated[int | None, _optional("INT"), Doc("CPU threads, instead of torch's own choice")] = None
    repeats: Annotated[int, Doc("turns of each rival")] = 50
    density: Annotated[
        float | None, _optional("FLOAT"), Doc("share of random weights that is kept; 0.1 if not given")
    ] = None
    engines: Annotated[
        tuple[str, ...], Doc("dense rivals: eager (always there), onnxruntime, compile (slow to start)")
    ] = (
        "eager",
        "onnxruntime",
    )
    run: Annotated[
        Path | None,
        _optional("PATH"),
        Doc("the run that a file belongs to: the result is written there, as speed.json"),
    ] = None
    json: Annotated[bool, Doc("print JSON and nothing else")] = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for a failure, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        _print_commands()
        return 0 if words else 2
    if words[0] == "--version":
        from secateur.experiments.job import versions

        print(f"secateur {versions()['secateur']}")
        return 0
    try:
        with _Usage():
            require_one_of("command", words[0], tuple(_COMMANDS))
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = _COMMANDS[words[0]](words[1:])
            sys.stdout.flush()  # what cannot be written is to be known here
            return code
    except _UsageError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain(_INTERRUPTED.get(words[0], "interrupted"), 130)
    except BrokenPipeError:  # whoever reads has seen enough, as in `secateur inspect FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python says so once more when it ends
        return 1
    except Exception as error:  # the outermost frame: one line for the user, the trace on request
        if debug:
            traceback.print_exc()
        return _complain(_sentence(error), 1)


class _UsageError(Exception):
    """What the user typed cannot be carried out as it is."""


def _prune(words: list[str]) -> int:
    from secateur.experiments.job import run
    from secateur.report.terminal import Watcher, print_run

    chosen, job = _job(Prune, words)
    if chosen.dense:
        job = replace(job, method="dense")
    console = _console_with_summary(chosen.json, job)
    with Watcher(console) as watcher, _observing(chosen, job, watcher) as observer:
        directory = run(job, chosen.runs, data_root=chosen.data_root, resume=chosen.resume, observer=observer)
    if not is_main_process():
        return 0
    _leave_page(console, directory)
    if chosen.json:
        print(json.dumps(directory.read(directory.result)))
    else:
        print_run(console, directory)
    return 0


def _compress(words: list[str]) -> int:
    from secateur.encode.codecs import choose
    from secateur.experiments.compress import compress
    from secateur.report.terminal import Watcher, print_file, print_run

    chosen, job = _job(Compress, words)
    with _Usage():
        choose(chosen.compression.codec)
        chosen.compression.rules()
    console = _console_with_summary(chosen.json, job)
    with Watcher(console) as watcher, _observing(chosen, job, watcher) as observer:
        directory, file = compress(
            job,
            chosen.compression,
            chosen.runs,
            data_root=chosen.data_root,
            resume=chosen.resume,
            observer=observer,
        )
    if not is_main_process():
        return 0
    _leave_page(console, directory)
    if chosen.json:
        print(json.dumps(file.read(file.file_record)))
    else:
        print_run(console, directory)
        print_file(console, file)
    return 0


def _leave_page(console: Console, directory: RunDirectory) -> None:
    """Write the page of a run; what keeps it from being written is said, and is no failure of the run."""
    from secateur.report.page import write_page

    try:
        write_page([directory], directory.page)
    except (ModuleNotFoundError, OSError, RunError) as error:
        said = f"No page was written ({_sentence(error)}); later: secateur report {directory.path}"
        console.print(said, soft_wrap=True, highlight=False, markup=False)


Training = TypeVar("Training", bound=_Training)


def _job(command: type[Training], words: list[str]) -> tuple[Training, Job]:
    """Parse a command that trains: its preset first, then every flag on top of it."""
    from secateur.experiments.presets import compression_preset, preset

    chosen = _parse(command, words)
    with _Usage():
        _require_known(chosen.network, chosen.data)
        _require_at_least(0, seed=chosen.seed)
        _require_at_least(1, threads=chosen.threads)
        start = preset(chosen.preset, chosen.network)
        settings: dict[str, Any] = {"sibling": start.sibling, "train": start.train}
        if command is Compress:
            settings["compression"] = compression_preset(chosen.preset)
    chosen = _parse(command, words, default=replace(chosen, **settings))
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    job = replace(start, data=chosen.data, seed=chosen.seed, sibling=chosen.sibling, train=chosen.train)
    return chosen, job


@contextmanager
def _observing(chosen: _Training, job: Job, watcher: Observer) -> Iterator[Observer]:
    """Give the terminal's observer, with TensorBoard's beside it if it was asked for."""
    from secateur.experiments.rundir import RunDirectory

    if not (chosen.tensorboard and is_main_process()):
        yield watcher
        return
    from secateur.report.tensorboard import TensorBoard

    with closing(TensorBoard(RunDirectory(chosen.runs / job.name).events)) as board:
        yield Observers((watcher, board))


def _console_with_summary(quiet: bool, job: Job) -> Console:
    """Show what will be pruned, on the terminal that will show the rest."""
    from secateur import models
    from secateur.report.terminal import summary_table

    console = Console(stderr=quiet)
    if is_main_process() and job.method == "prune":
        with torch.device("meta"):  # shapes are all it takes
            model = models.build(job.network)
        console.print(summary_table(targets(model, job.sibling)))
    return console


def _summary(words: list[str]) -> int:
    from secateur import models
    from secateur.report.terminal import summary_table

    chosen = _parse(Summary, words)
    with _Usage(), torch.device("meta"):  # shapes are all it takes
        found = targets(models.build(chosen.network), chosen.sibling)
    if chosen.json:
        tensors = [asdict(target) | {"weights": target.weights} for target in found]
        totals = {key: sum(tensor[key] for tensor in tensors) for key in ("weights", "thresholds")}
        print(json.dumps({**totals, "tensors": tensors}))
    else:
        Console().print(summary_table(found))
    return 0


def _evaluate(words: list[str]) -> int:
    from secateur.experiments.compress import evaluate_file
    from secateur.experiments.job import evaluate
    from secateur.experiments.rundir import newest_finished
    from secateur.report.terminal import print_evaluation, print_file

    chosen = _parse(Evaluate, words)
    directory = newest_finished(chosen.runs) if chosen.run is None else RunDirectory(chosen.run)
    errors = evaluate(directory, data_root=chosen.data_root)
    files = {str(file.packed): evaluate_file(file, data_root=chosen.data_root) for file in directory.compressed()}
    if directory.page.exists():  # it knows of validation images only
        _leave_page(Console(stderr=chosen.json), directory)
    if chosen.json:
        print(json.dumps({"run": str(directory.path), **errors, "files": files}))
    else:
        print_evaluation(Console(), directory)
        for file in directory.compressed():
            print_file(Console(), file)
    return 0


def _report(words: list[str]) -> int:
    from secateur.experiments.rundir import newest_finished
    from secateur.report.page import write_page

    chosen = _parse(Report, words)
    runs = [RunDirectory(path) for path in chosen.run] or [newest_finished(chosen.runs)]
    path = chosen.out or (runs[0].page if len(runs) == 1 else Path(runs[0].page.name))
    print(write_page(runs, path))
    return 0


def _watch(words: list[str]) -> int:
    from secateur.experiments.rundir import RunDirectory, newest_begun
    from secateur.report.live import serve

    chosen = _parse(Watch, words)
    with _Usage():
        _require_at_least(0, port=chosen.port)
        if chosen.port > 65_535:
            raise ValueError(f"port must be ≤ 65535, got {chosen.port}")
    directory = newest_begun(chosen.runs) if chosen.run is None else RunDirectory(chosen.run)
    with serve(directory, chosen.port) as server:
        print(f"{directory.path} at http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _reproduce(words: list[str]) -> int:
    from secateur.experiments import rival
    from secateur.experiments.decay import run_decay_study
    from secateur.experiments.figures import FIGURES
    from secateur.experiments.presets import preset, preset_names
    from secateur.experiments.reproduce import jobs, result_path, run_missing, search_epochs, sensitivity_jobs
    from secateur.report.tables import (
        decay_table,
        file_table,
        rival_table,
        sensitivity_table,
        stages_table,
        table1,
        table2,
    )

    chosen = _parse(Reproduce, words)
    with _Usage():
        tables = ("table1", "table2", "files", "sensitivity", "decay", "rival", "search")
        require_one_of("table or figure", chosen.what, (*tables, *FIGURES))
        _require_at_least(0, seeds=chosen.seeds)
        _require_at_least(1, workers=chosen.workers)
        for network in chosen.networks:
            _require_known(network, "mnist")
            preset(chosen.preset, network)
        if chosen.what == "sensitivity":
            wanted = [job for network in chosen.networks for job in sensitivity_jobs(network, range(chosen.seeds))]
        elif chosen.what == "rival":
            wanted = [("han2015", rival.job(net, seed)) for net in chosen.networks for seed in range(chosen.seeds)]
        else:
            wanted = [
                (chosen.preset, job)
                for network in chosen.networks
                for job in jobs(chosen.preset, network, range(chosen.seeds))
                if chosen.what != "files" or job.method == "prune"
            ]
    if chosen.what in FIGURES:
        return _reproduce_figure(chosen)
    console = Console(stderr=chosen.json)
    places: dict[str, Any] = {"results": chosen.results, "runs": chosen.runs, "data_root": chosen.data_root}
    if chosen.what == "search":
        for network in chosen.networks:
            console.print(f"{search_epochs(network, **places)}", highlight=False, markup=False, soft_wrap=True)
        return 0
    if chosen.what == "decay":
        for network in chosen.networks:
            for path in run_decay_study(network, range(chosen.seeds), **places):
                console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
        wanted = []
    if chosen.what == "rival" and wanted:
        for network in chosen.networks:
            rival.search_quality(network, **places)
    finished = run_missing(wanted, workers=chosen.workers, as_files=chosen.what == "files", **places)
    for path in finished:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    if chosen.what == "rival":
        for name, job in wanted:
            rival.add_sharing_and_coding(
                result_path(chosen.results, name, job), runs=chosen.runs, data_root=chosen.data_root
            )
    if chosen.what == "table1":
        grids = [table1(chosen.results, preset_names(), chosen.networks)]
    elif chosen.what == "decay":
        grids = [decay_table(chosen.results, network) for network in chosen.networks]
    elif chosen.what == "files":
        grids = [file_table(chosen.results, preset_names(), chosen.networks)]
    elif chosen.what == "rival":
        grids = [table(chosen.results, chosen.networks) for table in (rival_table, stages_table)]
    elif chosen.what == "table2":
        grids = [table2(chosen.results, chosen.preset, chosen.networks)]
    else:
        grids = [sensitivity_table(chosen.results, network) for network in chosen.networks]
    if chosen.json:
        print(json.dumps([asdict(grid) for grid in grids], ensure_ascii=False))
    else:
        console.print(*(grid.as_rich() for grid in grids))
    return 0


def _reproduce_figure(chosen: Reproduce) -> int:
    from secateur.experiments.figures import figure_path, gathering, hard_views, run_gathering, smooth_views
    from secateur.experiments.rundir import publish
    from secateur.report.figures import draw

    path = figure_path(chosen.results, chosen.what)
    if chosen.what == "figure3":
        for _ in run_gathering(
            range(chosen.seeds), results=chosen.results, runs=chosen.runs, data_root=chosen.data_root
        ):
            pass
        with _Usage():
            if not path.exists():
                raise ValueError(f"there is no {path} yet: --seeds 5 trains what it needs, about five minutes a seed")
    else:
        publish(path, smooth_views() if chosen.what == "figure1" else hard_views())
    content = json.loads(path.read_text())
    written = [path, *draw(chosen.what, content, chosen.pictures)]
    answer = gathering(content) if chosen.what == "figure3" else None
    if chosen.json:
        found = None if answer is None else {**asdict(answer), "appears": answer.appears}
        print(json.dumps({"files": [str(each) for each in written], "gathering": found}))
    else:
        console = Console()
        for each in written:
            console.print(f"wrote {each}", highlight=False, markup=False, soft_wrap=True)
        if answer is not None:
            console.print(answer.sentence, highlight=False, markup=False, soft_wrap=True)
    return 0


def _pack(words: list[str]) -> int:
    from secateur.encode.codecs import choose
    from secateur.encode.convert import pack
    from secateur.report.files import print_packed

    chosen = _parse(Pack, words)
    with _Usage():
        choose(chosen.codec)
    pack(chosen.source, chosen.target, codec=chosen.codec)
    print_packed(Console(), chosen.source, chosen.target)
    return 0


def _unpack(words: list[str]) -> int:
    from secateur.encode.convert import unpack
    from secateur.report.files import print_packed

    chosen = _parse(Unpack, words)
    unpack(chosen.source, chosen.target, max_bytes=_bytes(chosen.max_gb))
    print_packed(Console(), chosen.source, chosen.target)
    return 0


def _inspect(words: list[str]) -> int:
    from secateur.encode.inspection import inspect
    from secateur.report.files import file_grid

    chosen = _parse(Inspect, words)
    report = inspect(chosen.file, max_bytes=_bytes(chosen.max_gb))
    if chosen.json:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        # Nine columns: a narrow terminal wraps lines, which is better than numbers broken in two.
        Console(width=max(Console().width, 100)).print(file_grid(report).as_rich())
    return 0


def _verify(words: list[str]) -> int:
    from secateur import data
    from secateur.encode.convert import verify
    from secateur.report.files import print_verification

    chosen = _parse(Verify, words)
    with _Usage():
        if chosen.data is not None:
            require_one_of("data set", chosen.data, data.names())
    found = verify(
        chosen.file,
        against=chosen.against,
        data_set=chosen.data,
        data_root=chosen.data_root,
        max_bytes=_bytes(chosen.max_gb),
    )
    if chosen.json:
        print(json.dumps(asdict(found)))
    else:
        print_verification(Console(), found)
    return 0 if found.is_equal else 1


def _sizes(words: list[str]) -> int:
    from secateur.encode.convert import read_safetensors
    from secateur.encode.inspection import sizes
    from secateur.report.files import sizes_grid

    chosen = _parse(Sizes, words)
    found = sizes(read_safetensors(chosen.source)[0], nncodec=chosen.nncodec)
    if chosen.json:
        print(json.dumps(found))
    else:
        Console().print(sizes_grid(chosen.source, found).as_rich())
    return 0


def _predict(words: list[str]) -> int:
    from secateur.run.predict import predict

    chosen = _parse(Predict, words)
    with _Usage():
        if not chosen.pictures:
            raise ValueError("there is no picture to look at: secateur predict --help")
        _require_at_least(1, top=chosen.top, batch=chosen.batch)
    answers = predict(chosen.file, chosen.pictures, top=chosen.top, invert=chosen.invert, batch=chosen.batch)
    failures = 0
    for index, answer in enumerate(answers):
        if chosen.json:
            # A list that can be read while it grows: one picture a line.
            print(("[" if index == 0 else ",\n ") + json.dumps(asdict(answer), ensure_ascii=False), end="")
        elif answer.failure is None:
            print(answer)
        if answer.failure is not None:
            failures += 1
            _complain(answer.failure, 1)
    if chosen.json:
        print("]")
    return 1 if failures else 0


def _bench(words: list[str]) -> int:
    from secateur.experiments.speed import require_subject, subject, write_speed
    from secateur.measure import dense_bytes
    from secateur.measure.engines import ENGINES
    from secateur.report.speed import print_batch, print_limits, print_subject
    from secateur.run.bench import LEAST_REPEATS, bench

    chosen = _parse(Bench, words)
    with _Usage():
        require_subject(chosen.source, density=chosen.density, run=chosen.run)
        if not chosen.batch:
            raise ValueError("batch needs at least one size, got none")
        _require_at_least(1, batch=min(chosen.batch))
        _require_at_least(1, threads=chosen.threads)
        _require_at_least(LEAST_REPEATS, repeats=chosen.repeats)
        for engine in chosen.engines:
            require_one_of("engine", engine, ENGINES)
    what = subject(chosen.source, density=chosen.density, run=chosen.run)
    console = Console(stderr=chosen.json)
    if not chosen.json:
        print_subject(console, what.source, what.network, what.density, chosen.repeats)
    weight = dense_bytes(what.model)
    found = bench(
        what.model,
        what.sample_shape,
        network=what.network,
        density=what.density,
        batches=chosen.batch,
        threads=chosen.threads,
        repeats=chosen.repeats,
        engines=chosen.engines,
        observe=None if chosen.json else lambda speed: print_batch(console, speed, weight),
    )
    if chosen.json:
        print(found.to_json())
    else:
        print_limits(console, found)
    if what.directory is not None:
        path = write_speed(what.directory, found)
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)
        if what.directory.page.exists():  # it knows of no speed, or of an older one
            _leave_page(console, what.directory)
    return 0


def _bytes(gigabytes: float) -> int:
    with _Usage():
        if not 0 < gigabytes < 1 << 20:
            raise ValueError(f"max-gb must be above 0 and below a million, got {gigabytes:g}")
    return int(gigabytes * (1 << 30))


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "compress": _compress,
    "prune": _prune,
    "summary": _summary,
    "evaluate": _evaluate,
    "watch": _watch,
    "reproduce": _reproduce,
    "report": _report,
    "pack": _pack,
    "unpack": _unpack,
    "inspect": _inspect,
    "verify": _verify,
    "sizes": _sizes,
    "predict": _predict,
    "bench": _bench,
}
_DESCRIBED = {
    "compress": Compress,
    "prune": Prune,
    "summary": Summary,
    "evaluate": Evaluate,
    "watch": Watch,
    "reproduce": Reproduce,
    "report": Report,
    "pack": Pack,
    "unpack": Unpack,
    "inspect": Inspect,
    "verify": Verify,
    "sizes": Sizes,
    "predict": Predict,
    "bench": Bench,
}
_INTERRUPTED = {
    "compress": "interrupted; the run is kept: the same command with --resume goes on with it",
    "prune": "interrupted; the run is kept: the same command with --resume goes on with it",
    "reproduce": "interrupted; what is done is kept: the same command goes on from there",
}


def _print_commands() -> None:
    print("secateur shrinks PyTorch networks while they train.\n\ncommands:")
    for name, described in _DESCRIBED.items():
        print(f"  {name:10} {described.__doc__}")
    print("\nsecateur COMMAND --help shows a command's flags; --debug shows the trace of a failure.")


def _parse(command: type[Command], words: list[str], default: Command | None = None) -> Command:
    options: dict[str, Any] = {} if default is None else {"default": default}
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            parsed, unknown = tyro.cli(
                command,
                args=words,
                prog=f"secateur {command.__name__.lower()}",
                config=(tyro.conf.OmitArgPrefixes,),
                return_unknown_args=True,
                **options,
            )
    except SystemExit as end:
        if not end.code:
            raise  # --help
        raise _UsageError(_unboxed(complaint.getvalue())) from None
    if unknown and not unknown[0].startswith("-"):
        raise _UsageError(f'there is no place for "{unknown[0]}": secateur {command.__name__.lower()} --help')
    with _Usage():
        for word in unknown[:1]:
            require_one_of("flag", word.split("=")[0], _flags(command))
    return cast(Command, parsed)


def _unboxed(complaint: str) -> str:
    """Turn the box that tyro draws around a complaint into one line: the text between its first two rules."""
    said = [*re.split("[─-]{4,}", complaint), complaint][1]
    said = re.sub(r"[│╮\s]+", " ", said).strip()
    for pattern, ours in _REWORDED:
        said = re.sub(pattern, ours, said)
    return said


# What tyro says in the words of Python, in those of the command line.
_REWORDED = (
    (r"^Error parsing (--\S+): .*?'(.*)'\]?$", r'\1 cannot be "\2"'),
    (r"^Error parsing (?!-)\S+: ", ""),
    (r"^invalid choice '(.*)' for argument '(\S+)'\. Expected one of \('(.*)'\)\.$", r'\2 cannot be "\1", but \3'),
    (r"(?<=\w)', '(?=\w)", ", "),
    (r"^Missing value for argument '(\S+)'.*$", r"\1 needs a value"),
    (r"^Missing from secateur \w+: (\S+) (.*?) \(required\).*$", r"\1 is missing: \2"),
)


def _flags(command: type) -> list[str]:
    """Return every flag of a command, those of nested configurations included."""
    found = []
    for entry in fields(command):
        if isinstance(entry.default_factory, type):
            found += _flags(entry.default_factory)
        elif "Positional" not in str(entry.type):
            found.append(f"--{entry.name.replace('_', '-')}")
    return found


class _Usage:
    """Inside, a ValueError is the user's choice of words, not a failure."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise _UsageError(str(error)) from error


def _require_known(network: str, data_set: str) -> None:
    from secateur import data, models

    require_one_of("network", network, tuple(models.MODELS))
    require_one_of("data set", data_set, data.names())


def _require_at_least(least: int, **settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be ≥ {least}, got {value}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"secateur: {message}", file=sys.stderr)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error).strip().splitlines()
    known = type(error).__name__ in (
        "DataError",
        "RunError",
        "CheckpointError",
        "ValueError",
        "FormatError",
        "FloatingPointError",
        "ModuleNotFoundError",
    )
    first = text[0] if text else type(error).__name__
    return first if known else f"{type(error).__name__}: {first}"


def _complain(sentence: str, code: int) -> int:
    print(f"secateur: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
