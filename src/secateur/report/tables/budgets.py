"""Tables of budgets: whether they are met, and what they cost, from what `benchmarks/` last measured."""

from __future__ import annotations

from pathlib import Path

from secateur.experiments.studies.error_increase_summary import ErrorIncreaseStudy, error_increases
from secateur.experiments.studies.together_summary import Way, together
from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid, kilobytes, signed, spread

_WAYS = {
    "budget+few-values": "one after the other",
    "joint-rate": "together",
    "joint-no-rate": "together, without the rate term",
}


def met_table(results: Path) -> Grid:
    """Show the ratio that was asked for and the one that was reached, from `benchmarks/budgets_met.py`."""
    measured = read_benchmark(results, "budgets_met")
    found: dict[tuple[str, float], list[tuple[str, float]]] = {}
    for row in measured["rows"]:
        found.setdefault((row["network"], row["wanted"]), []).append((row["optimizer"], row["ratio"]))
    rows = tuple(
        (
            network,
            f"{wanted:g}×",
            ", ".join(f"{optimizer} {ratio:.2f}×" for optimizer, ratio in each),
            f"{max(abs(ratio / wanted - 1) for _, ratio in each):.2%}",
        )
        for (network, wanted), each in found.items()
    )
    note = ""
    if rows:
        note = (
            f"Trainings of {measured['steps']} steps, one set of constants. resnet-20 has batch norm and classifies "
            "CIFAR-10, the transformer has two layers and sorts sequences, the LeNets classify MNIST."
        )
    return Grid("Budgets met", ("network", "wanted", "reached", "off by at most"), rows, note)


def step_table(results: Path) -> Grid:
    """Show what learning thresholds adds to a training step, as `benchmarks/training_step.py` last measured it."""
    rows = tuple(
        (
            case,
            f"{row['plain_ms']:.2f}",
            f"{row['sibling_ms']:.2f}",
            f"{row['ratio']:.2f}",
            "{:.2f} … {:.2f}".format(*row["interval"]),
            f"{row['extra_peak_over_weight_bytes']:.2f}×" if "extra_peak_over_weight_bytes" in row else "–",
        )
        for case, row in read_benchmark(results, "training_step")["rows"].items()
    )
    header = ("one training step, one thread", "plain ms", "sibling ms", "ratio", "95 % interval", "memory added")
    note = "Memory added: at the peak of a process, compared with the bytes of the pruned weights." if rows else ""
    return Grid("Cost of learning thresholds", header, rows, note)


def cost_table(results: Path) -> Grid:
    """Show the share of a training step that a pruner takes, from `benchmarks/pruner_step.py`."""
    rows = tuple(
        (case, f"{row['step_ms']:.2f}", f"{row['pruner_ms']:.3f}", f"{row['share']:.1%}")
        for case, row in read_benchmark(results, "pruner_step")["rows"].items()
    )
    return Grid("Cost of a budget", ("one training step, one thread", "step ms", "pruner ms", "share"), rows)


def call_table(results: Path) -> Grid:
    """Compare `secateur.compress` with the same training by hand, from `benchmarks/compress_call.py`."""
    rows = tuple(
        (case, f"{row['hand_s']:.1f}", f"{row['call_s']:.1f}", f"{row['ratio']:.3f}")
        for case, row in read_benchmark(results, "compress_call")["rows"].items()
    )
    header = ("one training, one thread, CPU seconds", "by hand", "secateur.compress", "ratio")
    return Grid("Cost of one call", header, rows)


def together_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Compare pruning and quantisation learned together with one after the other, in files of the same size."""
    header = ("network, way", "seeds", "file", "weights kept", "error %", "difference, points", "bits per weight kept")
    found = [(network, way) for network in networks for way in together(results, network)]
    note = ""
    if found:
        off = max(way.estimate_off for _, way in found if way.label.startswith("joint"))
        note = (
            "Preset quick, at the same bytes by seed; the same coder writes all files. Mean ± standard deviation, on "
            "test images; differences are paired by seed, ± standard error. Without the rate term only the thresholds "
            "pay for bits, not the values of weights. Bits per weight kept: of its layer's stream in the file, "
            f"positions included. The estimate that the training ends with is off by {off:.1%} of the file at most."
        )
    return Grid("Pruning and quantisation learned together", header, tuple(_way(*each) for each in found), note)


def _way(network: str, way: Way) -> tuple[str, ...]:
    bits = ", ".join(f"{name.removesuffix('.weight')} {each:.1f}" for name, each in way.layer_bits.items())
    return (
        f"{network}, {_WAYS[way.label]}",
        str(way.seeds),
        kilobytes(way.size_bytes),
        spread(way.kept, 0),
        spread(way.error, 2),
        signed(way.difference) if way.label.startswith("joint") else "–",
        bits,
    )


def error_increase_table(results: Path, networks: tuple[str, ...]) -> Grid:
    """Show what runs with a budget of error reached, and what a sweep over ratios found."""
    header = ("network, seed", "dense error %", "allowed %", "error %", "ratio", "largest of a sweep", "share of it")
    rows = tuple(_allowed(each) for network in networks for each in error_increases(results, network))
    note = (
        "On validation images. One run with `--error-increase`, next to networks of the same recipe that were pruned "
        "to 1.15, 1.32 and 1.52 times its ratio: the largest ratio whose error is allowed counts."
    )
    return Grid("As far as the error allows", header, rows, note if rows else "")


def _allowed(study: ErrorIncreaseStudy) -> tuple[str, ...]:
    return (
        f"{study.job.network}, {study.job.seed}",
        f"{study.dense_error:.2f}",
        f"{study.dense_error + study.increase:.2f}",
        f"{study.error:.2f}{'' if study.is_kept else ' (not kept)'}",
        f"{study.ratio:.1f}×",
        f"{study.best_ratio:.1f}×",
        f"{study.ratio / study.best_ratio:.0%}",
    )
