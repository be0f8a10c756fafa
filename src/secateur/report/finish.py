"""The end of every finished run: speeds, the page, and one table on the terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console

from secateur.experiments.directory import RunDirectory
from secateur.experiments.subject import Subject, subject, write_speed
from secateur.report.terminal import print_layers, print_outcome, say
from secateur.results import RunError
from secateur.sentences import sentence

_REPEATS = 20  # turns of a first measurement; `secateur bench` takes more


def finish(console: Console, directory: RunDirectory, *, verbose: bool = False, silent: bool = False) -> None:
    """Write the page of a run and print its results."""
    leave_page(console, directory)
    if silent:
        return
    if verbose:
        print_layers(console, directory)
    print_outcome(console, directory)


def leave_page(console: Console, directory: RunDirectory) -> None:
    """Write the page of a run; if that fails, print why, because the run itself has not failed."""
    from secateur.report.page import write_page

    try:
        write_page([directory], directory.page)
    except (ModuleNotFoundError, OSError, RunError) as error:
        say(console, f"No page was written ({sentence(error)}); later: secateur report {directory.path}")


def leave_speed(
    console: Console, directory: RunDirectory, given: Subject | None = None, *, trust: Collection[str] = ()
) -> None:
    """Time a finished run's network, sparse and dense, unless it was timed before; `given` is one not built by name."""
    if directory.speed.exists():
        return
    from secateur.run.bench import bench

    what = given or subject(str(directory.path), trust=trust)
    try:
        found = bench(
            what.model, what.sample_shape, network=what.network, batches=(1,), repeats=_REPEATS, engines=("eager",)
        )
    except (RuntimeError, ValueError) as error:
        later = f"; later: secateur bench {directory.path}" if given is None else ""
        say(console, f"The network was not timed ({sentence(error)}){later}")
        return
    write_speed(directory, found)
