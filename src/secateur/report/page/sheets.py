"""The tables of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.literature import paper_layers
from secateur.report.forms import in_words
from secateur.report.page.names import identifier
from secateur.report.page.run import Images, Layer, PageFile, Run
from secateur.report.ratios import times
from secateur.results import ERROR, figure

_MOST_WITH_BARS = 4  # columns
_IMAGES: tuple[Images, ...] = ("validation", "test")


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, what it is sorted by, and the length of a bar in it."""

    text: str
    key: float | str | None = None
    bar: float | None = None


_NOTHING = Cell("–")


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
    """Return the error of every form of the network, in the order of the pipeline."""
    words = run.wording
    columns: dict[str, Mapping[str, float]] = {}
    if run.result is not None:
        columns[f"validation {words.measure}"] = run.result.errors
    if run.test is not None:
        columns[f"test {words.measure}"] = run.test.errors
    forms = dict.fromkeys(form for errors in columns.values() for form in errors)

    def cells(form: str) -> Iterable[Cell]:
        return (error_cell(errors.get(form, math.nan), words.measure) for errors in columns.values())

    return Sheet(
        name="forms",
        caption=f"{words.title} after each step",
        header=("network", *columns),
        rows=tuple((Cell(in_words(form)), *cells(form)) for form in forms),
    )


def layer_sheet(run: Run) -> Sheet:
    """Return where the weights went, layer by layer."""
    paper = paper_layers(run.network, run.data)
    measured = run.speed.layers if run.speed else {}
    header = ["layer", "weights", "kept", "kept %", "ratio", "threshold", "bytes"]
    header += ["kept % in the paper"] if paper else []
    header += ["dense ms", "sparse ms"] if measured else []
    header += ["shape", "in network"]
    notes = ["The mean where a layer has several thresholds."]
    if run.file is None:
        notes.append("Bytes are known when the run is finished.")
    if not measured and not run.is_given:
        notes.append("secateur bench RUN measures the time of every layer.")
    return Sheet(
        name="layers",
        caption="Layers, those that keep most weights first",
        header=tuple(header),
        rows=tuple(
            _layer_row(run, layer, number, paper.pruned if paper else None)
            for number, layer in enumerate(run.layers, start=1)
        ),
        totals=_layer_totals(run, run.file, len(header)) if run.layers else (),
        is_sortable=True,
        sorted_by=2,
        note=" ".join(notes),
    )


def _layer_row(run: Run, layer: Layer, number: int, pruned: Mapping[str, float] | None) -> tuple[Cell, ...]:
    size = run.file.tensor_bytes.get(layer.name) if run.file else None
    row = [
        Cell(layer.name, layer.name),
        *_kept(layer.weights, layer.kept),
        _threshold(layer),
        _NOTHING if size is None else number_cell(size),
    ]
    if pruned is not None:
        share = pruned.get(layer.name)
        row.append(_NOTHING if share is None else Cell(f"{100 - share:.1f}", 100 - share))
    if run.speed and run.speed.layers:
        speed = run.speed.layers.get(layer.name)
        row += [_milliseconds(speed.dense_ms), _milliseconds(speed.sparse_ms)] if speed else [_NOTHING, _NOTHING]
    return (*row, Cell(" × ".join(map(str, layer.shape)), layer.weights), Cell(str(number), number))


def _layer_totals(run: Run, file: PageFile | None, columns: int) -> tuple[tuple[Cell, ...], ...]:
    def padded(cells: list[Cell]) -> tuple[Cell, ...]:
        return tuple(cells + [Cell("")] * (columns - len(cells)))

    totals = []
    layers = {layer.name for layer in run.layers}
    if file is not None and file.tensor_bytes:
        others = sum(size for name, size in file.tensor_bytes.items() if name not in layers)
        header = file.bytes - sum(file.tensor_bytes.values())
        totals.append(padded([Cell("other tensors"), *[Cell("")] * 5, number_cell(others)]))
        totals.append(padded([Cell("header, checksums"), *[Cell("")] * 5, number_cell(header)]))
    size = number_cell(file.bytes) if file is not None else Cell("–")
    totals.append(padded([Cell("all"), *_kept(run.weights, run.kept), Cell(""), size]))
    return tuple(totals)


def _kept(weights: int, kept: int) -> tuple[Cell, ...]:
    share = kept / weights if weights else 0.0
    ratio = weights / kept if kept else math.inf
    return (
        number_cell(weights),
        number_cell(kept),
        Cell(f"{100 * share:.2f}", share, share),
        Cell(times(ratio) if kept else "∞", ratio if kept else 1e300),
    )


def _share_kept(layer: Layer | None, *, with_bar: bool) -> Cell:
    if layer is None or not layer.weights:
        return _NOTHING
    share = layer.kept / layer.weights
    return Cell(f"{100 * share:.2f}", share, share if with_bar else None)


def _threshold(layer: Layer) -> Cell:
    value = layer.threshold
    if not math.isfinite(value):
        return _NOTHING
    several = f" ({len(layer.thresholds)})" if len(layer.thresholds) > 1 else ""
    return Cell(f"{value:.4g}{several}", value)


def _milliseconds(value: float) -> Cell:
    return Cell(f"{value:.3g}", value) if math.isfinite(value) else _NOTHING


def overview_sheet(runs: Sequence[Run], names: Sequence[str]) -> Sheet:
    """Return the figures of several runs, a row each."""
    columns = _error_columns(runs)
    header = ("run", "seed", *columns, "weights kept", "ratio", "bytes", "speed-up", "state")
    with_network = len({run.network for run in runs}) > 1
    return Sheet(
        name="overview",
        caption="The runs",
        is_sortable=True,
        header=header,
        rows=tuple(
            _overview_row(
                run,
                f"{name}, {run.network}" if with_network else name,
                [error_cell(errors[place], measure) for measure, errors in columns.values()],
            )
            for place, (name, run) in enumerate(zip(names, runs, strict=True))
        ),
    )


