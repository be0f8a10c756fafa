"""What a page shows, in the order of its sections: of one run, or of several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from secateur.literature import published
from secateur.report.commands import command, evaluation, with_file
from secateur.report.page.answers import Gallery, class_sheet, gallery
from secateur.report.page.cards import Card, cards
from secateur.report.page.names import letter
from secateur.report.page.pictures import Picture
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
from secateur.report.page.weights import Look, look_at
from secateur.report.page.widths import Diagram, diagram

if TYPE_CHECKING:
    from secateur.report.page.chart import Chart

_MOST_WITH_WEIGHTS = 4  # runs of a comparison whose weights are shown


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the template fills in."""

    title: str
    names: tuple[tuple[str, str], ...]  # of the runs, and a letter for each where there are several
    badges: tuple[str, ...]
    problems: tuple[str, ...]
    cards: tuple[Card, ...]
    gained: tuple[Sheet, ...]
    standing_title: str
    standing: tuple[Chart, ...]
    diagram: Diagram | None
    where: tuple[Sheet, ...]
    classes: Sheet | None
    gallery: Gallery | None
    history: tuple[Chart, ...]
    histograms: tuple[Chart, ...]
    patterns: tuple[Picture, ...]
    filters: tuple[Picture, ...]
    weights_note: str
    ran: tuple[Sheet, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def shows_weights(self) -> bool:
        """Whether any picture or histogram of weights can be shown."""
        return bool(self.histograms or self.patterns or self.filters)


def content_of(runs: list[Run]) -> Content:
    """Return what the page of these runs shows."""
    return _one(runs[0]) if len(runs) == 1 else _several(runs)


def _one(run: Run) -> Content:
    from secateur.report.page import history_charts as charts
    from secateur.report.page.pareto_chart import SIZES, pareto_chart
    from secateur.report.page.weight_charts import histogram_chart

    look = look_at(run)
    drawn = (charts.error_chart, charts.ratio_chart, charts.threshold_chart, charts.loss_chart, charts.size_chart)
    standing = [pareto_chart([run], size, run.network, run.data, run.measure) for size in SIZES]
    histograms = [histogram_chart(each, number, run.job) for number, each in enumerate(look.layers)]
    return Content(
        title=run.title,
        names=((run.name, ""),),
        badges=(run.state, f"seed {run.seed}", *((run.job.label,) if run.job else ())),
        problems=(*run.problems, *look.problems),
        cards=cards(run),
        gained=tuple(sheet for sheet in (error_sheet(run),) if sheet.rows),
        standing_title=_standing_title([run]),
        standing=_drawn(standing),
        diagram=diagram(run),
        where=tuple(sheet for sheet in (layer_sheet(run),) if sheet.rows),
        classes=class_sheet(run),
        gallery=gallery(run),
        history=_drawn(draw(run) for draw in drawn),
        histograms=tuple(histograms),
        patterns=tuple(each.pattern for each in look.layers if each.pattern),
        filters=look.filters,
        weights_note=_weights_note(run, look),
        ran=tuple(sheet for sheet in setting_sheets(run) if sheet.rows),
        commands=_commands(run),
    )


def _several(runs: list[Run]) -> Content:
    from secateur.report.page import history_charts as charts
    from secateur.report.page.pareto_chart import SIZES, pareto_chart

    groups = dict.fromkeys((run.network, run.data, run.measure) for run in runs)
    standing = [pareto_chart(runs, size, *group) for group in groups for size in SIZES]
    measures = dict.fromkeys(run.measure for run in runs)
    history = (
        *(charts.error_comparison_chart(runs, measure) for measure in measures),
        charts.ratio_comparison_chart(runs),
    )
    looks = [look_at(run, most_layers=2) for run in runs] if len(runs) <= _MOST_WITH_WEIGHTS else []
    names = [letter(number) for number in range(len(runs))]
    problems = [
        f"{name}: {problem}"
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
        for problem in (*run.problems, *(looks[number].problems if looks else ()))
    ]
    return Content(
        title=f"{len(runs)} runs side by side: {' and '.join(dict.fromkeys(run.title for run in runs))}",
        names=tuple((run.name, name) for name, run in zip(names, runs, strict=True)),
        badges=(),
        problems=tuple(problems),
        cards=(),
        gained=(overview_sheet(runs, names),),
        standing_title=_standing_title(runs),
        standing=_drawn(standing),
        diagram=None,
        where=tuple(sheet for sheet in layer_sheets_compared(runs, names) if sheet.rows),
        classes=None,
        gallery=None,
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
        weights_note="",
        ran=tuple(sheet for sheet in (difference_sheet(runs, names),) if sheet.rows),
        commands=tuple(
            (f"run {name}", command(run.job))
            for name, run in zip(names, runs, strict=True)
            if run.job and not run.is_given
        ),
    )


def _standing_title(runs: Sequence[Run]) -> str:
    if any(published(run.network, run.data) for run in runs):
        return "Compared with published results"
    names = list(dict.fromkeys(run.wording.name for run in runs))
    return f"{' and '.join(names).capitalize()} against size"


def _drawn(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart is not None)


def _of_run(name: str, picture: Picture) -> Picture:
    caption, alternative = f"{name}, {picture.caption}", f"Run {name}. {picture.alternative}"
    return Picture(picture.source, picture.width, picture.height, caption, alternative)


def _weights_note(run: Run, look: Look) -> str:
    notes = []
    if look.left_out:
        notes.append(f"The largest layers; {look.left_out} smaller ones are left out.")
    if look.layers and not run.is_finished:
        notes.append("As of the last checkpoint.")
    return " ".join(notes)


def _commands(run: Run) -> tuple[tuple[str, str], ...]:
    if run.job is None:
        return ()
    place = str(run.directory.path)
    again = ("Write this page again", shlex.join(["secateur", "report", place]))
    if run.is_given:
        if not run.is_finished:
            return (("Continue it in Python, if it was interrupted", "secateur.compress(…, resume=True)"),)
        return ("What the file spends on each tensor", shlex.join(["secateur", "inspect", place])), again
    if not run.is_finished:
        return (("Continue it, if it was interrupted", command(run.job, extra=("--resume",))),)
    found = [("Run it again", command(run.job))]
    if run.is_pruned:
        if with_file(run.job) != run.job:
            found.append(("The same with few values per layer", command(with_file(run.job))))
        found.append(("The dense reference", command(run.job.reference())))
    found.append(("Evaluate it on test images", evaluation(run.directory.path, run.network, run.data)))
    found.append(again)
    return tuple(found)
