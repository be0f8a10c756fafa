"""The command that compares methods under one protocol."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur import data, networks
from secateur.budget import Budget
from secateur.cli.complaints import require_at_least, usage
from secateur.cli.flags import Command, DataRoot, Json, KeptIn, named, optional
from secateur.experiments.studies.compare import PRESET, Comparison, Refusal, planned
from secateur.experiments.studies.compare_runs import run_entries
from secateur.experiments.studies.grid import Places
from secateur.experiments.studies.on_ray import run_on_ray
from secateur.methods import METHODS
from secateur.report.tables.compare import compare_tables
from secateur.report.tables.compare import named as named_point
from secateur.report.terminal import say
from secateur.results import RunError
from secateur.sentences import sentence

_ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare methods at equal initial weights, images, gradient steps and bytes, over seeds."""

    interrupted: ClassVar[str] = "interrupted; what is done is kept: the same command continues from there"

    network: Annotated[tyro.conf.Positional[str], named("NETWORK"), Doc("the network to shrink")]
    data: Annotated[str, Doc("the data set")] = "mnist"
    methods: Annotated[tuple[str, ...], Doc("the methods, or all; the dense network is always a part of it")] = (_ALL,)
    ratio: Annotated[
        tuple[float, ...], Doc("all prunable weights ÷ weights kept, for methods that take a budget; others run once")
    ] = (5.0, 10.0, 30.0, 60.0, 100.0)
    seeds: Annotated[int, Doc("seeds 0 to this, exclusive; 0: show what is published")] = 5
    preset: Annotated[str, Doc("whose recipe, inputs and coding all methods share")] = PRESET
    epochs: Annotated[int | None, optional("INT"), Doc("of every run in all its stages, instead of the preset's")] = (
        None
    )
    few_values: Annotated[
        bool, Doc("quantise each pruned network as the preset says, within the same epochs, so that files are small")
    ] = False
    jobs: Annotated[int, Doc("runs at a time, one thread each; 1: in this process")] = 1
    ray: Annotated[
        str | None,
        optional("ADDRESS"),
        Doc("run on this Ray cluster, a run for each of its CPUs: host:port, auto, or local for one on this machine"),
    ] = None
    page: Annotated[
        Path | None,
        optional("PATH"),
        Doc("the page to write, instead of one named after the comparison next to the runs"),
    ] = None
    results: Annotated[Path, Doc("where published results are kept")] = Path("results")
    runs: KeptIn = Path("runs")
    data_root: DataRoot = None
    json: Json = False

    @override
    def __call__(self) -> int:
        with usage():
            comparison, names = self._checked()
            entries, refusals = planned(comparison, names, self.ratio, range(self.seeds), self.results)
        console = Console(stderr=self.json)
        for refusal in refusals if self.seeds else ():
            say(console, f"{named_point(refusal.label, refusal.ratio)} is not run: {refusal.reason}")
        places = Places(self.results, self.runs, self.data_root)
        missing = [entry for entry in entries if not entry.is_published(self.results)]
        if self.ray is None:
            written = run_entries(missing, places, workers=self.jobs)
        else:
            written = run_on_ray(missing, places, self.ray) if missing else iter(())
        for number, path in enumerate(written, start=1):
            say(console, f"{number} of {len(missing)}: wrote {path}")
        self._leave_page(console, comparison, refusals)
        grids = compare_tables(comparison, self.results, refusals)
        if self.json:
            print(json.dumps([asdict(grid) for grid in grids]))
        else:
            console.print(*(grid.as_rich() for grid in grids))
        return 0

    def _leave_page(self, console: Console, comparison: Comparison, refusals: list[Refusal]) -> None:
        """Write the page of all results; if that fails, print why, because the runs have not failed."""
        from secateur.report.page.compare_page import write_comparison_page

        path = self.page or self.runs / f"{comparison.folder(self.results).parent.name}-{comparison.study}.html"
        try:
            say(console, f"wrote {write_comparison_page(comparison, self.results, path, refusals)}")
        except (ModuleNotFoundError, OSError, RunError) as error:
            say(console, f"No page was written: {sentence(error)}")

    def _checked(self) -> tuple[Comparison, tuple[str, ...]]:
        """Return what to compare, and the names of the methods; a ValueError says what cannot be."""
        networks.NETWORKS.find(self.network)
        data.require_known(self.data)
        require_at_least(0, seeds=self.seeds)
        require_at_least(1, jobs=self.jobs, epochs=self.epochs)
        for ratio in self.ratio:
            Budget(ratio=ratio)
        names = tuple(METHODS) if _ALL in self.methods else self.methods
        for name in names:
            METHODS.find(name)
        comparison = Comparison(
            network=self.network, data=self.data, preset=self.preset, epochs=self.epochs, few_values=self.few_values
        )
        comparison.usual()  # raises if the preset has no settings for the network
        return comparison, names