def _error_columns(runs: Sequence[Run]) -> dict[str, tuple[str, list[float]]]:
    """Return the errors of all runs and of their dense references, as far as any is known, and what they are.

    There is a column for each measure and for the images that the errors are on.
    """
    columns: dict[str, tuple[str, list[float]]] = {}
    for measure in dict.fromkeys(run.measure for run in runs):
        for images in _IMAGES:
            own = [run.error_on(images) if run.measure == measure else None for run in runs]
            dense = [run.dense_error(images) if run.measure == measure else math.nan for run in runs]
            columns[f"{images} {measure}"] = measure, [error.value if error else math.nan for error in own]
            columns[f"dense {images} {measure}"] = measure, dense
    return {name: column for name, column in columns.items() if any(map(math.isfinite, column[1]))}


def _overview_row(run: Run, name: str, errors: Sequence[Cell]) -> tuple[Cell, ...]:
    speed = run.speed
    return (
        Cell(name),
        Cell(str(run.seed), run.seed if isinstance(run.seed, int) else None),
        *errors,
        number_cell(run.kept) if run.layers else _NOTHING,
        Cell(times(run.ratio), run.ratio) if math.isfinite(run.ratio) else _NOTHING,
        number_cell(run.file.bytes) if run.file else _NOTHING,
        Cell(times(speed.speedup), speed.speedup) if speed and speed.speedup > 0 else _NOTHING,
        Cell(run.state),
    )


def layer_sheets_compared(runs: Sequence[Run], names: Sequence[str]) -> Iterable[Sheet]:
    """Yield, for each network, what every run keeps of every layer."""
    for network in dict.fromkeys(run.network for run in runs):
        chosen = [(name, run) for name, run in zip(names, runs, strict=True) if run.network == network]
        layers = dict.fromkeys((layer.name, layer.weights) for _, run in chosen for layer in run.layers)
        rows = []
        for layer, weights in layers:
            # Networks of one class may differ in their sizes.
            same = [[each for each in run.layers if (each.name, each.weights) == (layer, weights)] for _, run in chosen]
            found = [next(iter(each), None) for each in same]
            shares = [_share_kept(each, with_bar=len(chosen) <= _MOST_WITH_BARS) for each in found]
            rows.append((Cell(layer, layer), number_cell(weights), *shares))
        yield Sheet(
            name=identifier(f"layers-{network}"),
            caption=f"{network}: percent of the weights kept, by layer and run",
            header=("layer", "weights", *(name for name, _ in chosen)),
            is_sortable=True,
            rows=tuple(rows),
        )


def difference_sheet(runs: Sequence[Run], names: Sequence[str]) -> Sheet:
    """Return the settings in which runs differ."""
    flat = [dict(_flat(_settings(run))) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    differing = [key for key in keys if len({str(settings.get(key, "–")) for settings in flat}) > 1]
    return Sheet(
        name="differences",
        caption="Settings that differ",
        header=("setting", *names),
        rows=tuple((Cell(key), *(Cell(str(settings.get(key, "–"))) for settings in flat)) for key in differing),
    )


def _settings(run: Run) -> Mapping[str, Any]:
    """Return the settings of a run; data that were given are not prepared, so that `inputs` says nothing about them."""
    return {key: value for key, value in run.settings.items() if not (run.is_given and key == "inputs")}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield settings by one name each; a list of methods is told apart by their names."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value, start=1):
                inner = {name: setting for name, setting in each.items() if name != "name"}
                yield f"{prefix}{key} {number}", each.get("name", "")
                yield from _flat(inner, f"{each.get('name', number)}.")
        else:
            yield f"{prefix}{key}", value


def setting_sheets(run: Run) -> tuple[Sheet, ...]:
    """Return the settings of a run, what its stages took, and the versions that it was run with."""
    return (
        Sheet(
            name="settings",
            caption="Settings",
            header=("setting", "value"),
            rows=tuple((Cell(key), Cell(str(value))) for key, value in _flat(_settings(run))),
        ),
        _stage_sheet(run),
        Sheet(
            name="versions",
            caption="Made with",
            header=("what", "which"),
            rows=tuple((Cell(key), Cell(value)) for key, value in _versions(run).items()),
        ),
    )


def _stage_sheet(run: Run) -> Sheet:
    stages, words = run.result.stages if run.result else (), run.wording
    before = f"validation {words.name} before{words.unit}"
    return Sheet(
        name="stages",
        caption="Stages of training",
        header=("stage", "epochs", "steps", "seconds", before, f"after{words.unit}"),
        rows=tuple(
            (
                Cell(stage.name),
                number_cell(stage.epochs),
                number_cell(stage.steps),
                Cell(f"{stage.seconds:,.0f}", stage.seconds),
                error_cell(stage.error_before, words.measure),
                error_cell(stage.error, words.measure),
            )
            for stage in stages
        ),
    )


def _versions(run: Run) -> dict[str, str]:
    if run.result is None:
        return {}
    return {
        **run.result.versions,
        f"training {run.wording.samples}": f"{run.result.training_images:,}",
        "threads": str(run.result.threads),
    }


def number_cell(value: int) -> Cell:
    """Return a number, sorted by value."""
    return Cell(f"{value:,}", value)


def error_cell(value: float, measure: str = ERROR) -> Cell:
    """Return an error or a loss, sorted by value; a dash if it is not known."""
    return Cell(figure(value, measure), value) if math.isfinite(value) else _NOTHING
