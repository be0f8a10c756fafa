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
from secateur.experiments.job import versions
from secateur.experiments.reproduce import PAPER_LAYERS
from secateur.experiments.rundir import RunDirectory
from secateur.report.gather import Layer, PackedFile, Run, command, dense_job, gather
from secateur.report.literature import PAPER, Reference, published
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
class Card:
    """A figure of merit: the network's, large, and what it stands beside."""

    title: str
    value: str
    claim: str
    rows: tuple[tuple[str, str, float], ...] = ()  # who, how much, and the length of a bar from 0 to 1
    notes: tuple[tuple[str, str], ...] = ()  # a sentence and, where it has a remedy, a command


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
    history = (charts.error_chart(run), charts.ratio_chart(run), charts.threshold_chart(run), charts.loss_chart(run))
    standing = [charts.pareto_chart([run], size, run.network, run.data) for size in charts.SIZES]
    histograms = [charts.histogram_chart(each, number) for number, each in enumerate(look.layers)]
    return _Content(
        title=f"{run.network} on {run.data}",
        names=((run.name, ""),),
        badges=(run.state, f"seed {run.seed}", *_method(run)),
        problems=(*run.problems, *look.problems),
        cards=_cards(run),
        gained=tuple(sheet for sheet in (_forms(run), _file_sheet(run)) if sheet.rows),
        standing=_there(standing),
        where=tuple(sheet for sheet in (_layer_sheet(run),) if sheet.rows),
        history=_there(history),
        histograms=tuple(histograms),
        patterns=tuple(each.pattern for each in look.layers if each.pattern),
        filters=look.filters,
        weights_note=_weights_note(run, look),
        ran=tuple(sheet for sheet in _ran(run) if sheet.rows),
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
        gained=(_overview(runs, names),),
        standing=_there(standing),
        where=tuple(sheet for sheet in _layers_compared(runs, names) if sheet.rows),
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
        ran=tuple(sheet for sheet in (_differences(runs, names),) if sheet.rows),
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


def _cards(run: Run) -> tuple[Card, ...]:
    return _weights_card(run), _file_card(run), _error_card(run), _speed_card(run)


def _weights_card(run: Run) -> Card:
    paper = _paper(run)
    if not run.weights:
        claim = f"{_times(run.ratio)} fewer" if math.isfinite(run.ratio) else "not known yet"
        return Card(title="Weights kept", value="–", claim=claim)
    rows = [
        ("this network", f"{run.kept:,}", run.kept / run.weights),
        ("dense", f"{run.weights:,}", 1.0),
    ]
    if paper is not None:
        rows.append(("the paper", f"{paper.kept:,} ({paper.ratio:g}×)", paper.kept / run.weights))
    return Card(
        title="Weights kept",
        value=f"{run.kept:,}",
        claim=f"{_times(run.ratio)} fewer than the dense network has",
        rows=tuple(rows),
        notes=((f"With biases: {run.parameters_kept:,} of {run.parameters:,} parameters.", ""),),
    )


def _file_card(run: Run) -> Card:
    if not run.files:
        how = (("To make one:", command(run.job, to_file=True)),) if run.is_pruned and run.job else ()
        return Card(title="File", value="–", claim="no file yet", notes=how)
    file = run.files[0]
    whole = max(1, file.dense_bytes)
    rows = [("this file", _bytes(file.bytes), file.bytes / whole), ("dense", _bytes(file.dense_bytes), 1.0)]
    smallest = min(
        (each for each in published(run.network, run.data) if math.isfinite(each.bytes)),
        key=lambda each: each.bytes,
        default=None,
    )
    notes = [("All of it counts: weights, biases, header, checksums. The paper gives no bytes.", "")]
    if smallest is not None:
        rows.append((f"published, {smallest.error:g} %", _bytes(smallest.bytes), smallest.bytes / whole))
        notes.append((f"Published: {smallest.method} ({smallest.source}).", ""))
    return Card(
        title="File",
        value=_bytes(file.bytes),
        claim=f"{_times(file.ratio)} smaller than 32-bit floats, {file.error.images} error {file.error.percent:.2f} %",
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _error_card(run: Run) -> Card:
    error, paper, dense = run.error, _paper(run), run.dense
    if error is None or not math.isfinite(error.percent):
        return Card(title="Error", value="–", claim="not known yet")
    beside = _dense_error(run)
    count = f"{error.count:,} " if error.count else ""
    claim = f"on {count}{error.images} images"
    rows = [("this network", f"{error.percent:.2f} %", error.percent)]
    notes = []
    if dense is not None and math.isfinite(beside):
        claim += f", {error.percent - beside:+.2f} points beside the dense network"
        rows.append(("dense", f"{beside:.2f} %", beside))
        if dense.seeds != (run.seed,):
            notes.append((f"Dense: the mean over seed{'s' if len(dense.seeds) > 1 else ''} {_list(dense.seeds)}.", ""))
    elif run.is_pruned and run.job is not None:
        notes.append(("There is no dense network beside this run; to train it:", command(dense_job(run.job))))
    if paper is not None:
        notes.append((f"The paper: {paper.change:+.1f} points beside its own dense network.", ""))
    if error.images == "validation" and run.state == "finished":
        notes.append(("For test images:", shlex.join(["secateur", "evaluate", str(run.directory.path)])))
    longest = max(length for _, _, length in rows) or 1.0
    return Card(
        title="Error",
        value=f"{error.percent:.2f} %",
        claim=claim,
        rows=tuple((who, text, length / longest) for who, text, length in rows),
        notes=tuple(notes),
    )


def _dense_error(run: Run) -> float:
    """Return the dense network's error on the images that the run is judged by; NaN if it is not known."""
    if run.dense is None or run.error is None:
        return math.nan
    return run.dense.test if run.error.images == "test" else run.dense.validation


def _speed_card(run: Run) -> Card:
    speed = run.speed
    if speed is None:
        how = f"It appears here when {run.directory.speed.name} lies in the run's directory. The paper gives no times."
        return Card(title="Speed", value="–", claim="not measured", notes=((how, ""),))
    longest = max(speed.sparse_ms, speed.dense_ms) or 1.0
    return Card(
        title="Speed",
        value=_times(speed.dense_ms / speed.sparse_ms) if speed.sparse_ms else "–",
        claim=f"as fast as the dense network; batch {speed.batch:,}, threads: {speed.threads}",
        rows=(
            ("this network", f"{speed.sparse_ms:.3g} ms", speed.sparse_ms / longest),
            ("dense", f"{speed.dense_ms:.3g} ms", speed.dense_ms / longest),
        ),
        notes=(("The paper gives no times.", ""),),
    )


def _paper(run: Run) -> Reference | None:
    """Return the paper's figures for the network, if it is on the paper's data."""
    return PAPER.get(run.network) if run.data in ("mnist", "imagenet") and run.is_pruned else None


def _forms(run: Run) -> Sheet:
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


def _file_sheet(run: Run) -> Sheet:
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
        Cell(_times(file.ratio), file.ratio),
        _percent(file.error.percent),
        Cell(file.error.images),
    )


def _layer_sheet(run: Run) -> Sheet:
    """Where the weights went, layer by layer."""
    file = run.files[0] if run.files else None
    share = PAPER_LAYERS[run.network].pruned if run.network in PAPER_LAYERS and _paper(run) else {}
    times = run.speed.layers if run.speed else {}
    header = ["layer", "in network", "shape", "weights", "kept", "kept %", "ratio", "threshold", "bytes"]
    header += ["kept % in the paper"] if share else []
    header += ["dense ms", "sparse ms"] if times else []
    rows = []
    for number, layer in enumerate(run.layers, start=1):
        size = file.tensor_bytes.get(layer.name) if file else None
        row = [
            Cell(layer.name, layer.name),
            Cell(str(number), number),
            Cell(" × ".join(map(str, layer.shape)), layer.weights),
            *_kept(layer.weights, layer.kept),
            _threshold(layer),
            Cell("–", None) if size is None else _number(size),
        ]
        if share:
            pruned = share.get(layer.name)
            row.append(Cell("–", None) if pruned is None else Cell(f"{100 - pruned:.1f}", 100 - pruned))
        if times:
            row += [_milliseconds(value) for value in times.get(layer.name, (math.nan, math.nan))]
        rows.append(tuple(row))
    notes = ["The mean where a layer has several thresholds."]
    if file is None:
        notes.append("Bytes need a file: secateur compress makes one.")
    if not times:
        notes.append(f"Times need {run.directory.speed.name}, a measurement of every layer.")
    totals = _layer_totals(run, file, len(header)) if run.layers else ()
    return Sheet(
        name="layers",
        caption="Layers, those with most weights left first",
        header=tuple(header),
        rows=tuple(rows),
        totals=totals,
        is_sortable=True,
        sorted_by=4,
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
        totals.append(padded([Cell("other tensors"), *[Cell("")] * 7, _number(others)]))
        totals.append(padded([Cell("header, checksums"), *[Cell("")] * 7, _number(header)]))
    size = _number(file.bytes) if file is not None else Cell("–")
    totals.append(padded([Cell("all"), Cell(""), Cell(""), *_kept(run.weights, run.kept), Cell(""), size]))
    return tuple(totals)


def _kept(weights: int, kept: int) -> tuple[Cell, ...]:
    share = kept / weights if weights else 0.0
    ratio = weights / kept if kept else math.inf
    return (
        _number(weights),
        _number(kept),
        Cell(f"{100 * share:.2f}", share, share),
        Cell(_times(ratio) if kept else "∞", ratio if kept else 1e300),
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
    return Cell(f"{value:.4f}{several}", value)


def _milliseconds(value: float) -> Cell:
    return Cell(f"{value:.3g}", value) if math.isfinite(value) else Cell("–", None)


def _overview(runs: Sequence[Run], names: Sequence[str]) -> Sheet:
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
                _percent(_dense_error(run)),
                _number(run.kept) if run.layers else Cell("–", None),
                Cell(_times(run.ratio), run.ratio) if math.isfinite(run.ratio) else Cell("–", None),
                _number(file.bytes) if file else Cell("–", None),
                _percent(file.error.percent) if file else Cell("–", None),
                Cell(_times(run.speed.dense_ms / run.speed.sparse_ms), run.speed.dense_ms / run.speed.sparse_ms)
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


def _layers_compared(runs: Sequence[Run], names: Sequence[str]) -> Iterable[Sheet]:
    """Yield, for each network, what every run keeps of every layer."""
    for network in dict.fromkeys(run.network for run in runs):
        chosen = [(name, run) for name, run in zip(names, runs, strict=True) if run.network == network]
        layers = dict.fromkeys((layer.name, layer.weights) for _, run in chosen for layer in run.layers)
        rows = []
        for layer, weights in layers:
            found = [next((each for each in run.layers if each.name == layer), None) for _, run in chosen]
            shares = [_share_kept(each, with_bar=len(chosen) <= _MOST_WITH_WEIGHTS) for each in found]
            rows.append((Cell(layer, layer), _number(weights), *shares))
        yield Sheet(
            name=f"layers-{network}",
            caption=f"{network}: percent of the weights kept, by layer and run",
            header=("layer", "weights", *(name for name, _ in chosen)),
            is_sortable=True,
            rows=tuple(rows),
        )


def _differences(runs: Sequence[Run], names: Sequence[str]) -> Sheet:
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


def _weights_note(run: Run, look: Look) -> str:
    notes = []
    if not look.layers:
        notes.append("The weights of this run are not there to be shown.")
    if look.left_out:
        notes.append(f"The largest layers; {look.left_out} smaller ones are left out.")
    if look.layers and run.state != "finished":
        notes.append("As of the last checkpoint.")
    return " ".join(notes)


def _ran(run: Run) -> tuple[Sheet, ...]:
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


def _number(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _percent(value: float) -> Cell:
    return Cell(f"{value:.2f}", value) if math.isfinite(value) else Cell("–", None)


def _times(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "∞×"
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×"


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:,.0f} bytes"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


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
