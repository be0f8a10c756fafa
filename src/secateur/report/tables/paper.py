"""The paper's tables, and what it says of weight decay, γ and p, next to our own results."""

from __future__ import annotations

import math
from pathlib import Path

from secateur import literature
from secateur.experiments.studies.gathering import GatheringStudy, figure_path, gathering
from secateur.experiments.studies.searches import EpochSearch, epoch_search_path
from secateur.experiments.studies.sensitivity_summary import Setting, sensitivity
from secateur.experiments.studies.summaries import Row, largest_layers_prune_most, layer_sizes, summarize
from secateur.literature import Published
from secateur.report.tables.grid import Grid, minutes, seeds, signed, spread
from secateur.results import read

TABLE1_HEADER: tuple[str, ...] = (
    "network",
    "seeds",
    "dense error %",
    "error %",
    "difference, points",
    "weights kept",
    "ratio",
    "minutes",
)
DATA = "mnist"  # what the files of our published runs were trained on


def table1(results: Path, presets: tuple[str, ...], networks: tuple[str, ...], *, data: str | None = None) -> Grid:
    """Table 1: what is left of each network and what it costs in error, on the paper's data unless others are given.

    Top-5 errors have columns if a network has them.
    """
    header = TABLE1_HEADER
    rows: list[tuple[str, ...]] = []
    top5: list[tuple[str, str]] = []
    images = set()
    literal: list[str] = []
    for network in networks:
        rows += [
            (f"{network}, {who}", "–", "–", "–", *printed, "–")
            for who, printed in as_printed(network, "Han et al. 2015, as quoted by the paper", "the paper", data=data)
        ]
        top5 += [("–", _change(result.change_top5)) for result in _of_table1(network, data) if result]
        for preset in presets:
            row = summarize(results, preset, network, data=data)
            if row is not None:
                images.add(row.training_images)
                rows.append(table1_row(row))
                has_top5 = not math.isnan(row.top5_error[0])
                top5.append((spread(row.top5_error, 2), signed(row.top5_difference)) if has_top5 else ("–", "–"))
                if preset == "paper":
                    literal.append(f"{network} {spread(row.raw_error, 2)} % ({signed(row.raw_difference)} points)")
    trained = " and ".join(f"{number:,}" for number in sorted(images)) or "no"
    note = (
        "Ours: mean ± standard deviation over seeds, on test images; differences are paired by seed, ± standard error. "
        f"Trained on {trained} images. The epochs of the paper preset were chosen on 5,000 other images (search.json "
        "next to its results); other searches are next to the results of their presets. Minutes: one pruned run, one "
        "thread of a busy machine."
    )
    if literal:
        note += " With the kept weights at their raw values (the paper's form), the paper preset has "
        note += " and ".join(literal) + "; the table has the errors of θ(w)."
    if any(pair != ("–", "–") for pair in top5):
        header = (*header[:5], "top-5 error %", "top-5 difference, points", *header[5:])
        rows = [(*row[:5], *pair, *row[5:]) for row, pair in zip(rows, top5, strict=True)]
    return Grid("Table 1: size and error", header, tuple(rows), note)


def as_printed(
    network: str, han: str, paper: str, *, data: str | None = None
) -> list[tuple[str, tuple[str, str, str]]]:
    """Return the rows of the paper's table 1 as printed: who, and the change, weights kept and ratio."""
    return [
        (who, _printed(result)) for who, result in zip((han, paper), _of_table1(network, data), strict=True) if result
    ]


def _of_table1(network: str, data: str | None) -> tuple[Published | None, Published | None]:
    data = data or literature.paper_data(network) or ""
    return literature.han_as_quoted(network, data), literature.the_paper(network, data)


def _printed(result: Published) -> tuple[str, str, str]:
    return _change(result.change), f"{result.kept / 1000:,g}K", f"{result.ratio:g}×"


def _change(points: float) -> str:
    if math.isnan(points):
        return "–"
    return f"{points:+.1f}".replace("-", "−") if points else "0.0"


