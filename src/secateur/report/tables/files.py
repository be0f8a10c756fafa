"""Tables of whole files: how small, at which error, compared with the dense network of the same recipe."""

from __future__ import annotations

from pathlib import Path

from secateur import literature
from secateur.experiments.studies.decay_summary import summarize_decay
from secateur.experiments.studies.summaries import FileStats, layer_sizes, summarize_files
from secateur.literature import Published
from secateur.report.tables.grid import Grid, kilobytes, seeds, spread
from secateur.report.tables.paper import DATA


def headline_table(results: Path, presets: tuple[str, ...], networks: tuple[str, ...]) -> Grid:
    """Show in one table what the whole pipeline does to each network, and which command does it."""
    header = ("network, preset", "seeds", "error %, dense → file", "weights kept", "file", "smaller by", "command")
    rows = []
    for network in networks:
        for preset in presets:
            file = summarize_files(results, preset, network)
            if file is not None:
                rows.append(
                    (
                        f"{network}, {preset}",
                        seeds(file.files.seeds, file.dense_seeds),
                        f"{spread(file.dense_error, 2)} → {spread(file.files.error, 2)}",
                        f"{file.files.kept[0]:,.0f} of {sum(layer_sizes(network).values()):,}",
                        kilobytes(file.files.size_bytes),
                        f"{file.files.ratio:,.0f}×",
                        f"`secateur compress {network} --preset {preset}`",
                    )
                )
    note = (
        "Whole files, every byte counted, compared with 32-bit floats; mean ± standard deviation over seeds, on test "
        "images. The dense network has the recipe of its row (data, augmentation, schedule) and as many epochs as "
        "pruning takes, except that preset han2015 continues from it."
    )
    return Grid("Results", header, tuple(rows), note)


def file_table(results: Path, presets: tuple[str, ...], networks: tuple[str, ...]) -> Grid:
    """Show how small the whole file is, and what it costs in error."""
    header = (
        "network",
        "seeds",
        "weights kept",
        "error dense %",
        "error pruned %",
        "error of the file %",
        "file",
        "ratio",
    )
    rows: list[tuple[str, ...]] = []
    for network in networks:
        ours = [row for row in (summarize_files(results, preset, network) for preset in presets) if row]
        if ours:
            rows += [_published(network, file) for file in _known_files(network)]
        for row in ours:
            name = f"{row.network}, secateur {row.preset}{', huffman' if row.codec == 'huffman' else ''}"
            _, kept, *others = _files(row.files)
            shown = seeds(row.files.seeds, row.dense_seeds)
            rows.append((name, shown, kept, spread(row.dense_error, 2), *others, f"{row.files.ratio:,.0f}×"))
    note = (
        "Ours: whole .cut files with weights, biases, header and checksums; 1 kB is 1000 bytes, the ratio is to 32-bit "
        "floats. Mean ± standard deviation over seeds; errors on test images, of the network read back from the file. "
        "The dense network has the same recipe."
    )
    return Grid("Files: size and error", header, tuple(rows), note)


def _known_files(network: str) -> list[Published]:
    """Return the published files that have a ratio: Deep Compression's, and the smallest one."""
    return [file for file in literature.published_files(network, DATA) if file.ratio > 0]


def _published(network: str, file: Published) -> tuple[str, ...]:
    name = f"{network}, {file.method}, published"
    size = f"{file.bytes / 1000:.1f}".removesuffix(".0")
    return name, "–", "–", "–", "–", f"{file.error:g}", f"{size} kB", f"{file.ratio:g}×"


def decay_table(results: Path, network: str) -> Grid:
    """Show whether weight decay makes shared values cheaper, as the paper suspects."""
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
        spread(files.kept, 0),
        spread(files.error_pruned, 2),
        spread(files.error, 2),
        kilobytes(files.size_bytes),
    )
