"""The README's results, written from `results/` by `python -m secateur.report.readme`."""

from __future__ import annotations

import sys
from pathlib import Path

from secateur.atomic import write_atomically
from secateur.experiments.presets import preset_names
from secateur.experiments.standings import after_each_stage
from secateur.report.tables import (
    Grid,
    coder_table,
    decay_table,
    file_table,
    rival_table,
    sensitivity_table,
    stages_table,
    step_table,
    table1,
    table2,
)

_BEGIN, _END = "<!-- results: begin (written by `make readme`) -->", "<!-- results: end -->"
_NETWORKS = ("lenet-300-100", "lenet-5")


def results_section(results: Path) -> str:
    """Return the README's section of results: what is published, nothing else."""
    grids: list[Grid] = [table1(results, preset_names(), _NETWORKS), table2(results, "paper", _NETWORKS)]
    met = tuple(network for network in _NETWORKS if after_each_stage(results, network))
    grids += [table(results, met) for table in (rival_table, stages_table) if met]
    others = [file_table(results, preset_names(), _NETWORKS)]
    others += [decay_table(results, network) for network in _NETWORKS]
    others += [
        *(sensitivity_table(results, network) for network in _NETWORKS),
        coder_table(results),
        step_table(results),
    ]
    grids += [grid for grid in others if grid.rows]
    return "\n\n".join(f"**{grid.title}**\n\n{grid.as_markdown()}" for grid in grids)


def with_results(readme: str, results: Path) -> str:
    """Return the README with its results brought up to date."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the README has no place for results: put {_BEGIN} and {_END} on lines of their own")
    return f"{before}{_BEGIN}\n\n{results_section(results)}\n\n{_END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    write_atomically(path, with_results(path.read_text(), path.parent / "results").encode())
