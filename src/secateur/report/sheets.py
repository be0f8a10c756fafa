"""The tables of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.experiments.reproduce import PAPER_LAYERS
from secateur.report.facts import Layer, PackedFile, Run
from secateur.report.literature import reference

_MOST_WITH_BARS = 4  # columns


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, what it is sorted by, and the length of a bar in it."""

    text: str
    key: float | str | None = None
    bar: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table; the first column names the row."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    totals: tuple[tuple[Cell, ...], ...] = ()
    is_sortable: bool = False
    sorted_by: int | None = None  # descending; None: in the order given
    note: str = ""


def error_sheet(run: Run) -> Sheet:
    """Return the error after each step, from the sibling to the file."""
    words = {
        "sibling": "sibling, before the cut",
        "theta": "cut, survivors keep θ(w)",
        "raw": "cut, survivors keep w: the paper's θ⁻¹",
        "final": "finished network",
    }
    rows = [(Cell(words.get(name, name)), _percent(value)) for name, value in run.forms.items()]
    images = run.error.images if run.error else "validation"
    if run.files:
        steps = {"quantized": "quantised", "trained": "its values trained", "decoded": "read back from the file"}
        file = run.files[0]
        rows += [
            (Cell(f"{steps[name]}, validation images"), _percent(value))
            for name, value in file.steps.items()
            if name in steps
        ]
        if file.error.images == "test":
            rows.append((Cell("read back from the file, test images"), _percent(file.error.percent)))
    return Sheet(
        name="forms",
        caption=f"Error after each step, {images} images unless said",
        header=("network", "error %"),
        rows=tuple(rows),
    )


def file_sheet(run: Run) -> Sheet:
    """Return the files that were made out of a run, where there are several."""
    return Sheet(
        name="files",
        caption="Files made out of this run",
        header=("file", "bytes", "ratio", "error %", "images"),
        rows=tuple(_file_row(file) for file in run.files) if len(run.files) > 1 else (),
        is_sortable=True,
    )


def _file_row(file: PackedFile) -> tuple[Cell, ...]:
    return (
        Cell(file.name),
        _number(file.bytes),
        Cell(times(file.ratio), file.ratio),
        _percent(file.error.percent),
        Cell(file.error.images),
    )


def layer_sheet(run: Run) -> Sheet:
    """Return where the weights went, layer by layer."""
    file = run.files[0] if run.files else None
    is_in_paper = run.network in PAPER_LAYERS and reference(run.network, run.data) is not None
    share = PAPER_LAYERS[run.network].pruned if is_in_paper else {}
    measured = run.speed.layers if run.speed else {}
    header = ["layer", "weights", "kept", "kept %", "ratio", "threshold", "bytes"]
    header += ["kept % in the paper"] if share else []
    header += ["dense ms", "sparse ms"] if measured else []
    header += ["shape", "in network"]
    rows = []
    for number, layer in enumerate(run.layers, start=1):
        size = file.tensor_bytes.get(layer.name) if file else None
        row = [
            Cell(layer.name, layer.name),
            *_kept(layer.weights, layer.kept),
            _threshold(layer),
            Cell("–", None) if size is None else _number(size),
        ]
        if share:
            pruned = share.get(layer.name)
            row.append(Cell("–", None) if pruned is None else Cell(f"{100 - pruned:.1f}", 100 - pruned))
        if measured:
            row += [_milliseconds(value) for value in measured.get(layer.name, (math.nan, math.nan))]
        row += [Cell(" × ".join(map(str, layer.shape)), layer.weights), Cell(str(number), number)]
        rows.append(tuple(row))
    notes = ["The mean where a layer has several thresholds."]
    if file is None:
        notes.append("Bytes need a file: secateur compress makes one.")
    if not measured:
        notes.append(f"Times need {run.directory.speed.name}, a measurement of every layer.")
    totals = _layer_totals(run, file, len(header)) if run.layers else ()
    return Sheet(
        name="layers",
        caption="Layers, those with most weights left first",
        header=tuple(header),
        rows=tuple(rows),
        totals=totals,
        is_sortable=True,
        sorted_by=2,
        note=" ".join(notes),
    )


def _layer_totals(run: Run, file: PackedFile | None, columns: int) -> tuple[tuple[Cell, ...], ...]:
    def padded(cells: list[Cell]) -> tuple[Cell, ...]:
        return tuple(cells + [Cell("")] * (columns - len(cells)))

    totals = []
    layers = {layer.name for layer in run.layers}
    if file is not None and file.tensor_bytes:
        others = sum(size for name, size in file.tensor_bytes.items() if name not in layers)
        header = file.bytes - sum(file.tensor_bytes.values())
        totals.append(padded([Cell("other tensors"), *[Cell("")] * 5, _number(others)]))
        totals.append(padded([Cell("header, checksums"), *[Cell("")] * 5, _number(header)]))
    size = _number(file.bytes) if file is not None else Cell("–")
    totals.append(padded([Cell("all"), *_kept(run.weights, run.kept), Cell(""), size]))
    return tuple(totals)


