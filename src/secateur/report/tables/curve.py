"""The table of networks that are pruned to several ratios, next to published results."""

from __future__ import annotations

import math
from pathlib import Path

from secateur import literature
from secateur.experiments.studies.curve_summary import CURVES, Longer, Point, curve, longer
from secateur.literature import Published
from secateur.report.tables.grid import Grid, kilobytes, signed, spread

CURVE_TITLE = "Networks on photographs: error against size"
_HEADER = (
    "network, data",
    "seeds",
    "epochs",
    "dense error %",
    "pruned error %",
    "difference, points",
    "weights kept",
    "file error %",
    "file",
    "images/s",
)


def curve_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Show error against weights and bytes on photographs; published results of a network stand before ours."""
    rows: list[tuple[str, ...]] = []
    for network in networks:
        points = curve(results, network)
        if points:
            known = literature.published(CURVES[network].full_width or network, CURVES[network].data)
            rows += [_published(each) for each in known]
            reference = longer(results, network)
            rows += [] if reference is None else [_longer(reference)]
            rows += [_ours(point) for point in points]
    note = (
        "Ours: mean ± standard deviation over seeds, on test images; differences are paired by seed, ± standard error. "
        "The network of the first ratio continues from the dense one, and that of each further ratio from the one "
        "before it; epochs are those of the dense network, then those from one ratio to the next. A network that is "
        '"dense for as long" has the epochs of the first ratio and was never pruned. The file is that of '
        "the pruned network with few values a layer, trained for the further epochs named. Images per second: training "
        "in all its stages, one thread of a busy machine. Published rows as their authors give them; those of VGG-16 "
        "are of the network of full width. Ours of AlexNet are from before the sample that sets thresholds met all "
        "places of a filter: run again, they give other numbers."
    )
    return Grid(CURVE_TITLE, _HEADER, tuple(rows), note if rows else "")


def curve_headline(results: Path, networks: tuple[str, ...]) -> Grid:
    """Show in one table what becomes of networks for photographs, and which command does it."""
    header = ("network, data", "seeds", "error %, dense → file", "weights kept", "file", "smaller by", "command")
    rows = tuple(
        (
            f"{network}, {CURVES[network].data}",
            str(point.seeds),
            f"{spread(point.dense_error, 2)} → {spread(point.file_error, 2)}",
            f"{point.kept[0]:,.0f} of {point.weights:,}",
            kilobytes(point.file_bytes, 1),
            f"{point.smaller:,.0f}×",
            f"`secateur reproduce curve --networks {network} --seeds {point.seeds}`",
        )
        for network in networks
        for point in curve(results, network)
    )
    note = (
        "Pruned networks continue from the dense one for further epochs, and files for a few more, which the dense one "
        "did not have: [the results](docs/results.md) say how many, and which rows are from an earlier version."
    )
    return Grid("Results on photographs", header, rows, note if rows else "")


def curve_layers_table(results: Path, network: str) -> Grid:
    """Show the share pruned of every layer of a network, a column per ratio."""
    points = curve(results, network)
    data = CURVES[network].data
    paper = literature.paper_layers(network, literature.paper_data(network) or "")
    printed = {} if paper is None else paper.pruned
    header = (
        f"{network}, layer",
        *(["the paper, %"] if printed else []),
        *(f"{point.ratio:g}×, pruned %" for point in points),
    )
    names = points[0].pruned_shares if points else {}
    rows = tuple(
        (
            name,
            *([f"{printed[name]:.1f}"] if printed else []),
            *(f"{point.pruned_shares[name]:.1f}" for point in points),
        )
        for name in names
    )
    return Grid(f"Share of the weights pruned in {network}, {data}", header, rows)


def _ours(point: Point) -> tuple[str, ...]:
    return (
        f"{point.network}, {CURVES[point.network].data}, secateur",
        str(point.seeds),
        " + ".join(map(str, point.epochs)) + (f", file + {point.file_epochs}" if point.file_epochs else ""),
        spread(point.dense_error, 2),
        spread(point.pruned_error, 2),
        signed(point.difference),
        f"{spread(point.kept, 0)} ({point.weights / point.kept[0]:.1f}×)",
        spread(point.file_error, 2),
        f"{kilobytes(point.file_bytes, 1)} ({point.smaller:,.0f}×)",
        f"{point.images_per_second:,.0f}",
    )


def _longer(reference: Longer) -> tuple[str, ...]:
    return (
        f"{reference.network}, {CURVES[reference.network].data}, dense for as long",
        str(reference.seeds),
        str(reference.epochs),
        spread(reference.error, 2),
        "–",
        "–",
        f"{reference.weights:,}",
        "–",
        "–",
        "–",
    )


def _published(each: Published) -> tuple[str, ...]:
    name = f"{each.network}, {each.data}, {each.method}, published"
    is_file = math.isnan(each.kept)  # otherwise weights are what it counts
    smaller = f"{each.ratio:g}×" if math.isfinite(each.ratio) else ""
    if math.isfinite(each.bytes):
        file = f"{each.bytes / 1000:g} kB" + (f" ({smaller})" if smaller else "")
    else:
        file = smaller if is_file and smaller else "–"
    error, kept = f"{each.error:g}", "–" if is_file else f"{each.kept:,.0f}"
    return name, "–", "–", "–", "–" if is_file else error, "–", kept, error if is_file else "–", file, "–"
