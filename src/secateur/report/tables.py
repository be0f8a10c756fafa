"""The paper's tables with our figures beside the published ones, for the terminal and for the README."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from secateur.experiments.decay import summarize_decay
from secateur.experiments.figures import figure_path, gathering
from secateur.experiments.reproduce import (
    HAN,
    PAPER,
    PAPER_LAYERS,
    FileStats,
    Row,
    Setting,
    largest_layers_prune_most,
    layer_sizes,
    sensitivity,
    summarize,
    summarize_files,
)
from secateur.experiments.rundir import read_published
from secateur.experiments.standings import RIVAL, STAGES, Standing, after_each_stage, standings


@dataclass(frozen=True)
class Grid:
    """A table of words, with a title and a note below."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def as_rich(self) -> Table:
        """Return it for the terminal."""
        # As text: names of files and tensors may hold what rich would take for markup.
        note = Text(self.note) if self.note else None
        table = Table(title=Text(self.title), title_justify="left", caption=note, caption_justify="left")
        for index, heading in enumerate(self.header):
            table.add_column(heading, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def as_markdown(self) -> str:
        """Return it for a document."""
        lines = [self.header, tuple("---" if i == 0 else "---:" for i in range(len(self.header))), *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{body}\n\n{self.note}" if self.note else body


def headline_table(results: Path, presets: tuple[str, ...], networks: tuple[str, ...]) -> Grid:
    """Say in one table what the whole pipeline does to each network, and which command does it."""
    header = ("network, preset", "seeds", "error %, dense → file", "weights kept", "file", "smaller by", "command")
    rows = []
    for network in networks:
        for preset in presets:
            run, file = summarize(results, preset, network), summarize_files(results, preset, network)
            if run is not None and file is not None:
                size = (file.files.size_bytes[0] / 1000, file.files.size_bytes[1] / 1000)
                rows.append(
                    (
                        f"{network}, {preset}",
                        str(file.files.seeds),
                        f"{_spread(_dense_error(results, presets, network), 2)} → {_spread(file.files.error, 2)}",
                        f"{file.files.kept[0]:,.0f} of {sum(layer_sizes(network).values()):,}",
                        _spread(size, 2, " kB"),
                        f"{file.files.ratio:,.0f}×",
                        f"`secateur compress {network} --preset {preset}`",
                    )
                )
    note = (
        "Whole files, every byte counted, beside 32-bit floats; mean ± standard deviation over seeds, on test images. "
        "The dense network is the paper preset's reference, without the schedule and augmentation of the others."
    )
    return Grid("Results", header, tuple(rows), note)


def _dense_error(results: Path, presets: tuple[str, ...], network: str) -> tuple[float, float]:
    """Return the error of the dense reference: of the first preset that has one."""
    errors = [row.dense_error for preset in presets if (row := summarize(results, preset, network))]
    return next((error for error in errors if not math.isnan(error[0])), (math.nan, math.nan))


def table1(results: Path, presets: tuple[str, ...], networks: tuple[str, ...]) -> Grid:
    """Table 1: what is left of each network and what it costs in error."""
    header = ("network", "seeds", "dense error %", "error %", "difference, points", "weights kept", "ratio", "minutes")
    rows: list[tuple[str, ...]] = []
    images = set()
    literal: list[str] = []
    for network in networks:
        for who, published in (("Han et al. 2015", HAN[network]), ("the paper", PAPER[network])):
            rows.append((f"{network}, {who}", "–", "–", "–", published.change, published.kept, published.ratio, "–"))
        for preset in presets:
            row = summarize(results, preset, network)
            if row is not None:
                images.add(row.training_images)
                rows.append(_ours(row))
                if preset == "paper":
                    literal.append(f"{network} {_spread(row.raw_error, 2)} % ({_signed(row.raw_difference)} points)")
    trained = " and ".join(f"{number:,}" for number in sorted(images)) or "no"
    note = (
        "Ours: mean ± standard deviation over seeds, on test images; differences are paired by seed, ± standard error. "
        f"Trained on {trained} images. The paper preset's epochs were chosen on 5,000 others (search.json beside its "
        "results), what else was searched lies beside the results of its preset. Minutes: one pruned run, one thread "
        "of a busy machine."
    )
    if literal:
        note += " Cut as the paper writes it, survivors back at their raw weights, the paper preset has "
        note += " and ".join(literal) + "; above, survivors keep θ(w)."
    return Grid("Table 1: size and error", header, tuple(rows), note)


def _ours(row: Row) -> tuple[str, ...]:
    return (
        f"{row.network}, secateur {row.preset}",
        str(row.seeds) if row.dense_seeds in (0, row.seeds) else f"{row.seeds}, dense {row.dense_seeds}",
        _spread(row.dense_error, 2),
        _spread(row.error, 2),
        _signed(row.difference),
        _spread(row.kept, 0),
        _spread(row.ratio, 1, "×"),
        _spread((row.seconds[0] / 60, row.seconds[1] / 60), 1),
    )


# As published: Han et al. 2016 (arXiv 1510.00149, table 1), and the smallest that we know of: Oktay et al. 2019
# (arXiv 1906.06624) for LeNet-300-100, Havasi et al. 2018 (arXiv 1810.00440) for LeNet-5.
_PUBLISHED_FILES = {
    "lenet-300-100": (
        ("Deep Compression, published", "1.58", "27 kB", "40×"),
        ("best published", "1.9", "8.6 kB", "124×"),
    ),
    "lenet-5": (("Deep Compression, published", "0.74", "44 kB", "39×"), ("best published", "1", "1.5 kB", "1110×")),
}


def file_table(results: Path, presets: tuple[str, ...], networks: tuple[str, ...]) -> Grid:
    """Say how small the whole file is, and what it costs in error."""
    header = ("network", "seeds", "weights kept", "error pruned %", "error of the file %", "file", "ratio")
    rows: list[tuple[str, ...]] = []
    for network in networks:
        ours = [row for row in (summarize_files(results, preset, network) for preset in presets) if row]
        if ours:
            for who, error, size, ratio in _PUBLISHED_FILES[network]:
                rows.append((f"{network}, {who}", "–", "–", "–", error, size, ratio))
        for row in ours:
            name = f"{row.network}, secateur {row.preset}{', huffman' if row.codec == 'huffman' else ''}"
            rows.append((name, *_files(row.files), f"{row.files.ratio:,.0f}×"))
    note = (
        "Ours: whole .cut files with weights, biases, header and checksums; 1 kB is 1000 bytes, the ratio is to 32-bit "
        "floats. Mean ± standard deviation over seeds; errors on test images, of the network read back from the file."
    )
    return Grid("Files: size and error", header, tuple(rows), note)


def decay_table(results: Path, network: str) -> Grid:
    """Say whether weight decay makes shared values cheaper, as the paper suspects."""
    header = (
        "λ_wd, values a layer",
        "seeds",
        "weights kept",
        "error pruned %",
        "error of the file %",
        "file",
        "bits each",
    )
    rows = tuple(
        (f"{row.lambda_wd:g}, {row.levels}", *_files(row.files), f"{row.files.bits_per_weight_kept:.2f}")
        for row in summarize_decay(results, network)
    )
    note = "Other settings: the paper preset's. Errors on validation images; bits: of the whole file, per weight kept."
    return Grid(f"Does weight decay make quantisation cheaper? {network}", header, rows, note)


def _files(files: FileStats) -> tuple[str, ...]:
    return (
        str(files.seeds),
        _spread(files.kept, 0),
        _spread(files.error_pruned, 2),
        _spread(files.error, 2),
        _spread((files.size_bytes[0] / 1000, files.size_bytes[1] / 1000), 2, " kB"),
    )


def table2(results: Path, preset: str, networks: tuple[str, ...]) -> Grid:
    """Table 2: the share of the weights pruned in each layer."""
    header = ("network, layer", "weights", "paper %", f"secateur {preset} %")
    rows: list[tuple[str, ...]] = []
    notes = []
    for network in networks:
        sizes, row = layer_sizes(network), summarize(results, preset, network)
        for name, weights in sizes.items():
            ours = _spread(row.layers[name], 1) if row else "not run"
            printed = f"{PAPER_LAYERS[network].pruned[name]:.1f}"
            rows.append((f"{network}, {name.removesuffix('.weight')}", f"{weights:,}", printed, ours))
        total = f"{100 * (1 - 1 / row.ratio[0]):.1f}" if row else "not run"
        rows.append((f"{network}, all", f"{sum(sizes.values()):,}", f"{PAPER_LAYERS[network].total:.1f}", total))
        if row:
            word = "follows" if largest_layers_prune_most(row, sizes) else "does not quite follow"
            notes.append(f"In {network} the share pruned {word} the size of the layers.")
    return Grid("Table 2: share of the weights pruned, by layer", header, tuple(rows), " ".join(notes))


def search_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Say how ratio and error grow with the epochs: one long run with the paper's settings, seed 0."""
    rows, notes = [], []
    for network in networks:
        path = results / network / "paper" / "search.json"
        if path.exists():
            search = read_published(path)
            chosen = search["chosen_epochs"]
            notes.append(f"{network}: {chosen} epochs.")
            for record in search["history"]:
                if record["epoch"] % 10 == 0 or record["epoch"] in (1, chosen):
                    numbers = f"{record['ratio']:.1f}×", f"{record['error']:.2f}"
                    rows.append((f"{network}, {record['epoch']}", *numbers))
    note = (
        "The learning rate is constant, so every epoch of one long run is the end of a shorter one. Chosen: the fewest "
        f"epochs past 20.5×, with room for other seeds. {' '.join(notes)}"
    )
    return Grid(
        "How the epochs of the paper preset were chosen",
        ("network, epochs", "ratio", "validation error %"),
        tuple(rows),
        note,
    )


def gathering_table(results: Path) -> Grid:
    """Say whether weight decay gathers the first layer's weights at the threshold, as the paper writes."""
    header = ("of the weights that survive", "with decay %", "without decay %", "difference, points")
    title = "Figure 3: the gathering at the threshold"
    path = figure_path(results, "figure3")
    if not path.exists():
        return Grid(title, header, ())
    content = read_published(path)
    rows = []
    for words, key in (
        ("within 10 % of the threshold", "near"),
        ("within 20 % of it", "within_20_percent"),
        ("within 10 %, after θ", "near_mapped"),
    ):
        found = gathering(content, key)
        shares = found.with_decay, found.without_decay, found.difference
        rows.append((words, *(f"{100 * mean:.1f} ± {100 * error:.1f}" for mean, error in shares)))
    return Grid(title, header, tuple(rows), gathering(content).sentence)


def sensitivity_table(results: Path, network: str) -> Grid:
    """Say how much the paper's rules of thumb for γ and p matter."""
    rows = tuple(_setting(setting) for setting in sensitivity(results, network))
    header = ("setting", "seeds", "ratio", "validation error %")
    return Grid(f"Sensitivity of {network} to γ and p (other settings: the paper's)", header, rows)


def rival_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Say what is left, at which error and for how much training, after Han et al.'s method and after the paper's."""
    header = (
        "network, method",
        "seeds",
        "error %",
        "difference, points",
        "weights kept",
        "ratio",
        "steps (with search)",
        "minutes (with search)",
    )
    rows: list[tuple[str, ...]] = []
    notes = []
    for network in networks:
        for who, published in (("Han et al. as published", HAN[network]), ("the paper as published", PAPER[network])):
            printed = (published.change, published.kept, published.ratio)
            rows.append((f"{network}, {who}", "–", "–", *printed, "–", "–"))
        found = standings(results, network)
        rows += [_standing(standing) for standing in found]
        by_name = {standing.method: standing for standing in found}
        if RIVAL in by_name and "secateur paper" in by_name:
            notes.append(_verdict(by_name[RIVAL], by_name["secateur paper"]))
    note = (
        "Run here: mean ± standard deviation over seeds, on test images; differences are to each method's own dense "
        "network (Han et al.'s: the shorter training that its rounds start from), paired by seed, ± standard error. "
        "Han et al.'s rounds have the data, optimizer, batch and decay of the paper preset. "
        "Steps are gradient steps until the network is there, minutes likewise, one thread of a busy machine; in "
        "brackets all that the first seed took, where Han et al.'s quality parameter and the paper's epochs were "
        "chosen on validation images (of other presets the search is not counted). "
    )
    return Grid("The paper's claims against Han et al. 2015", header, tuple(rows), note + " ".join(notes))


def stages_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Say whether the stages of Deep Compression interfere: the error after each of them."""
    rows = []
    for network in networks:
        found = after_each_stage(results, network)
        if found is not None:
            errors = (_spread(found.errors.get(stage, (math.nan, math.nan)), 2) for stage in STAGES)
            kilobytes = (found.size_bytes[0] / 1000, found.size_bytes[1] / 1000)
            rows.append((network, str(found.seeds), *errors, _spread(kilobytes, 1)))
    header = ("network", "seeds", *(f"{stage}, error %" for stage in STAGES), "file, kB")
    return Grid("Deep Compression, stage by stage", header, tuple(rows))


def _standing(standing: Standing) -> tuple[str, ...]:
    steps, minutes = f"{standing.steps:,}", _spread((standing.seconds[0] / 60, standing.seconds[1] / 60), 1)
    if standing.search_steps is not None and standing.search_seconds is not None:
        steps += f" ({standing.search_steps:,})"
        minutes += f" ({standing.search_seconds / 60:.1f})"
    return (
        f"{standing.network}, {standing.method}",
        str(standing.seeds),
        _spread(standing.error, 2),
        _signed(standing.difference),
        _spread(standing.kept, 0),
        _spread(standing.ratio, 1, "×"),
        steps,
        minutes,
    )


def _verdict(theirs: Standing, ours: Standing) -> str:
    """Put the three claims into one sentence, whichever way they turn out."""
    apart = ours.error[0] - theirs.error[0]
    sentence = (
        f"In {ours.network} the paper preset keeps {ours.kept[0] / theirs.kept[0]:.2f} times the weights of Han et "
        f"al.'s rounds at an error {abs(apart):.2f} points {'higher' if apart > 0 else 'lower'}, and takes "
        f"{ours.steps / theirs.steps:.2f} times the steps"
    )
    if ours.search_steps and theirs.search_steps:
        sentence += f", {ours.search_steps / theirs.search_steps:.2f} times with both searches"
    return sentence + "."


def coder_table(results: Path) -> Grid:
    """Compare the codec `context` with NNCodec, as `benchmarks/context_nncodec.py` last measured it."""
    path = results / "benchmarks" / "context_nncodec.json"
    measured = read_published(path) if path.exists() else {"sums": [], "speed": []}
    totals: dict[str, list[int]] = {}
    for entry in measured["sums"]:
        seeds, theirs, ours = totals.get(name := f"{_run(entry['network'])[0]}, {entry['method']}", (0, 0, 0))
        totals[name] = [seeds + 1, theirs + entry["nncodec"], ours + entry["context"]]
    rows = tuple(
        (name, str(seeds), f"{theirs / seeds:,.0f}", f"{ours / seeds:,.0f}", f"{100 * (1 - ours / theirs):.1f} %")
        for name, (seeds, theirs, ours) in totals.items()
    )
    speeds = " … ".join(f"{value:.2f}" for value in _range(entry["speed_ratio"] for entry in measured["speed"]))
    note = (
        "Bytes of the weights of pruned networks, the same levels for both; NNCodec 2.1.3 (ISO NNC) at the best of "
        f"several settings for each tensor, means over seeds. {_larger(measured)} At 3 % density `context` decodes at "
        f"{speeds} of its speed."
    )
    return Grid(
        "The codec context beside NNCodec", ("weights, levels", "seeds", "NNCodec", "context", "smaller by"), rows, note
    )


def large_file_table(results: Path) -> Grid:
    """Say how long AlexNet's weights take to be coded and read, as `benchmarks/rans_alexnet.py` last measured it."""
    path = results / "benchmarks" / "rans_alexnet.json"
    title, header = "A large file: AlexNet's weights", ("form", "bytes", "smaller by", "encode, s", "decode, s")
    if not path.exists():
        return Grid(title, header, ())
    measured = read_published(path)
    dense, limits, memory = measured["fp32_bytes"], measured["limits"], measured["memory"]
    rows = tuple(
        (name, f"{row['bytes']:,}", f"{dense / row['bytes']:.1f}×", f"{row['encode_s']:.2f}", f"{row['decode_s']:.2f}")
        for name, row in measured["rows"].items()
    )
    peak = max(memory[way]["peak_over_fp32"] for way in ("encode", "decode"))
    note = (
        f"61 million weights with the zeros of the paper's table 2, 32 levels, {measured['threads']} threads. Wanted "
        f"are {limits['encode']:g} s to encode and {limits['decode']:g} s to decode; at the peak a process holds "
        f"{peak:.2f} times the dense weights (wanted: {limits['peak']:g})."
    )
    return Grid(title, header, rows, note)


def _run(name: str) -> tuple[str, str]:
    """Shorten a run's name to network with preset, and seed."""
    network, _, settings = name.partition("-mnist")
    preset = "paper" if "alpha" not in settings else "best-augmented" if "augment" in settings else "best"
    return f"{network} {preset}", f"seed {name.rpartition('=')[2]}"


def _larger(measured: dict[str, Any]) -> str:
    lost = measured.get("larger_above_2_kB", [])
    if not lost:
        return "Smaller on every tensor above 2 kB."
    names = "; ".join(f"{', '.join(_run(each['network']))}, {each['method']}, {each['tensor']}" for each in lost)
    return f"Smaller on every tensor above 2 kB but {names}."


def _range(values: Iterable[float]) -> tuple[float, ...]:
    found = sorted(values)
    return (found[0], found[-1]) if found else ()


def _setting(setting: Setting) -> tuple[str, ...]:
    return setting.name, str(setting.seeds), _spread(setting.ratio, 1, "×"), _spread(setting.error, 2)


def _spread(value: tuple[float, float], digits: int, unit: str = "") -> str:
    mean, deviation = value
    if math.isnan(mean):
        return "not run"
    text = f"{mean:,.{digits}f}{unit}"
    return text if math.isnan(deviation) else f"{text} ± {deviation:,.{digits}f}"


def _signed(value: tuple[float, float]) -> str:
    mean, error = value
    if math.isnan(mean):
        return "not run"
    return f"{mean:+.2f}" if math.isnan(error) else f"{mean:+.2f} ± {error:.2f}"