def table1_row(row: Row) -> tuple[str, ...]:
    """Return the cells of our own row in table 1, without top-5 errors."""
    return (
        f"{row.network}, secateur {row.preset}",
        seeds(row.seeds, row.dense_seeds),
        spread(row.dense_error, 2),
        spread(row.error, 2),
        signed(row.difference),
        spread(row.kept, 0),
        spread(row.ratio, 1, "×"),
        minutes(row.seconds),
    )


def table2(results: Path, preset: str, networks: tuple[str, ...], *, data: str | None = None) -> Grid:
    """Table 2: the share of the weights pruned in each layer, on the paper's data unless others are given."""
    header = ("network, layer", "weights", "paper %", f"secateur {preset} %")
    rows: list[tuple[str, ...]] = []
    notes = []
    for network in networks:
        row = summarize(results, preset, network, data=data)
        sizes = layer_sizes(network) if row is None else row.layer_weights
        paper = literature.paper_layers(network, data or literature.paper_data(network) or "")
        for name, weights in sizes.items():
            ours = spread(row.layers[name], 1) if row else "not run"
            printed = f"{paper.pruned[name]:.1f}" if paper else "–"
            rows.append((f"{network}, {name.removesuffix('.weight')}", f"{weights:,}", printed, ours))
        total = f"{100 * (1 - 1 / row.ratio[0]):.1f}" if row else "not run"
        rows.append(
            (f"{network}, all", f"{sum(sizes.values()):,}", f"{paper.total:.1f}" if paper else "–", total),
        )
        if row:
            word = "follows" if largest_layers_prune_most(row, sizes) else "does not quite follow"
            notes.append(f"In {network} the share pruned {word} the size of the layers.")
    return Grid("Table 2: share of the weights pruned, by layer", header, tuple(rows), " ".join(notes))


def search_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Show how ratio and error grow with the epochs: one long run with the paper's settings, seed 0."""
    rows, notes = [], []
    for network in networks:
        path = epoch_search_path(results, network)
        if path.exists():
            search = read(EpochSearch, path)
            chosen = search.chosen_epochs
            notes.append(f"{network}: {chosen} epochs.")
            for point in search.history:
                if point.epoch % 10 == 0 or point.epoch in (1, chosen):
                    rows.append((f"{network}, {point.epoch}", f"{point.ratio:.1f}×", f"{point.error:.2f}"))
    note = (
        "The learning rate is constant, so every epoch of one long run is the end of a shorter one. Chosen: the fewest "
        f"epochs past 20.5×, with a margin for other seeds. {' '.join(notes)}"
    )
    return Grid(
        "How the epochs of the paper preset were chosen",
        ("network, epochs", "ratio", "validation error %"),
        tuple(rows),
        note,
    )


def gathering_table(results: Path) -> Grid:
    """Show whether weight decay gathers the first layer's weights at the threshold, as the paper states."""
    header = ("of the weights kept", "with decay %", "without decay %", "difference, points")
    title = "Figure 3: the gathering at the threshold"
    path = figure_path(results, "figure3")
    if not path.exists():
        return Grid(title, header, ())
    study = read(GatheringStudy, path)
    rows = []
    for words, found in (
        ("within 10 % of the threshold", gathering(study, "near")),
        ("within 20 % of it", gathering(study, "within_20_percent")),
        ("within 10 %, after θ", gathering(study, "near_mapped")),
    ):
        shares = found.with_decay, found.without_decay, found.difference
        rows.append((words, *(f"{100 * mean:.1f} ± {100 * error:.1f}" for mean, error in shares)))
    return Grid(title, header, tuple(rows), gathering(study).sentence)


def sensitivity_table(results: Path, network: str) -> Grid:
    """Show how much the paper's rules of thumb for γ and p matter."""
    rows = tuple(_setting(setting) for setting in sensitivity(results, network))
    header = ("setting", "seeds", "ratio", "validation error %")
    return Grid(f"Sensitivity of {network} to γ and p (other settings: the paper's)", header, rows)


def _setting(setting: Setting) -> tuple[str, ...]:
    return setting.name, str(setting.seeds), spread(setting.ratio, 1, "×"), spread(setting.error, 2)
