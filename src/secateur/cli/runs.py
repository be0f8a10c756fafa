"""Commands that look at a run: judge it, show it while it goes on, write its page."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import require_at_least, usage
from secateur.cli.flags import Command, DataRoot, Json, NewestOf, optional
from secateur.cli.printing import leave_page
from secateur.experiments.rundir import RunDirectory, newest_begun, newest_finished


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Read the test set, once, and judge a finished run by it."""

    run: Annotated[
        tyro.conf.Positional[Path | None],
        optional("[RUN]"),
        Doc("the directory of a finished run, or else the newest one"),
    ] = None
    runs: NewestOf = Path("runs")
    data_root: DataRoot = None
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.experiments.compress import evaluate_file
        from secateur.experiments.job import evaluate
        from secateur.report.terminal import print_evaluation, print_file

        directory = newest_finished(self.runs) if self.run is None else RunDirectory(self.run)
        errors = evaluate(directory, data_root=self.data_root)
        files = {str(file.packed): evaluate_file(file, data_root=self.data_root) for file in directory.compressed()}
        if directory.page.exists():  # it knows of validation images only
            leave_page(Console(stderr=self.json), directory)
        if self.json:
            print(json.dumps({"run": str(directory.path), **errors, "files": files}))
        else:
            print_evaluation(Console(), directory)
            for file in directory.compressed():
                print_file(Console(), file)
        return 0


@dataclass(frozen=True, kw_only=True)
class Watch(Command):
    """Show the page of a run in the browser, on this machine only, and keep it up to date while the run goes on."""

    run: Annotated[
        tyro.conf.Positional[Path | None], optional("[RUN]"), Doc("the directory of a run, or else the newest one")
    ] = None
    runs: NewestOf = Path("runs")
    port: Annotated[int, Doc("where to listen on 127.0.0.1; 0: any port that is free")] = 8765

    @override
    def __call__(self) -> int:
        from secateur.report.live import serve

        with usage():
            require_at_least(0, port=self.port)
            if self.port > 65_535:
                raise ValueError(f"port must be ≤ 65535, got {self.port}")
        directory = newest_begun(self.runs) if self.run is None else RunDirectory(self.run)
        with serve(directory, self.port) as server:
            print(f"{directory.path} at http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        return 0


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write a page to look at, one HTML file: of a run, or of several side by side."""

    run: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        optional("[RUN ...]"),
        Doc("directories of runs, finished or not; none: the newest finished one"),
    ] = ()
    out: Annotated[
        Path | None,
        optional("PATH"),
        Doc("the file to write, instead of report.html in the run's directory, or here for several"),
    ] = None
    runs: NewestOf = Path("runs")

    @override
    def __call__(self) -> int:
        from secateur.report.page import write_page

        runs = [RunDirectory(path) for path in self.run] or [newest_finished(self.runs)]
        path = self.out or (runs[0].page if len(runs) == 1 else Path(runs[0].page.name))
        print(write_page(runs, path))
        return 0
