"""Tables of pretrained networks, from what `benchmarks/` last measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from secateur.experiments.studies.summaries import mean_std
from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid, minutes, spread

_Runs: TypeAlias = dict[tuple[float, float, int], list[dict[str, Any]]]  # by zeros, learning rate and method
_NAMES = {
    "budget": "budget",
    "magnitude": "one-shot magnitude of all layers, fine-tuned",
    "magnitude by layer": "one-shot magnitude of each layer, fine-tuned",
}


def encoder_table(results: Path) -> Grid:
    """Compare a budget with one-shot magnitude, as `benchmarks/sentence_encoder.py` last measured it."""
    measured = read_benchmark(results, "sentence_encoder")
    title = "A pretrained sentence encoder, distilled to itself"
    header = (
        "zeros, learning rate, method",
        "seeds",
        "cosine, validation",
        "cosine, held out",
        "STS-B, Spearman × 100",
        "minutes",
    )
    runs: _Runs = {}
    dense = [row for row in measured["rows"] if row["method"] == "dense"]
    for row in measured["rows"]:
        if row["method"] != "dense":
            runs.setdefault((row["sparsity"], row["lr"], [*_NAMES].index(row["method"])), []).append(row)
    if not dense or not runs:
        return Grid(title, header, ())
    rows = [("dense", "–", "1", "1", f"{100 * dense[0]['spearman']:.1f}", "–")]
    for (sparsity, lr, _), found in sorted(runs.items()):
        rows.append(
            (
                f"{100 * sparsity:g} %, {lr:g}, {_NAMES[found[0]['method']]}",
                str(len(found)),
                spread(mean_std(row["validation_cosine"] for row in found), 3),
                spread(mean_std(row["cosine"] for row in found), 3),
                spread(mean_std(100 * row["spearman"] for row in found), 1),
                minutes(mean_std(row["seconds"] for row in found)),
            )
        )
    config, sentences = measured["config"], measured["sentences"]
    note = (
        f"all-MiniLM-L6-v2; zeros among the {runs[next(iter(runs))][0]['weights']:,} weights of its 36 linear layers. "
        f"All methods take {config['steps']} steps in all, on the same batches of {config['batch']} out of "
        f"{sentences['training']:,} sentences, with the same loss and Adam, whose learning rate falls to 0. "
        f"{measured.get('remark', '')}"
        f"{_comparison(runs)}Cosine to the embeddings of the "
        f"dense encoder: mean over {sentences['validation']:,} validation and {sentences['held_out']:,} held-out "
        f"sentences. STS-B: its test set, {measured['pairs']:,} pairs. Mean ± standard deviation over seeds, which "
        "differ in their batches only; minutes on one thread of a busy machine."
    )
    return Grid(title, header, tuple(rows), note)


def scores_table(results: Path) -> Grid:
    """Compare what pretrained networks score with what is published, as `benchmarks/pretrained_scores.py` measured."""
    title = "Pretrained networks on photographs of ILSVRC-2012"
    header = ("network", "short side, pixels", "images", "top-1, %", "top-5, %", "published top-1, %", "difference")
    rows = []
    for row in read_benchmark(results, "pretrained_scores")["rows"].values():
        published = (row["published"] or [None])[0]
        rows.append(
            (
                str(row["network"]),
                str(row["preprocessing"]["short_side"]),
                f"{row['images']:,}",
                f"{row['top1']:.1f} ± {row['interval'][0]:.1f}",
                f"{row['top5']:.1f} ± {row['interval'][1]:.1f}",
                "–" if published is None else f"{published:.1f}",
                "–" if published is None else f"{row['top1'] - published:+.1f}",
            )
        )
    note = (
        "Weights as `--from pretrained` reads them, before any training; 95 % intervals. Published numbers are for all "
        "50,000 validation images. Ours are 5 images per class, compressed as WebP with a short side of 236 pixels, of "
        "which the network sees the centre after resizing. How much of the differences comes from this compression and "
        "how much from the choice of images was not measured: the original images were not available."
    )
    return Grid(title, header, tuple(rows), note)


def pruned_table(results: Path) -> Grid:
    """Show networks pruned without their training data, as `benchmarks/pruned_without_data.py` measured them."""
    title = "Pretrained networks pruned without their training set"
    header = ("network, zeros", "steps", "file", "of float32", "top-1, %", "top-1, change", "top-5, change", "speed")
    rows, dense = [], {}
    measured = read_benchmark(results, "pruned_without_data")
    found = measured["rows"]
    for row in sorted(found, key=lambda row: (row["network"], row["kept"])):
        name = row["network"]
        dense[name] = f"{name} {row['top1_dense']:.1f} / {row['top5_dense']:.1f} %"
        rows.append(
            (
                f"{name}, {100 - 100 * row['kept'] / row['weights']:.1f} %",
                str(row["config"]["steps"] + row["config"]["quantize_steps"]),
                f"{row['bytes']:,} bytes",
                f"{100 * row['bytes'] / row['dense_bytes']:.1f} %",
                f"{row['top1']:.1f} ± {row['top1_interval']:.1f}",
                *(f"{change:+.1f} ± {half:.1f}" for change, half in (row["top1_difference"], row["top5_difference"])),
                f"{row['latency']['speedup']:.2f}×",
            )
        )
    if not rows:
        return Grid(title, header, ())
    images = f"{found[0]['images']:,}"
    learned = {row["network"]: row["sources"] for row in found if "sources" in row}
    sources = "".join(
        f"{name} learned from {', '.join(f'{number:,} of {source}' for source, number in each.items())}. "
        for name, each in learned.items()
    )
    is_rounded = any(row["config"]["precision"] == "bf16" for row in found)
    precision = "All were evaluated in bfloat16, which moves a score by a few tenths. " if is_rounded else ""
    note = (
        "Each network learned from itself, as it was, on photographs without labels, while `Pruner` cut its weights "
        f"and then while a layer had few values; steps of {found[0]['config']['batch']}, one seed, one thread. "
        f"{sources}{measured.get('remark', '')}What is "
        f"evaluated is the file, on the {images} pictures of the table above; as it was, on the same pictures, top-1 / "
        f"top-5: {', '.join(dense.values())}. Differences are paired; 95 % intervals. {precision}Zeros are counted "
        "among all weights. Speed: `compile_sparse` compared with the same network dense, one picture at a time. "
        "squeezenet starts from Han's network, whose file has 675,763 bytes and 66.6 % zeros."
    )
    return Grid(title, header, tuple(rows), note)


def _comparison(runs: _Runs) -> str:
    """Say by how much the budget is ahead if each method has its best learning rate, and at which rates it is not."""
    gains, behind = [], []
    for sparsity in sorted({sparsity for sparsity, _, _ in runs}):
        found = {key: _mean(rows, "cosine") for key, rows in runs.items() if key[0] == sparsity}
        best = {}
        for rival in (0, 1):
            rates = [key for key in found if key[2] == rival]
            if rates:
                best[rival] = max(rates, key=lambda key: _mean(runs[key], "validation_cosine"))
        if len(best) == 2:
            gains.append(f"{found[best[0]] - found[best[1]]:+.3f} at {100 * sparsity:g} % zeros")
        behind += [
            f"{100 * sparsity:g} % zeros and a rate of {lr:g}"
            for _, lr, rival in sorted(found)
            if rival == 0 and found[sparsity, lr, 0] < found.get((sparsity, lr, 1), -1.0)
        ]
    if not gains:
        return ""
    exceptions = f" except at {' and '.join(behind)}" if behind else ""
    return (
        "With the rate that is best on validation sentences for each method, the cosine of the budget compared with "
        f"magnitude of all layers is {', '.join(gains)}; at equal rates it is higher{exceptions}. "
    )


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return mean_std(row[name] for row in rows)[0]
