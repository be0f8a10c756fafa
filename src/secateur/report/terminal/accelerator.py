"""What is printed about a network on a modelled accelerator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from secateur.run.bench.eie import CLOCK_MHZ, DEPTH, ELEMENTS, MOST_VALUES, LayerCycles


def print_cycles(console: Console, layers: Sequence[LayerCycles]) -> None:
    """Print the cycles, the load balance and the energy of every linear layer, and of all of them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in ("weights", "activations", "fillers", "cycles", "balance", "µs", "nJ"):
        table.add_column(heading, justify="right", overflow="fold")
    for layer in layers:
        fillers = layer.fillers / layer.entries if layer.entries else 0.0
        table.add_row(
            layer.name,
            f"{layer.weight_density:.1%}",
            f"{layer.activation_density:.1%}",
            f"{fillers:.1%}",
            f"{layer.cycles:,}",
            f"{layer.balance:.1%}",
            f"{layer.time_us:.2f}",
            f"{sum(layer.energy_nj.values()):.2f}",
        )
    time_us, energy_nj = (sum(each) for each in zip(*map(_costs, layers), strict=True)) if layers else (0.0, 0.0)
    cycles = sum(layer.cycles for layer in layers)
    table.add_row(
        "all linear layers", "", "", "", f"{cycles:,}", "", f"{time_us:.2f}", f"{energy_nj:.2f}", style="bold"
    )
    console.print(table)
    notes = [
        f"EIE (Han et al. 2016): {ELEMENTS} processing elements at {CLOCK_MHZ} MHz, queues of {DEPTH} activations, "
        "4-bit relative indices; activations are those of one random input",
        "balance: share of the elements' cycles with an entry to work on; fillers: share of the entries",
    ]
    many = [layer.name for layer in layers if layer.values > MOST_VALUES - 1]
    if many:
        notes.append(
            f"More than {MOST_VALUES - 1} values in {', '.join(many)}: an index of 4 bits cannot tell them apart; "
            f"share weights first, with method few-values and levels of at most {MOST_VALUES - 1}"
        )
    for note in notes:
        console.print(note, highlight=False, markup=False)


def cycles_json(layers: Sequence[LayerCycles]) -> str:
    """Return the same as JSON."""
    found = [{**asdict(each), "time_us": each.time_us, "energy_nj": each.energy_nj} for each in layers]
    return json.dumps({"hardware": "eie", "layers": found})


def _costs(layer: LayerCycles) -> tuple[float, float]:
    return layer.time_us, sum(layer.energy_nj.values())
