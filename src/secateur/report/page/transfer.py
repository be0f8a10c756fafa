"""The page of a study of transfer: scores with intervals, curves, where two networks disagree, and layers."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secateur.atomic import write_atomically
from secateur.data.pictures import read_picture
from secateur.report.page.names import identifier
from secateur.report.page.render import fill, require_bokeh
from secateur.report.page.sheets import Cell, Sheet
from secateur.report.tables.grid import Grid
from secateur.report.tables.transfer import further_grids, pairs_grid, scores_grid
from secateur.transfer.neighbours import Disagreement, Shown
from secateur.transfer.outcome import TransferStudy
from secateur.transfer.task import Picture

if TYPE_CHECKING:
    from secateur.report.page.chart import Chart

_SIZE = 64  # pixels of a thumbnail
MOST_EXAMPLES = 24  # of all tasks: about 20 kB each


@dataclass(frozen=True)
class Thumbnail:
    """A small picture, and the class of its frame."""

    source: str
    alternative: str
    mark: str = ""


@dataclass(frozen=True)
class Row:
    """What a network finds nearest."""

    title: str
    pictures: tuple[Thumbnail, ...]


@dataclass(frozen=True)
class Example:
    """A picture, or the name of an attribute, and what two networks find first."""

    query: Thumbnail | None
    label: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Disagreeing:
    """A task on which two networks disagree."""

    title: str
    sentence: str
    examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True)
class TransferContent:
    """What the template fills in."""

    title: str
    sentences: tuple[str, ...]
    made_with: str
    sheets: tuple[Sheet, ...]
    curves: tuple[Chart, ...]
    disagreements: tuple[Disagreeing, ...]
    attributes: tuple[Chart, ...]
    layers: tuple[Chart, ...]


def write_transfer_page(study: TransferStudy, disagreements: Sequence[Disagreement], path: Path) -> Path:
    """Write the page of a study to `path` and return it."""
    write_atomically(path, render_transfer_page(study, disagreements).encode())
    return path


def render_transfer_page(study: TransferStudy, disagreements: Sequence[Disagreement]) -> str:
    """Return the page of a study as HTML; the pictures of disagreements are read and made part of it."""
    require_bokeh()
    from secateur.report.page.transfer_charts import attribute_charts, curve_charts, similarity_chart

    grids = [
        scores_grid(study, "Scores of all networks"),
        *further_grids(study),
        pairs_grid(study, "Pruned networks compared with each other"),
    ]
    layers = similarity_chart(study)
    content = TransferContent(
        title=f"Features on other tasks: {', '.join(network.name for network in study.networks)}",
        sentences=tuple(
            f"{mean.network} against {mean.against}, mean of all tasks: {mean.sentence}." for mean in study.means
        ),
        made_with=_made_with(study),
        sheets=tuple(_sheet(grid) for grid in grids if grid.rows),
        curves=curve_charts(study),
        disagreements=tuple(map(_disagreeing, disagreements)),
        attributes=attribute_charts(disagreements),
        layers=() if layers is None else (layers,),
    )
    return fill("transfer.html", content, [*content.curves, *content.attributes, *content.layers])


def _made_with(study: TransferStudy) -> str:
    """Say with what the study was computed; empty if its file does not say it."""
    if not study.versions:
        return ""
    names = ", ".join(f"{name} {version}" for name, version in study.versions.items())
    threads = "1 thread" if study.threads == 1 else f"{study.threads} threads"
    took = "" if math.isnan(study.seconds) else f", {study.seconds / 60:.1f} minutes without what was found in files"
    return f"Computed with {names}; {threads}{took}."


def _sheet(grid: Grid) -> Sheet:
    return Sheet(
        name=identifier(grid.title),
        caption=grid.title[:1].upper() + grid.title[1:],
        header=grid.header,
        rows=tuple(tuple(map(Cell, row)) for row in grid.rows),
        note=grid.note,
    )


def _disagreeing(found: Disagreement) -> Disagreeing:
    first, second = found.networks
    same = found.items - found.first - found.second
    return Disagreeing(
        found.task,
        f"Of {found.items:,} {found.kind}, {found.first:,} score higher with {first}, {found.second:,} with {second}, "
        f"and {same:,} the same with both.",
        tuple(_example(found, each) for each in found.examples),
    )


def _example(found: Disagreement, shown: Shown) -> Example:
    of_class = f" of class {shown.label}" if shown.label else ""
    query = None if shown.query is None else _thumbnail(shown.query, f"A picture of {found.task}{of_class}.")
    is_named = found.kind == "attributes"
    right, wrong = ("has it", "has it not") if is_named else ("shows the same", "shows something else")
    rows = []
    for network, score, nearest in zip(found.networks, shown.scores, shown.nearest, strict=True):
        pictures = (
            _thumbnail(
                each.picture,
                f"Number {place} by {network}, {right if each.is_right else wrong}.",
                "right" if each.is_right else "wrong",
            )
            for place, each in enumerate(nearest, start=1)
        )
        worth = f"{found.measure} {100 * score:.0f} %" if found.measure else "right" if score else "wrong"
        rows.append(Row(f"{network}: {worth}", tuple(pictures)))
    return Example(query, shown.label, tuple(rows))


def _thumbnail(picture: Picture, alternative: str, mark: str = "") -> Thumbnail:
    from PIL import Image  # the report extra

    with picture.path.open("rb") as file:
        pixels = read_picture(file, str(picture.path), (3, _SIZE, _SIZE), box=picture.box)
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(content, "JPEG", quality=65)
    return Thumbnail(f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}", alternative, mark)
