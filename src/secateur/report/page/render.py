"""The report page: one HTML file that shows what a run has gained and lost, or several runs side by side.

It needs no internet and no other file. The script that draws the charts is taken from the installed Bokeh and packed
into the page, together with the numbers; text, tables and images do not need it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.atomic import write_atomically
from secateur.experiments.directory import RunDirectory
from secateur.experiments.versions import versions
from secateur.report.commands import command, with_file
from secateur.report.page.cards import Card, cards
from secateur.report.page.gather import gather
from secateur.report.page.names import letter
from secateur.report.page.run import Run
from secateur.report.page.sheets import (
    Sheet,
    difference_sheet,
    error_sheet,
    layer_sheet,
    layer_sheets_compared,
    overview_sheet,
    setting_sheets,
)
from secateur.report.page.weights import Look, Picture, look_at

if TYPE_CHECKING:
    from secateur.report.page.chart import Chart

_MOST_WITH_WEIGHTS = 4  # runs of a comparison whose weights are shown


def write_page(runs: Sequence[RunDirectory], path: Path) -> Path:
    """Write the page of a run, or of several side by side, to `path` and return it."""
    write_atomically(path, render_page(runs).encode())
    return path


def render_page(runs: Sequence[RunDirectory]) -> str:
    """Return the page of a run, or of several side by side, as HTML.

    A run may be unfinished or damaged: the page then shows what could be read. A RunError says that nothing could.
    """
    if not runs:
        raise ValueError("a page needs at least one run")
    _require_bokeh()
    found = [gather(run) for run in runs]
    content = _one(found[0]) if len(found) == 1 else _several(found)
    return _fill(content)


def _require_bokeh() -> None:
    try:
        import bokeh  # noqa: F401  (the report extra; slow to import)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the report page needs Bokeh: pip install 'secateur[report]'") from error


@dataclass(frozen=True, kw_only=True)
class _Content:
    """What the template fills in."""

    title: str
    names: tuple[tuple[str, str], ...]  # of the runs, and a letter for each where there are several
    badges: tuple[str, ...]
    problems: tuple[str, ...]
    cards: tuple[Card, ...]
    gained: tuple[Sheet, ...]
    standing: tuple[Chart, ...]
    where: tuple[Sheet, ...]
    history: tuple[Chart, ...]
    histograms: tuple[Chart, ...]
    patterns: tuple[Picture, ...]
    filters: tuple[Picture, ...]
    weights_note: str
    ran: tuple[Sheet, ...]
    commands: tuple[tuple[str, str], ...]


def _one(run: Run) -> _Content:
    from secateur.report.page import history_charts as charts
    from secateur.report.page.pareto_chart import SIZES, pareto_chart
    from secateur.report.page.weight_charts import histogram_chart

    look = look_at(run)
    drawn = (charts.error_chart, charts.ratio_chart, charts.threshold_chart, charts.loss_chart, charts.size_chart)
    standing = [pareto_chart([run], size, run.network, run.data) for size in SIZES]
    histograms = [histogram_chart(each, number) for number, each in enumerate(look.layers)]
    return _Content(
        title=f"{run.network} on {run.data}",
        names=((run.name, ""),),
        badges=(run.state, f"seed {run.seed}", *((run.job.label,) if run.job else ())),
        problems=(*run.problems, *look.problems),
        cards=cards(run),
        gained=tuple(sheet for sheet in (error_sheet(run),) if sheet.rows),
        standing=_drawn(standing),
        where=tuple(sheet for sheet in (layer_sheet(run),) if sheet.rows),
        history=_drawn(draw(run) for draw in drawn),
        histograms=tuple(histograms),
        patterns=tuple(each.pattern for each in look.layers if each.pattern),
        filters=look.filters,
        weights_note=_weights_note(run, look),
        ran=tuple(sheet for sheet in setting_sheets(run) if sheet.rows),
        commands=_commands(run),
    )


def _several(runs: list[Run]) -> _Content:
    from secateur.report.page import history_charts as charts
    from secateur.report.page.pareto_chart import SIZES, pareto_chart

    groups = dict.fromkeys((run.network, run.data) for run in runs)
    standing = [pareto_chart(runs, size, *group) for group in groups for size in SIZES]
    history = (
        charts.comparison_chart(runs, "error", "Error", "error on validation images, %"),
        charts.comparison_chart(runs, "ratio", "Ratio", "all weights ÷ weights kept"),
    )
    looks = [look_at(run, most_layers=2) for run in runs] if len(runs) <= _MOST_WITH_WEIGHTS else []
    names = [letter(number) for number in range(len(runs))]
    problems = [
        f"{name}: {problem}"
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        for problem in (*run.problems, *(looks[number].problems if looks else ()))
    ]
    return _Content(
        title=f"{len(runs)} runs side by side: {' and '.join(f'{network} on {data}' for network, data in groups)}",
        names=tuple((run.name, name) for name, run in zip(names, runs, strict=True)),
        badges=(),
        problems=tuple(problems),
        cards=(),
        gained=(overview_sheet(runs, names),),
        standing=_drawn(standing),
        where=tuple(sheet for sheet in layer_sheets_compared(runs, names) if sheet.rows),
        history=_drawn(history),
        histograms=(),
        patterns=tuple(
            _of_run(name, each.pattern)
            for name, look in zip(names, looks, strict=False)
            for each in look.layers
            if each.pattern
        ),
        filters=tuple(
            _of_run(name, picture)
            for name, look in zip(names, looks, strict=False)
            for picture in look.filters
            if "before" not in picture.caption
        ),
        weights_note="" if looks else f"Weights are shown on pages of up to {_MOST_WITH_WEIGHTS} runs.",
        ran=tuple(sheet for sheet in (difference_sheet(runs, names),) if sheet.rows),
        commands=tuple((f"run {name}", command(run.job)) for name, run in zip(names, runs, strict=True) if run.job),
    )


def _drawn(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart is not None)


def _of_run(name: str, picture: Picture) -> Picture:
    caption, alternative = f"{name}, {picture.caption}", f"Run {name}. {picture.alternative}"
    return Picture(picture.source, picture.width, picture.height, caption, alternative)


def _weights_note(run: Run, look: Look) -> str:
    notes = []
    if not look.layers:
        notes.append("The weights of this run are not available.")
    if look.left_out:
        notes.append(f"The largest layers; {look.left_out} smaller ones are left out.")
    if look.layers and not run.is_finished:
        notes.append("As of the last checkpoint.")
    return " ".join(notes)


def _commands(run: Run) -> tuple[tuple[str, str], ...]:
    if run.job is None:
        return ()
    found = [("Run it again", command(run.job))]
    if run.is_pruned:
        if with_file(run.job) != run.job:
            found.append(("The same with few values per layer", command(with_file(run.job))))
        found.append(("The dense reference", command(run.job.reference())))
    place = str(run.directory.path)
    found.append(("Evaluate it on test images", shlex.join(["secateur", "evaluate", place])))
    found.append(("Write this page again", shlex.join(["secateur", "report", place])))
    return tuple(found)


def _fill(content: _Content) -> str:
    """Put the content into the template, with the script of the charts and their numbers packed in."""
    import jinja2  # comes with torch; slow to import

    charts = [*content.standing, *content.history, *content.histograms]
    numbers = {chart.name: {"title": chart.title, "columns": _plain_columns(chart.columns)} for chart in charts}
    items = {chart.name: chart.item for chart in charts}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("secateur.report.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("page.html")
    return template.render(
        page=content,
        style=_asset("page.css"),
        script=_asset("page.js"),
        # "</script>" within the numbers would end the script.
        numbers=json.dumps(numbers, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        library=_chart_library() if charts else "",
        items=_packed(json.dumps(items)),
        version=versions()["secateur"].replace("not installed", ""),
    )


def _plain_columns(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return columns as JSON has them: NaN and infinity become null."""
    return {
        name: [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
        for name, values in columns.items()
    }


def _asset(name: str) -> str:
    return resources.files("secateur.report.page").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


@lru_cache  # the page of a run in progress is written again and again
def _chart_library() -> str:
    script = Path(str(resources.files("bokeh"))) / "server" / "static" / "js" / "bokeh.min.js"
    return _packed(script.read_text(encoding="utf-8"))


def _packed(text: str) -> str:
    """Compress a text for the browser to unpack: the library alone would be 1.3 MB otherwise."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
