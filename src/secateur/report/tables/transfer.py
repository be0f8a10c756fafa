"""Tables of transfer: the features of two networks on other tasks, and the paper's table 3."""

from __future__ import annotations

import math
from pathlib import Path

from secateur.literature import TRANSFER
from secateur.report.tables.grid import Grid
from secateur.results import TransferResult, read
from secateur.transfer.evaluate import Comparison


def comparison_grid(result: TransferResult) -> Grid:
    """Return the scores of two networks on every task."""
    header = ("task", "measure", "dense", "pruned", "difference (95 % interval)", "p", "5-NN dense", "5-NN pruned")
    rows = tuple(
        (
            each.task,
            each.measure,
            f"{each.dense.score:.4f}",
            f"{each.pruned.score:.4f}",
            difference(each),
            f"{each.p_value:.3g}",
            _score(each.dense.neighbours_score),
            _score(each.pruned.neighbours_score),
        )
        for each in result.comparisons
    )
    return Grid(f"Features of {result.dense} (dense) and {result.pruned} (pruned)", header, rows)


def similarity_grid(result: TransferResult) -> Grid:
    """Return the similarity of every layer of two networks on every task."""
    layers = dict.fromkeys(layer.layer for each in result.comparisons for layer in each.similarity)
    found = [{layer.layer: layer.cka for layer in each.similarity} for each in result.comparisons]
    rows = tuple((layer, *(_score(each.get(layer, math.nan)) for each in found)) for layer in layers)
    return Grid("Similarity of layers (linear CKA)", ("layer", *(each.task for each in result.comparisons)), rows)


def table3(results: Path) -> Grid:
    """Return the paper's table 3 next to what was run here: the results in `results`/transfer."""
    found: dict[str, Comparison] = {}
    for path in sorted((results / "transfer").glob("*.json")):
        for each in read(TransferResult, path).comparisons:
            found.setdefault(each.task, each)
    rows, missing = [], []
    for row in TRANSFER:
        ours = ("not run here", "")
        if row.data in found:
            each = found[row.data]
            ours = (f"{each.dense.score:.4f} → {each.pruned.score:.4f}", difference(each))
        else:
            missing.append(row.command)
        paper = f"{row.dense:.4f} → {row.pruned:.4f}", f"{100 * (row.pruned - row.dense):+.2f}"
        rows.append((row.title, row.measure, *paper, *ours))
    header = ("data set", "measure", "paper: dense → pruned", "points", "here", "points (95 % interval)")
    note = "The networks are not the paper's: each file in results/transfer names its own."
    if missing:
        note += "\nRows that were not run here are run by:\n" + "\n".join(missing)
    return Grid("Table 3: features on other tasks", header, tuple(rows), note)


def difference(each: Comparison) -> str:
    """Write a difference in points with its interval."""
    return f"{100 * each.difference:+.2f} ({100 * each.low:+.2f} to {100 * each.high:+.2f})"


def _score(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"