def _kept(weights: int, kept: int) -> tuple[Cell, ...]:
    share = kept / weights if weights else 0.0
    ratio = weights / kept if kept else math.inf
    return (
        _number(weights),
        _number(kept),
        Cell(f"{100 * share:.2f}", share, share),
        Cell(times(ratio) if kept else "∞", ratio if kept else 1e300),
    )


def _share_kept(layer: Layer | None, *, with_bar: bool) -> Cell:
    if layer is None or not layer.weights:
        return Cell("–", None)
    share = layer.kept / layer.weights
    return Cell(f"{100 * share:.2f}", share, share if with_bar else None)


def _threshold(layer: Layer) -> Cell:
    value = layer.threshold
    if not math.isfinite(value):
        return Cell("–", None)
    several = f" ({len(layer.thresholds)})" if len(layer.thresholds) > 1 else ""
    return Cell(f"{value:.4g}{several}", value)


def _milliseconds(value: float) -> Cell:
    return Cell(f"{value:.3g}", value) if math.isfinite(value) else Cell("–", None)


def overview_sheet(runs: Sequence[Run], names: Sequence[str]) -> Sheet:
    """Return the figures of several runs, a row each."""
    rows = []
    networks = {run.network for run in runs}
    for name, run in zip(names, runs, strict=True):
        error, file = run.error, run.files[0] if run.files else None
        rows.append(
            (
                Cell(f"{name}, {run.network}" if len(networks) > 1 else name),
                Cell(str(run.seed), run.seed if isinstance(run.seed, int) else None),
                _percent(error.percent) if error else Cell("–", None),
                Cell(error.images if error else "–"),
                _percent(run.dense_error),
                _number(run.kept) if run.layers else Cell("–", None),
                Cell(times(run.ratio), run.ratio) if math.isfinite(run.ratio) else Cell("–", None),
                _number(file.bytes) if file else Cell("–", None),
                _percent(file.error.percent) if file else Cell("–", None),
                Cell(times(run.speed.dense_ms / run.speed.sparse_ms), run.speed.dense_ms / run.speed.sparse_ms)
                if run.speed and run.speed.sparse_ms
                else Cell("–", None),
                Cell(run.state),
            )
        )
    return Sheet(
        name="overview",
        caption="The runs",
        is_sortable=True,
        header=(
            "run",
            "seed",
            "error %",
            "images",
            "dense error %",
            "weights kept",
            "ratio",
            "bytes",
            "error of the file %",
            "speed-up",
            "state",
        ),
        rows=tuple(rows),
        note="Bytes and error of the file: of the newest file that was made out of the run.",
    )


def layer_sheets_compared(runs: Sequence[Run], names: Sequence[str]) -> Iterable[Sheet]:
    """Yield, for each network, what every run keeps of every layer."""
    for network in dict.fromkeys(run.network for run in runs):
        chosen = [(name, run) for name, run in zip(names, runs, strict=True) if run.network == network]
        layers = dict.fromkeys((layer.name, layer.weights) for _, run in chosen for layer in run.layers)
        rows = []
        for layer, weights in layers:
            found = [next((each for each in run.layers if each.name == layer), None) for _, run in chosen]
            shares = [_share_kept(each, with_bar=len(chosen) <= _MOST_WITH_BARS) for each in found]
            rows.append((Cell(layer, layer), _number(weights), *shares))
        yield Sheet(
            name=f"layers-{network}",
            caption=f"{network}: percent of the weights kept, by layer and run",
            header=("layer", "weights", *(name for name, _ in chosen)),
            is_sortable=True,
            rows=tuple(rows),
        )


def difference_sheet(runs: Sequence[Run], names: Sequence[str]) -> Sheet:
    """Return the settings in which runs differ."""
    flat = [dict(_flat(run.settings)) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    differing = [key for key in keys if len({str(settings.get(key, "–")) for settings in flat}) > 1]
    return Sheet(
        name="differences",
        caption="Settings that differ",
        header=("setting", *names),
        rows=tuple((Cell(key), *(Cell(str(settings.get(key, "–"))) for settings in flat)) for key in differing),
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        else:
            yield f"{prefix}{key}", value


def setting_sheets(run: Run) -> tuple[Sheet, ...]:
    """Return the settings of a run and of its file, and what it was made with."""
    settings = tuple((Cell(key), Cell(str(value))) for key, value in _flat(run.settings))
    facts = [*run.facts.items(), *((f"seconds, {phase}", f"{value:,.0f}") for phase, value in run.seconds.items())]
    file = run.files[0] if run.files else None
    return (
        Sheet(name="settings", caption="Settings", header=("setting", "value"), rows=settings),
        Sheet(
            name="compression",
            caption=f"Settings of the file {file.name}" if file else "",
            header=("setting", "value"),
            rows=tuple((Cell(key), Cell(str(value))) for key, value in _flat(file.settings)) if file else (),
        ),
        Sheet(
            name="versions",
            caption="Made with",
            header=("what", "which"),
            rows=tuple((Cell(key), Cell(value)) for key, value in facts),
        ),
    )


def _number(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _percent(value: float) -> Cell:
    return Cell(f"{value:.2f}", value) if math.isfinite(value) else Cell("–", None)


def times(ratio: float) -> str:
    """Write a ratio."""
    if not math.isfinite(ratio):
        return "∞×"
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×"
