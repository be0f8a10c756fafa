"""The table of networks that are pruned to several ratios, next to published results."""

from __future__ import annotations

import math
from pathlib import Path

from secateur import literature
from secateur.experiments.studies.curve_summary import DATA, Point, curve
from secateur.literature import Published
from secateur.report.tables.grid import Grid, kilobytes, signed, spread

_HEADER = (
    "network",
    "seeds",
    "epochs",
    "dense error %",
    "pruned error %",
    "difference, points",
    "weights kept",
    "ratio",
    "file error %",
    "file",
    "smaller by",
)


def curve_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Show error against weights and bytes on CIFAR-10; published results of a network stand before ours."""
    rows: list[tuple[str, ...]] = []
    for network in networks:
        points = curve(results, network)
        if points:
            rows += [_published(each) for each in literature.published(network, DATA)]
            rows += [_ours(point) for point in points]
    note = (
        "Ours: mean ± standard deviation over seeds, on test images; differences are paired by seed, ± standard error. "
        "The network of the first ratio continues from the dense one, and that of each further ratio from the one "
        "before it; epochs are those of the dense network, then those from one ratio to the next. The file is that of "
        "the pruned network with few values a layer. Published rows as their authors give them."
    )
    return Grid("CIFAR-10: error against size", _HEADER, tuple(rows), note if rows else "")


def curve_layers_table(results: Path, network: str) -> Grid:
    """Show the share pruned of every layer of a network, a column per ratio."""
    points = curve(results, network)
    header = (f"{network}, layer", *(f"{point.ratio:g}×, pruned %" for point in points))
    names = points[0].pruned_shares if points else {}
    rows = tuple((name, *(f"{point.pruned_shares[name]:.1f}" for point in points)) for name in names)
    return Grid(f"CIFAR-10: share of the weights pruned in {network}", header, rows)


def _ours(point: Point) -> tuple[str, ...]:
    return (
        f"{point.network}, secateur",
        str(point.seeds),
        " + ".join(map(str, point.epochs)),
        spread(point.dense_error, 2),
        spread(point.pruned_error, 2),
        signed(point.difference),
        f"{spread(point.kept, 0)} of {point.weights:,}",
        f"{point.weights / point.kept[0]:.1f}×",
        spread(point.file_error, 2),
        kilobytes(point.file_bytes, 1),
        f"{point.smaller:,.0f}×",
    )


def _published(each: Published) -> tuple[str, ...]:
    name = f"{each.network}, {each.method}, published"
    is_file = math.isfinite(each.bytes)
    error = f"{each.error:g}"
    kept = "–" if math.isnan(each.kept) else f"{each.kept:,.0f}"
    file = f"{each.bytes / 1000:g} kB" if is_file else "–"
    smaller = f"{each.ratio:g}×" if is_file and math.isfinite(each.ratio) else "–"
    return name, "–", "–", "–", "–" if is_file else error, "–", kept, "–", error if is_file else "–", file, smaller
