"""The report page: one HTML file that shows what a run has gained and lost, or several runs side by side.

It needs no network and no other file. The script that draws the charts is taken from the installed Bokeh and packed
into the page, together with the numbers; text, tables and images are there without it.
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
from secateur.experiments.job import dense_job, versions
from secateur.experiments.rundir import RunDirectory
from secateur.report.cards import Card, cards
from secateur.report.commands import command
from secateur.report.facts import Run
from secateur.report.gather import gather
from secateur.report.sheets import (
    Sheet,
    difference_sheet,
    error_sheet,
    file_sheet,
    layer_sheet,
    layer_sheets_compared,
    overview_sheet,
    setting_sheets,
)
from secateur.report.weights import Look, Picture, look_at

if TYPE_CHECKING:
    from secateur.report.charts import Chart

_MOST_WITH_WEIGHTS = 4  # runs of a comparison whose weights are shown


def write_page(runs: Sequence[RunDirectory], path: Path) -> Path:
    """Write the page of a run, or of several side by side, to `path` and return it."""
    write_atomically(path, render_page(runs).encode())
    return path


def render_page(runs: Sequence[RunDirectory]) -> str:
    """Return the page of a run, or of several side by side, as HTML.

    A run may be unfinished or damaged: the page then shows what there is. One that nothing is left of is a RunError.
    """
    if not runs:
        raise ValueError("a page needs at least one run")
    _require_bokeh()
    found = [gather(run) for run in runs]
    content = _one(found[0]) if len(found) == 1 else _several(found)
    return _fill(content)


def _require_bokeh() -> None:
    try:
        import bokeh  # noqa: F401  (the report extra; heavy, so not before it is needed)
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
    from secateur.report import charts

    look = look_at(run)
    drawn = (charts.error_chart, charts.ratio_chart, charts.threshold_chart, charts.loss_chart, charts.values_chart)
    standing = [charts.pareto_chart([run], size, run.network, run.data) for size in charts.SIZES]
    histograms = [charts.histogram_chart(each, number) for number, each in enumerate(look.layers)]
    return _Content(
        title=f"{run.network} on {run.data}",
        names=((run.name, ""),),
        badges=(run.state, f"seed {run.seed}", *_method(run)),
        problems=(*run.problems, *look.problems),
        cards=cards(run),
        gained=tuple(sheet for sheet in (error_sheet(run), file_sheet(run)) if sheet.rows),
        standing=_there(standing),
        where=tuple(sheet for sheet in (layer_sheet(run),) if sheet.rows),
        history=_there(draw(run) for draw in drawn),
        histograms=tuple(histograms),
        patterns=tuple(each.pattern for each in look.layers if each.pattern),
        filters=look.filters,
        weights_note=_weights_note(run, look),
        ran=tuple(sheet for sheet in setting_sheets(run) if sheet.rows),
        commands=_commands(run),
    )


def _several(runs: list[Run]) -> _Content:
    from secateur.report import charts

    groups = dict.fromkeys((run.network, run.data) for run in runs)
    standing = [charts.pareto_chart(runs, size, *group) for group in groups for size in charts.SIZES]
    history = (
        charts.comparison_chart(runs, "error", "Error", "error on validation images, %"),
        charts.comparison_chart(runs, "ratio", "Ratio", "all weights ÷ weights kept"),
    )
    looks = [look_at(run, most_layers=2) for run in runs] if len(runs) <= _MOST_WITH_WEIGHTS else []
    names = [charts.letter(number) for number in range(len(runs))]
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
        standing=_there(standing),
        where=tuple(sheet for sheet in layer_sheets_compared(runs, names) if sheet.rows),
        history=_there(history),
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
        weights_note="" if looks else f"Weights are shown for up to {_MOST_WITH_WEIGHTS} runs: secateur report RUN.",
        ran=tuple(sheet for sheet in (difference_sheet(runs, names),) if sheet.rows),
        commands=tuple((f"run {name}", command(run.job)) for name, run in zip(names, runs, strict=True) if run.job),
    )


def _there(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart is not None)


def _of_run(name: str, picture: Picture) -> Picture:
    caption, alternative = f"{name}, {picture.caption}", f"Run {name}. {picture.alternative}"
    return Picture(picture.source, picture.width, picture.height, caption, alternative)


def _method(run: Run) -> tuple[str, ...]:
    method = str(run.settings.get("method", "prune"))
    return () if method == "prune" else (method,)


def _weights_note(run: Run, look: Look) -> str:
    notes = []
    if not look.layers:
        notes.append("The weights of this run are not there to be shown.")
    if look.left_out:
        notes.append(f"The largest layers; {look.left_out} smaller ones are left out.")
    if look.layers and run.state != "finished":
        notes.append("As of the last checkpoint.")
    return " ".join(notes)


def _commands(run: Run) -> tuple[tuple[str, str], ...]:
    if run.job is None:
        return ()
    found = [("Train and prune again" if run.is_pruned else "Train again", command(run.job))]
    if run.job.method == "prune":
        compression = run.files[0].compression if run.files else None
        found.append(
            (
                "The same with the file" if run.files else "The same with a file",
                command(run.job, to_file=True, compression=compression),
            )
        )
        found.append(("The dense reference", command(dense_job(run.job))))
    place = str(run.directory.path)
    found.append(("Judge it on test images", shlex.join(["secateur", "evaluate", place])))
    found.append(("Write this page again", shlex.join(["secateur", "report", place])))
    return tuple(found)


def _fill(content: _Content) -> str:
    """Put the content into the template, with the script of the charts and their numbers packed in."""
    import jinja2  # comes with torch; not before it is needed

    charts = [*content.standing, *content.history, *content.histograms]
    numbers = {chart.name: {"title": chart.title, "columns": _plain_columns(chart.columns)} for chart in charts}
    items = {chart.name: chart.item for chart in charts}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("secateur.report"),
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
        # A page that said "</script>" in its numbers would end there.
        numbers=json.dumps(numbers, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        library=_chart_library() if charts else "",
        items=_packed(json.dumps(items)),
        version=versions()["secateur"].replace("not installed", ""),
    )


def _plain_columns(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return columns as JSON has them: a number that is none becomes null."""
    return {
        name: [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
        for name, values in columns.items()
    }


def _asset(name: str) -> str:
    return resources.files("secateur.report").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


@lru_cache  # a page that is written again and again, of a run under way, packs it once
def _chart_library() -> str:
    script = Path(str(resources.files("bokeh"))) / "server" / "static" / "js" / "bokeh.min.js"
    return _packed(script.read_text(encoding="utf-8"))


def _packed(text: str) -> str:
    """Compress a text for the browser to unpack: the library alone would be 1.3 MB otherwise."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
