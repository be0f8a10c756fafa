"""Commands about a run: evaluate it, show it while it trains, write its page."""

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
from secateur.cli.flags import Command, DataRoot, Json, NewestOf, Trust, allow_imports, optional
from secateur.experiments.directory import RunDirectory, newest_begun, newest_finished
from secateur.plain_data import to_plain
from secateur.report.finish import finish


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Evaluate a finished run on its test set, which is read once."""

    run: Annotated[
        tyro.conf.Positional[Path | None],
        optional("[RUN]"),
        Doc("the directory of a finished run; none: the newest one"),
    ] = None
    runs: NewestOf = Path("runs")
    data_root: DataRoot = None
    trust: Trust = ()
    json: Json = False
    verbose: Annotated[bool, Doc("print a table of all layers as well")] = False

    @override
    def __call__(self) -> int:
        from secateur.experiments.evaluate import evaluate_with_reference

        directory = newest_finished(self.runs) if self.run is None else RunDirectory(self.run)
        found = evaluate_with_reference(directory, data_root=self.data_root, trust=allow_imports(self.trust))
        finish(Console(stderr=self.json), directory, verbose=self.verbose and not self.json, silent=self.json)
        if self.json:
            print(json.dumps({"run": str(directory.path), **to_plain(found)}))
        return 0


@dataclass(frozen=True, kw_only=True)
class Watch(Command):
    """Show the page of a run in the browser, and update it while the run trains."""

    run: Annotated[
        tyro.conf.Positional[Path | None], optional("[RUN]"), Doc("the directory of a run; none: the newest one")
    ] = None
    runs: NewestOf = Path("runs")
    port: Annotated[int, Doc("where to listen on 127.0.0.1, this machine only; 0: any free port")] = 8765

    @override
    def __call__(self) -> int:
        from secateur.report.page.live import serve

        with usage():
            require_at_least(0, most=65_535, port=self.port)
        directory = newest_begun(self.runs) if self.run is None else RunDirectory(self.run)
        with serve(directory, self.port) as server:
            print(f"{directory.path} at http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        return 0


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write a page about a run, or about several side by side: one HTML file."""

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
