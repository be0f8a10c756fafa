"""Tables of transfer: the features of several networks on other tasks, and the paper's table 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from secateur.literature import TRANSFER
from secateur.report.tables.grid import Grid
from secateur.results import read
from secateur.transfer.outcome import Difference, Probe, StudiedNetwork, TaskResult, TransferStudy

_PROBES: Mapping[Probe, str] = {
    "svm": "linear SVM",
    "distance": "Euclidean distance",
    "neighbours": "five nearest neighbours",
    "fine-tuned": "whole networks fine-tuned with zeros kept",
}


def read_studies(results: Path) -> dict[str, TransferStudy]:
    """Return the studies in `results`/transfer by the names of their files."""
    return {path.stem: read(TransferStudy, path) for path in sorted((results / "transfer").glob("*.json"))}


def transfer_tables(results: Path) -> list[Grid]:
    """Return the tables of all studies in `results`."""
    return [grid for name, study in read_studies(results).items() for grid in study_grids(study, f"Transfer, {name}")]


def study_grids(study: TransferStudy, title: str = "") -> list[Grid]:
    """Return all tables of a study: scores, further probes, pairs of pruned networks, and similarity of layers."""
    start = f"{title}: " if title else ""
    grids = [scores_grid(study, f"{start}features on other tasks")]
    grids += further_grids(study, start)
    grids += [pairs_grid(study, f"{start}pruned networks compared with each other")]
    grids += [similarity_grid(study, f"{start}similarity of layers with the dense network (linear CKA)")]
    return [grid for grid in grids if grid.rows]


def further_grids(study: TransferStudy, start: str = "") -> list[Grid]:
    """Return the scores by the probes that the paper does not have, a table for each; `start` begins their titles."""
    further = dict.fromkeys(probe.probe for task in study.tasks for probe in task.probes[1:])
    return [_further_grid(study, probe, f"{start}{_PROBES[probe]}") for probe in further]


def scores_grid(study: TransferStudy, title: str) -> Grid:
    """Return the scores of all networks by the paper's probes, with differences from the dense one in points."""
    dense = study.dense.name
    kept = ("weights kept", "", f"{study.dense.kept:,}", *map(_kept, study.pruned))
    rows = [kept]
    for task in study.tasks:
        cells = (
            _cell(task.main.scores[network.name], task.main.difference((network.name, dense)))
            for network in study.pruned
        )
        rows.append((task.task, task.measure, f"{100 * task.main.scores[dense]:.2f}", *cells))
    means = [difference(study.mean((network.name, dense))) for network in study.pruned] if study.means else []
    if len(study.tasks) > 1:
        rows.append(("mean change", "", "", *means))
    note = "Scores in percent; in brackets, the change in points with its interval of 95 % over test pictures."
    return Grid(title, ("task", "measure", dense, *(network.name for network in study.pruned)), tuple(rows), note)


def pairs_grid(study: TransferStudy, title: str) -> Grid:
    """Return the differences of pruned networks from each other, where these were asked for."""
    pairs = [pair for pair in study.pairs if pair[1] != study.dense.name]
    rows = [
        (task.task, task.measure, *map(_with_p, (task.main.difference(pair) for pair in pairs))) for task in study.tasks
    ]
    if len(study.tasks) > 1:
        rows.append(("mean", "", *map(_with_p, map(study.mean, pairs))))
    header = ("task", "measure", *(f"{first} − {second}" for first, second in pairs))
    return Grid(title, header, tuple(rows) if pairs else (), "In points, with the interval of 95 %.")


def similarity_grid(study: TransferStudy, title: str) -> Grid:
    """Return the similarity of every layer, in the mean over tasks with the lowest one."""
    names = [network.name for network in study.pruned]
    found: dict[str, dict[str, list[float]]] = {}
    for task in study.tasks:
        for name in names:
            for layer in task.similarity.get(name, ()):
                found.setdefault(layer.layer, {}).setdefault(name, []).append(layer.cka)
    rows = tuple(
        (layer, *(_mean_and_least(by_name.get(name, [])) for name in names)) for layer, by_name in found.items()
    )
    return Grid(title, ("layer", *names), rows, "In the mean over tasks; in brackets, that of the least similar task.")


def table3(results: Path) -> Grid:
    """Return the paper's table 3 next to what was run here: the first pruned network of each study in `results`."""
    found: dict[str, tuple[TransferStudy, TaskResult]] = {}
    for study in read_studies(results).values():
        for task in study.tasks:
            found.setdefault(task.task, (study, task))
    rows, missing = [], []
    for row in TRANSFER:
        ours = ("not run here", "", "")
        if row.data in found:
            study, task = found[row.data]
            pruned = study.pruned[0]
            change = task.main.difference((pruned.name, study.dense.name))
            scores = (task.main.scores[name] for name in (study.dense.name, pruned.name))
            ours = (
                " → ".join(f"{score:.4f}" for score in scores),
                difference(change),
                f"{pruned.name} ({pruned.ratio:.1f}×)",
            )
        else:
            missing.append(row.command)
        paper = f"{row.dense:.4f} → {row.pruned:.4f}", f"{100 * (row.pruned - row.dense):+.2f}"
        rows.append((row.title, row.measure, *paper, *ours))
    header = ("data set", "measure", "paper: dense → pruned", "points", "here", "points (95 % interval)", "network")
    note = "The networks here are not the paper's."
    if missing:
        note += " Rows that were not run here are run by:\n\n" + "\n".join(f"    {command}" for command in missing)
    return Grid("Table 3: features on other tasks", header, tuple(rows), note)


def difference(each: Difference) -> str:
    """Write a difference in points with its interval."""
    return f"{100 * each.difference:+.2f} ({100 * each.low:+.2f} to {100 * each.high:+.2f})"


def _further_grid(study: TransferStudy, probe: Probe, title: str) -> Grid:
    rows = []
    for task in study.tasks:
        for found in task.probes[1:]:
            if found.probe == probe:
                pairs = ((network.name, study.dense.name) for network in study.pruned)
                cells = (_cell(found.scores[pair[0]], found.difference(pair)) for pair in pairs)
                rows.append((task.task, task.measure, f"{100 * found.scores[study.dense.name]:.2f}", *cells))
    header = ("task", "measure", *(network.name for network in study.networks))
    return Grid(title, header, tuple(rows))


def _kept(network: StudiedNetwork) -> str:
    return f"{network.kept:,} ({network.ratio:.1f}×)"


def _cell(score: float, change: Difference) -> str:
    return f"{100 * score:.2f} ({100 * change.difference:+.2f}, {100 * change.low:+.2f} to {100 * change.high:+.2f})"


def _with_p(each: Difference) -> str:
    return f"{difference(each)}, p = {each.p_value:.2g}"


def _mean_and_least(values: list[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{np.mean(known):.3f} ({min(known):.3f})" if known else "–"
