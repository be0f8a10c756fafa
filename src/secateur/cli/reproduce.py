"""The command that runs and shows the paper's tables and figures, and our comparisons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from typing_extensions import Doc, override

from secateur import data, networks
from secateur.cli.complaints import require_at_least, usage
from secateur.cli.flags import Command, DataRoot, Json, KeptIn, named, optional
from secateur.experiments.presets import preset, preset_names
from secateur.experiments.studies.curve import curve_jobs, in_rounds, publish_point
from secateur.experiments.studies.curve_summary import CURVES, curve_path, longer_job
from secateur.experiments.studies.decay import run_decay_study
from secateur.experiments.studies.epochs import search_epochs
from secateur.experiments.studies.error_increase import error_increase_jobs, publish_error_increase
from secateur.experiments.studies.error_increase_summary import error_increase_path
from secateur.experiments.studies.feature_study import Part, run_feature_study
from secateur.experiments.studies.feature_summary import FeatureStudy
from secateur.experiments.studies.figures import hard_views, run_gathering, smooth_views
from secateur.experiments.studies.gathering import FIGURES, GatheringStudy, Views, figure_path, gathering
from secateur.experiments.studies.grid import Places, jobs, run_missing
from secateur.experiments.studies.rival import search_quality
from secateur.experiments.studies.sensitivity import publish_sensitivity, sensitivity_jobs, sensitivity_path
from secateur.experiments.studies.together import publish_together, together_jobs, together_path
from secateur.literature import networks_with_layers, paper_data
from secateur.nearest import require_one_of
from secateur.report.tables.budgets import error_increase_table, together_table
from secateur.report.tables.comparison import comparison_table, stages_table
from secateur.report.tables.curve import curve_layers_table, curve_table
from secateur.report.tables.features import feature_tables
from secateur.report.tables.files import decay_table, file_table
from secateur.report.tables.grid import Grid
from secateur.report.tables.paper import search_table, sensitivity_table, table1, table2
from secateur.report.tables.transfer import table3, transfer_tables
from secateur.report.terminal import Watcher, say
from secateur.results import read, write
from secateur.train.processes import is_main_process


@dataclass(frozen=True, kw_only=True)
class Reproduce(Command):
    """Run what a table or figure of the paper needs, and show it."""

    interrupted: ClassVar[str] = "interrupted; what is done is kept: the same command continues from there"

    what: Annotated[
        tyro.conf.Positional[str],
        named("WHAT"),
        Doc(
            "table1, table2, table3 and transfer (both shown only: secateur transfer runs them), files, sensitivity, "
            "decay, rival (Deep Compression), together (pruning and quantisation learned together), error-increase "
            "(against a sweep), curve (networks for photographs at several ratios), search (how epochs were chosen), "
            "alexnet-features (AlexNet on features of its pretrained convolutions), figure1, figure2 or figure3"
        ),
    ]
    networks: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--network"]), Doc("which rows")] = (
        "lenet-300-100",
        "lenet-5",
    )
    data: Annotated[
        str | None, optional("STR"), Doc("the data set of table1, table2 or alexnet-features, instead of the usual one")
    ] = None
    preset: Annotated[str, Doc("the settings to run")] = "paper"
    seeds: Annotated[
        int | None,
        optional("INT"),
        Doc("seeds 0 to this, exclusive; 0: show what is published. 0 if not given, 1 with --data or --part"),
    ] = None
    part: Annotated[Part, Doc("what of alexnet-features to run, whose parts take ten minutes to half an hour")] = "all"
    workers: Annotated[int, Doc("runs at a time, one thread each; 1: in this process")] = 2
    results: Annotated[Path, Doc("where published results are kept")] = Path("results")
    pictures: Annotated[Path, Doc("where figures are drawn, as SVG and PNG")] = Path("docs/figures")
    runs: KeptIn = Path("runs")
    data_root: DataRoot = None
    json: Json = False

    @override
    def __call__(self) -> int:
        with usage():
            require_one_of("table or figure", self.what, (*_STUDIES, *FIGURES))
            require_at_least(0, seeds=self.seeds)
            if self.data is not None:
                data.require_known(self.data)
                if self.what not in ("table1", "table2", "alexnet-features"):
                    raise ValueError(f"--data is for table1, table2 and alexnet-features, not for {self.what}")
            if self.part != "all" and self.what != "alexnet-features":
                raise ValueError(f"--part is for alexnet-features: {self.what} has no parts")
            if self.what == "alexnet-features" and (self.seeds or 0) > 1:
                raise ValueError(f"alexnet-features is run with one seed: --seeds 1, not {self.seeds}")
            require_at_least(1, workers=self.workers)
            for network in self.networks:
                networks.NETWORKS.find(network)
                if self.what == "curve":
                    require_one_of("network with a curve", network, CURVES)
                    continue
                require_one_of("network with published rows", network, networks_with_layers())
                if self.what not in ("table1", "table2") and paper_data(network) not in (None, "mnist"):
                    raise ValueError(
                        f"{self.what} is run on MNIST, which {network} does not take: see table1 and table2"
                    )
                preset(self.preset, network)
        if self.what in FIGURES:
            return _draw(self)
        console = Console(stderr=self.json, quiet=not is_main_process())
        run, show = _STUDIES[self.what]
        for path in run(self):
            say(console, f"wrote {path}")
        if not is_main_process():
            return 0
        grids = show(self)
        if self.json:
            print(json.dumps([asdict(grid) for grid in grids]))
        else:
            console.print(*(grid.as_rich() for grid in grids))
        return 0

    @property
    def seeds_to_run(self) -> range:
        """The seeds to run."""
        is_asked_for = self.data is not None or self.part != "all"
        return range(int(is_asked_for) if self.seeds is None else self.seeds)

    @property
    def places(self) -> Places:
        """Where results, runs and data sets are kept."""
        return Places(self.results, self.runs, self.data_root)


def _run_preset(chosen: Reproduce, *, to_file: bool = False) -> Iterator[Path]:
    for network in chosen.networks:
        wanted = jobs(chosen.preset, network, chosen.seeds_to_run, data=chosen.data, to_file=to_file)
        yield from run_missing(wanted, chosen.places, workers=chosen.workers)


def _run_sensitivity(chosen: Reproduce) -> Iterator[Path]:
    for network in chosen.networks:
        wanted = sensitivity_jobs(network, chosen.seeds_to_run)
        yield from run_missing(
            wanted, chosen.places, workers=chosen.workers, work=publish_sensitivity, path=sensitivity_path
        )


def _run_together(chosen: Reproduce) -> Iterator[Path]:
    for network in chosen.networks:
        wanted = together_jobs(network, chosen.seeds_to_run)
        yield from run_missing(wanted, chosen.places, workers=chosen.workers, work=publish_together, path=together_path)


def _run_error_increase(chosen: Reproduce) -> Iterator[Path]:
    for network in chosen.networks:
        wanted = error_increase_jobs(network, chosen.seeds_to_run)
        yield from run_missing(
            wanted, chosen.places, workers=chosen.workers, work=publish_error_increase, path=error_increase_path
        )


def _run_curve(chosen: Reproduce) -> Iterator[Path]:
    for network in chosen.networks:
        for part in in_rounds(curve_jobs(network, chosen.seeds_to_run), chosen.workers):
            yield from run_missing(part, chosen.places, workers=chosen.workers, work=publish_point, path=curve_path)
        references = [longer_job(network, seed) for seed in chosen.seeds_to_run]
        yield from run_missing(references, chosen.places, workers=chosen.workers, work=publish_point, path=curve_path)
    if find_spec("matplotlib"):  # the study does not need its picture
        from secateur.report.curve_figure import draw_curves

        yield from draw_curves(chosen.results, chosen.pictures)


def _run_decay(chosen: Reproduce) -> Iterator[Path]:
    for network in chosen.networks:
        yield from run_decay_study(network, chosen.seeds_to_run, chosen.places)


def _run_rival(chosen: Reproduce) -> Iterator[Path]:
    if not chosen.seeds_to_run:
        return
    for network in chosen.networks:
        yield search_quality(network, chosen.places)
        for to_file in (False, True):
            wanted = jobs("han2015", network, chosen.seeds_to_run, to_file=to_file)
            own = [job for job in wanted if not job.is_dense]  # its runs train their own dense networks
            yield from run_missing(own, chosen.places, workers=chosen.workers)


def _run_features(chosen: Reproduce) -> Iterator[Path]:
    if not chosen.seeds_to_run:
        return
    with Watcher(Console(stderr=chosen.json)) as watcher:
        yield from run_feature_study(
            _feature_study(chosen),
            chosen.places,
            part=chosen.part,
            observer=watcher,
            progress=lambda done, total: watcher.step("features", done, total),
        )


def _feature_study(chosen: Reproduce) -> FeatureStudy:
    return FeatureStudy() if chosen.data is None else FeatureStudy(data=chosen.data)


def _run_search(chosen: Reproduce) -> Iterator[Path]:
    return (search_epochs(network, chosen.places) for network in chosen.networks if chosen.seeds_to_run)


def _per_network(table: Callable[[Path, str], Grid], chosen: Reproduce) -> list[Grid]:
    return [table(chosen.results, network) for network in chosen.networks]


# What can be reproduced: how it is run, and how it is shown.
_STUDIES: dict[str, tuple[Callable[[Reproduce], Iterator[Path]], Callable[[Reproduce], list[Grid]]]] = {
    "table1": (_run_preset, lambda chosen: [table1(chosen.results, preset_names(), chosen.networks, data=chosen.data)]),
    "table2": (_run_preset, lambda chosen: [table2(chosen.results, chosen.preset, chosen.networks, data=chosen.data)]),
    "table3": (lambda chosen: iter(()), lambda chosen: [table3(chosen.results)]),
    "transfer": (lambda chosen: iter(()), lambda chosen: transfer_tables(chosen.results)),
    "files": (
        partial(_run_preset, to_file=True),
        lambda chosen: [file_table(chosen.results, preset_names(), chosen.networks)],
    ),
    "sensitivity": (_run_sensitivity, partial(_per_network, sensitivity_table)),
    "decay": (_run_decay, partial(_per_network, decay_table)),
    "rival": (
        _run_rival,
        lambda chosen: [
            comparison_table(chosen.results, chosen.networks),
            stages_table(chosen.results, preset_names(), chosen.networks),
        ],
    ),
    "together": (_run_together, lambda chosen: [together_table(chosen.results, chosen.networks)]),
    "error-increase": (_run_error_increase, lambda chosen: [error_increase_table(chosen.results, chosen.networks)]),
    "curve": (
        _run_curve,
        lambda chosen: [
            curve_table(chosen.results, chosen.networks),
            *_per_network(curve_layers_table, chosen),
        ],
    ),
    "alexnet-features": (_run_features, lambda chosen: feature_tables(chosen.results, _feature_study(chosen))),
    "search": (_run_search, lambda chosen: [search_table(chosen.results, chosen.networks)]),
}


def _draw(chosen: Reproduce) -> int:
    from secateur.report.figures import draw

    path = figure_path(chosen.results, chosen.what)
    if chosen.what == "figure3":
        for _ in run_gathering(chosen.seeds_to_run, chosen.places):
            pass
        with usage():
            if not path.exists():
                raise ValueError(f"{path} does not exist yet: --seeds 5 trains its networks, about five minutes a seed")
    else:
        write(path, smooth_views() if chosen.what == "figure1" else hard_views())
    content = read(GatheringStudy, path) if chosen.what == "figure3" else read(Views, path)
    written = [path, *draw(chosen.what, content, chosen.pictures)]
    answer = gathering(content) if isinstance(content, GatheringStudy) else None
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
