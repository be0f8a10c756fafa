"""The README's tables, docs/results.md and the references shipped with the package, all from `results/`.

`python -m secateur.report.tables.readme README.md` writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from secateur.atomic import write_atomically
from secateur.experiments.presets import preset, preset_names
from secateur.experiments.reference import REFERENCES, PublishedReference
from secateur.experiments.studies.compare import Comparison
from secateur.experiments.studies.comparison import standings
from secateur.experiments.studies.curve_summary import CURVES
from secateur.experiments.studies.feature_summary import FeatureStudy
from secateur.experiments.studies.published import read_runs
from secateur.experiments.studies.summaries import mean_std
from secateur.plain_data import to_plain
from secateur.report.tables.alexnet import alexnet_cost_table, imagenette_tables, thresholds_table
from secateur.report.tables.budgets import (
    call_table,
    cost_table,
    error_increase_table,
    met_table,
    step_table,
    together_table,
)
from secateur.report.tables.codecs import coder_table, large_file_table
from secateur.report.tables.compare import compare_tables
from secateur.report.tables.comparison import comparison_table, stages_table
from secateur.report.tables.curve import CURVE_TITLE, curve_headline, curve_layers_table, curve_table
from secateur.report.tables.features import feature_tables
from secateur.report.tables.files import decay_table, file_table, headline_table
from secateur.report.tables.grid import Grid
from secateur.report.tables.paper import gathering_table, search_table, sensitivity_table, table1, table2
from secateur.report.tables.pretrained import encoder_table, pruned_table, scores_table
from secateur.report.tables.speed import (
    LEVELS,
    deployed_speeds,
    network_speeds,
    pruned_speeds,
    speed_tables,
)
from secateur.report.tables.throughput import throughput_table
from secateur.report.tables.transfer import table3, transfer_tables

_BEGIN, _END = "<!-- results: begin (written by `make readme`) -->", "<!-- results: end -->"
_NETWORKS = ("lenet-300-100", "lenet-5")
_COMPARED_ON = ("mnist", "fashion-mnist")

_PICTURES = {
    CURVE_TITLE: "\n\n![Error on test images against weights kept and against bytes of the file: our networks with the "
    "standard deviation over seeds, and published ones.](figures/curve.svg)"
}


def results_page(results: Path) -> str:
    """Return the page of results: everything that is published, nothing else."""
    presets = preset_names()
    compared = tuple(network for network in _NETWORKS if standings(results, network))
    grids: list[Grid] = [
        table1(results, presets, _NETWORKS),
        table2(results, "paper", _NETWORKS),
        comparison_table(results, compared),
        stages_table(results, presets, _NETWORKS),
        file_table(results, presets, _NETWORKS),
        *(
            grid
            for network in _NETWORKS
            for data in _COMPARED_ON
            for grid in compare_tables(Comparison(network=network, data=data), results)
        ),
        together_table(results, _NETWORKS),
        error_increase_table(results, _NETWORKS),
        curve_table(results, tuple(CURVES)),
        *(curve_layers_table(results, network) for network in CURVES),
        *imagenette_tables(results),
        *feature_tables(results, FeatureStudy()),
        table3(results),
        *transfer_tables(results),
        *(grid for level in LEVELS for grid in speed_tables(results, level)),
        pruned_speeds(results),
        deployed_speeds(results),
        throughput_table(results),
        gathering_table(results),
        *(decay_table(results, network) for network in _NETWORKS),
        search_table(results, _NETWORKS),
        *(sensitivity_table(results, network) for network in _NETWORKS),
        met_table(results),
        encoder_table(results),
        scores_table(results),
        pruned_table(results),
        coder_table(results),
        large_file_table(results),
        step_table(results),
        thresholds_table(results),
        alexnet_cost_table(results),
        cost_table(results),
        call_table(results),
    ]
    tables = [f"## {grid.title}\n\n{grid.as_markdown()}" + _PICTURES.get(grid.title, "") for grid in grids if grid.rows]
    return "\n\n".join([_INTRODUCTION, *tables]) + "\n"


_INTRODUCTION = """# Results

`make readme` writes this page from the files in `results/`. `secateur reproduce` produces those of runs, one JSON per
seed with settings, versions and times; the scripts in `benchmarks/` produce those of speed, codecs and pretrained
networks. All settings of runs were chosen on images split from the training set; the test set was read once, at the
end. "not run" marks what was not run. AlexNet on ILSVRC-2012, another experiment of the paper, is not
reproduced yet."""


def with_results(readme: str, results: Path) -> str:
    """Return the README with its tables brought up to date."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the README has no place for results: put {_BEGIN} and {_END} on lines of their own")
    grids = (
        headline_table(results, preset_names(), _NETWORKS),
        curve_headline(results, tuple(CURVES)),
        network_speeds(results),
    )
    tables = [grid.as_markdown() for grid in grids if grid.rows]
    return before + "\n\n".join([_BEGIN, *tables, _END]) + after


def references(results: Path) -> dict[str, dict[str, Any]]:
    """Return the errors of the published dense runs by network and preset, for runs that have no reference."""
    found: dict[str, dict[str, Any]] = {}
    for network in _NETWORKS:
        for name in preset_names():
            runs = read_runs(results, network, name, "dense")
            if runs:
                reference = PublishedReference(
                    data=preset(name, network).data,
                    validation=round(mean_std(run.result.error for run in runs.values())[0], 4),
                    test=round(mean_std(run.test_error() for run in runs.values())[0], 4),
                    seeds=len(runs),
                )
                found.setdefault(network, {})[name] = to_plain(reference)
    return found


def references_text(results: Path) -> str:
    """Return the content of the package's references.json."""
    return json.dumps(references(results), indent=1) + "\n"


def main(readme: Path) -> None:
    """Write everything that comes from the results next to a README."""
    results = readme.parent / "results"
    write_atomically(readme, with_results(readme.read_text(encoding="utf-8"), results).encode())
    write_atomically(readme.parent / "docs" / "results.md", results_page(results).encode())
    package = readme.parent / "src" / "secateur" / "experiments"
    write_atomically(package / REFERENCES, references_text(results).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "README.md"))
