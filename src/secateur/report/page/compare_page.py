"""The page of a comparison: its tables, charts and verdicts in one HTML file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secateur.atomic import write_atomically
from secateur.experiments.studies.compare import PRESET, Comparison, Refusal
from secateur.experiments.studies.compare_summary import Point, ranking, read_points
from secateur.methods import METHODS
from secateur.report.page.render import fill, require_bokeh
from secateur.report.page.sheets import Cell, Sheet
from secateur.report.tables.compare import costs_table, errors_table, published_table, verdicts
from secateur.report.tables.grid import Grid
from secateur.results import RunError

if TYPE_CHECKING:
    from secateur.report.page.chart import Chart

_NUMBER = re.compile(r"^[+−-]?[\d,]*\.?\d+")


@dataclass(frozen=True, kw_only=True)
class ComparisonContent:
    """What the template fills in."""

    title: str
    protocol: str
    verdicts: tuple[str, ...]
    tables: tuple[Sheet, ...]
    charts: tuple[Chart, ...]
    published: Sheet | None
    command: str


def write_comparison_page(comparison: Comparison, results: Path, path: Path, refusals: Sequence[Refusal] = ()) -> Path:
    """Write the page of what is published of a comparison to `path` and return it."""
    require_bokeh()
    points = read_points(comparison, results)
    if not any(point.runs for point in points):
        raise RunError(f"{comparison.folder(results)} has no results yet: there is nothing to show")
    content = comparison_content(comparison, points, refusals)
    write_atomically(path, fill("compare.html", content, content.charts).encode())
    return path


def comparison_content(
    comparison: Comparison, points: Sequence[Point], refusals: Sequence[Refusal] = ()
) -> ComparisonContent:
    """Return what the page of a comparison shows."""
    from secateur.report.page.compare_charts import SIZES, size_chart, steps_chart

    ranked = ranking(points)
    ratios = sorted({point.asked for point in points if point.asked is not None})
    drawn = [
        *(size_chart(comparison, points, size) for size in SIZES),
        *(steps_chart(points, ratio) for ratio in (*ratios, None)),
    ]
    known = published_table(comparison, points)
    tables = (
        sheet_of(errors_table(comparison, ranked, refusals), "errors"),
        sheet_of(costs_table(comparison, ranked), "costs"),
    )
    return ComparisonContent(
        title=f"Methods compared: {comparison.network} on {comparison.data}",
        protocol=f"preset {comparison.preset}, {comparison.total_epochs} epochs for every method",
        verdicts=tuple(verdicts(ranked)),
        tables=tables,
        charts=tuple(chart for chart in drawn if chart is not None),
        published=sheet_of(known, "published") if known.rows else None,
        command=command(comparison, points),
    )


def sheet_of(grid: Grid, name: str) -> Sheet:
    """Return a table of words for the page, sorted by the number that a cell begins with, if it does."""
    rows = tuple(tuple(Cell(text, _key(text)) for text in row) for row in grid.rows)
    return Sheet(name=name, caption=grid.title, header=grid.header, rows=rows, is_sortable=True, note=grid.note)


def _key(text: str) -> float | str:
    found = _NUMBER.match(text)
    return float(found[0].replace(",", "").replace("−", "-")) if found else text


def _is_reference(name: str) -> bool:
    return name in METHODS and METHODS[name].is_reference


def command(comparison: Comparison, points: Sequence[Point]) -> str:
    """Return the command that runs these points."""
    parts = [[name for name in point.label.split("+") if not _is_reference(name)] for point in points]
    names = dict.fromkeys(each[0] for each in parts if each)  # few values may follow
    ratios = sorted({point.asked for point in points if point.asked is not None})
    seeds = 1 + max((seed for point in points for seed in (*point.runs, *point.failures)), default=0)
    words = ["secateur", "compare", comparison.network, "--data", comparison.data, "--methods", *names]
    words += ["--ratio", *(f"{ratio:g}" for ratio in ratios)] if ratios else []
    words += ["--seeds", str(seeds)]
    words += [] if comparison.preset == PRESET else ["--preset", comparison.preset]
    words += [] if comparison.epochs is None else ["--epochs", str(comparison.epochs)]
    return shlex.join([*words, *(["--few-values"] if comparison.few_values else [])])
