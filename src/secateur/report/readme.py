"""The README's table and the page of all results, written from `results/` by `python -m secateur.report.readme`."""

from __future__ import annotations

import sys
from pathlib import Path

from secateur.atomic import write_atomically
from secateur.experiments.presets import preset_names
from secateur.experiments.standings import after_each_stage
from secateur.report.speed_tables import LEVELS, speed_sentence, speed_tables, step_table
from secateur.report.tables import (
    Grid,
    coder_table,
    decay_table,
    file_table,
    gathering_table,
    headline_table,
    large_file_table,
    rival_table,
    search_table,
    sensitivity_table,
    stages_table,
    table1,
    table2,
)

_BEGIN, _END = "<!-- results: begin (written by `make readme`) -->", "<!-- results: end -->"
_NETWORKS = ("lenet-300-100", "lenet-5")


def results_page(results: Path) -> str:
    """Return the page of results: what is published, nothing else."""
    grids: list[Grid] = [table1(results, preset_names(), _NETWORKS), table2(results, "paper", _NETWORKS)]
    met = tuple(network for network in _NETWORKS if after_each_stage(results, network))
    grids += [table(results, met) for table in (rival_table, stages_table) if met]
    grids += [
        file_table(results, preset_names(), _NETWORKS),
        *(grid for level in LEVELS for grid in speed_tables(results, level)),
        gathering_table(results),
        *(decay_table(results, network) for network in _NETWORKS),
        search_table(results, _NETWORKS),
        *(sensitivity_table(results, network) for network in _NETWORKS),
        coder_table(results),
        large_file_table(results),
        step_table(results),
    ]
    tables = [f"## {grid.title}\n\n{grid.as_markdown()}" for grid in grids if grid.rows]
    return "\n\n".join([_INTRODUCTION, *tables]) + "\n"


_INTRODUCTION = """# Results

Written by `make readme` from the files in `results/`; `secateur reproduce` makes those, one JSON for each seed, with
its settings, versions and times, and `benchmarks/` those about speed and codecs. Everything was chosen on images split
from the training set, and the test set was read once, at the end. Where it says "not run", it was not run. AlexNet and
transfer learning, the paper's other experiments, are not here yet."""


def with_results(readme: str, results: Path) -> str:
    """Return the README with its table brought up to date."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the README has no place for results: put {_BEGIN} and {_END} on lines of their own")
    table = headline_table(results, preset_names(), _NETWORKS).as_markdown()
    parts = [_BEGIN, table, *filter(None, [speed_sentence(results)]), _END]
    return before + "\n\n".join(parts) + after


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    results = path.parent / "results"
    write_atomically(path, with_results(path.read_text(), results).encode())
    write_atomically(path.parent / "docs" / "results.md", results_page(results).encode())
