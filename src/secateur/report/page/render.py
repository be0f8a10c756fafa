"""The report page: one HTML file that shows what a run has gained and lost, or several runs side by side.

It needs no internet and no other file. The script that draws the charts is taken from the installed Bokeh and packed
into the page, together with the numbers; text, tables and images do not need it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.atomic import write_atomically
from secateur.experiments.directory import RunDirectory
from secateur.experiments.versions import versions
from secateur.report.page.content import content_of
from secateur.report.page.gather import gather
from secateur.report.page.markup import with_code
from secateur.report.page.widths import in_numbers

if TYPE_CHECKING:
    from secateur.report.page.chart import Chart


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
    require_bokeh()
    content = content_of([gather(run) for run in runs])
    return fill("page.html", content, [*content.standing, *content.history, *content.histograms])


def require_bokeh() -> None:
    """Raise a ModuleNotFoundError that says how to install what draws the charts."""
    try:
        import bokeh  # noqa: F401  (the report extra; slow to import)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the report page needs Bokeh: pip install 'secateur[report]'") from error


def fill(template: str, content: object, charts: Sequence[Chart]) -> str:
    """Put the content into a template, with the script of its charts and their numbers packed in."""
    import jinja2  # comes with torch; slow to import

    numbers = {chart.name: {"title": chart.title, "columns": _plain_columns(chart.columns)} for chart in charts}
    items = {chart.name: chart.item for chart in charts}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("secateur.report.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["code"] = with_code
    return environment.get_template(template).render(
        page=content,
        in_numbers=in_numbers,
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
