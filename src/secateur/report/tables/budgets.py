"""Tables of budgets: whether they are met, and what they cost, from what `benchmarks/` last measured."""

from __future__ import annotations

from pathlib import Path

from secateur.report.tables.benchmarks import read_benchmark
from secateur.report.tables.grid import Grid


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


def cost_table(results: Path) -> Grid:
    """Show the share of a training step that a pruner takes, from `benchmarks/pruner_step.py`."""
    rows = tuple(
        (case, f"{row['step_ms']:.2f}", f"{row['pruner_ms']:.3f}", f"{row['share']:.1%}")
        for case, row in read_benchmark(results, "pruner_step")["rows"].items()
    )
    return Grid("Cost of a budget", ("one training step, one thread", "step ms", "pruner ms", "share"), rows)
