"""The command that runs what the paper's tables and figures need, and shows them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur.cli.complaints import require_at_least, require_known, usage
from secateur.cli.flags import Command, DataRoot, Json, KeptIn, named
from secateur.experiments.job import Job
from secateur.nearest import require_one_of
from secateur.report.terminal import say

if TYPE_CHECKING:
    from secateur.report.tables import Grid

_TABLES = ("table1", "table2", "files", "sensitivity", "decay", "rival", "search")


@dataclass(frozen=True, kw_only=True)
class Reproduce(Command):
    """Run what a table or figure of the paper needs and is not in the results yet, and show it."""

    interrupted: ClassVar[str] = "interrupted; what is done is kept: the same command goes on from there"

    what: Annotated[
        tyro.conf.Positional[str],
        named("WHAT"),
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
    runs: KeptIn = Path("runs")
    data_root: DataRoot = None
    json: Json = False

    @override
    def __call__(self) -> int:
        from secateur.experiments.figures import FIGURES
        from secateur.experiments.presets import preset
        from secateur.experiments.reproduce import PAPER

        with usage():
            require_one_of("table or figure", self.what, (*_TABLES, *FIGURES))
            require_at_least(0, seeds=self.seeds)
            require_at_least(1, workers=self.workers)
            for network in self.networks:
                require_known(network, "mnist")
                require_one_of("network with published rows", network, PAPER)
                preset(self.preset, network)
            wanted = _wanted(self)
        if self.what in FIGURES:
            return _draw(self)
        console = Console(stderr=self.json)
        _run(self, wanted, console)
        if self.what == "search":
            return 0
        grids = _grids(self)
        if self.json:
            print(json.dumps([asdict(grid) for grid in grids], ensure_ascii=False))
        else:
            console.print(*(grid.as_rich() for grid in grids))
        return 0

    @property
    def places(self) -> dict[str, Any]:
        """Where results, runs and data sets are kept, as keywords."""
        return {"results": self.results, "runs": self.runs, "data_root": self.data_root}


def _wanted(chosen: Reproduce) -> list[tuple[str, Job]]:
    """Return the runs that a table is made of, each with the name that its result is published under."""
    from secateur.experiments import rival
    from secateur.experiments.reproduce import jobs, sensitivity_jobs

    seeds = range(chosen.seeds)
    if chosen.what == "sensitivity":
        return [job for network in chosen.networks for job in sensitivity_jobs(network, seeds)]
    if chosen.what == "rival":
        return [("han2015", rival.job(network, seed)) for network in chosen.networks for seed in seeds]
    if chosen.what not in ("table1", "table2", "files"):
        return []  # the others know their own
    return [
        (chosen.preset, job)
        for network in chosen.networks
        for job in jobs(chosen.preset, network, seeds)
        if chosen.what != "files" or job.method == "prune"
    ]


def _run(chosen: Reproduce, wanted: list[tuple[str, Job]], console: Console) -> None:
    """Run what is not in the results yet, and say what was written."""
    from secateur.experiments import rival
    from secateur.experiments.decay import run_decay_study
    from secateur.experiments.reproduce import result_path, run_missing, search_epochs

    for network in chosen.networks:
        if chosen.what == "search":
            say(console, f"{search_epochs(network, **chosen.places)}")
        if chosen.what == "decay":
            for path in run_decay_study(network, range(chosen.seeds), **chosen.places):
                say(console, f"wrote {path}")
        if chosen.what == "rival" and wanted:
            rival.search_quality(network, **chosen.places)
    for path in run_missing(wanted, workers=chosen.workers, as_files=chosen.what == "files", **chosen.places):
        say(console, f"wrote {path}")
    if chosen.what == "rival":
        for name, job in wanted:
            rival.add_sharing_and_coding(
                result_path(chosen.results, name, job), runs=chosen.runs, data_root=chosen.data_root
            )


def _grids(chosen: Reproduce) -> list[Grid]:
    """Put the tables together from the results that are there."""
    from secateur.experiments.presets import preset_names
    from secateur.report import tables

    if chosen.what == "table1":
        return [tables.table1(chosen.results, preset_names(), chosen.networks)]
    if chosen.what == "table2":
        return [tables.table2(chosen.results, chosen.preset, chosen.networks)]
    if chosen.what == "files":
        return [tables.file_table(chosen.results, preset_names(), chosen.networks)]
    if chosen.what == "rival":
        return [table(chosen.results, chosen.networks) for table in (tables.rival_table, tables.stages_table)]
    one = tables.decay_table if chosen.what == "decay" else tables.sensitivity_table
    return [one(chosen.results, network) for network in chosen.networks]


def _draw(chosen: Reproduce) -> int:
    from secateur.experiments.figures import figure_path, gathering, hard_views, run_gathering, smooth_views
    from secateur.experiments.rundir import publish, read_published
    from secateur.report.figures import draw

    path = figure_path(chosen.results, chosen.what)
    if chosen.what == "figure3":
        for _ in run_gathering(range(chosen.seeds), **chosen.places):
            pass
        with usage():
            if not path.exists():
                raise ValueError(f"there is no {path} yet: --seeds 5 trains what it needs, about five minutes a seed")
    else:
        publish(path, smooth_views() if chosen.what == "figure1" else hard_views())
    content = read_published(path)
    written = [path, *draw(chosen.what, content, chosen.pictures)]
    answer = gathering(content) if chosen.what == "figure3" else None
    if chosen.json:
        found = None if answer is None else {**asdict(answer), "appears": answer.appears}
        print(json.dumps({"files": [str(each) for each in written], "gathering": found}))
    else:
        console = Console()
        for each in written:
            say(console, f"wrote {each}")
        if answer is not None:
            say(console, answer.sentence)
    return 0
