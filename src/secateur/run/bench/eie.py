"""Han et al. 2016, "EIE: Efficient Inference Engine on Compressed Deep Neural Network" (arXiv 1602.01528), as a model.

EIE multiplies a sparse matrix of shared weights by a sparse vector. Row i belongs to processing element i mod 64. A
column is broadcast if its activation is not zero; each element has a queue of activations (depth 8) and takes a cycle
for each entry that it has of the column. An entry is 4 bits of a relative row, the number of zeros since the last
entry, and 4 bits of a weight's index; more than 15 zeros take a filler entry, which costs a cycle too (section III).

For the n-th broadcast column, b_n the cycle of its broadcast, and element k with e_kn entries of it:

    b_n = max(b_{n−1} + 1, max_k f_k(n − depth))        a full queue stops the broadcast
    f_k(n) = max(f_k(n − 1), b_n) + e_kn                 what is in the queue waits

The last f_k is the time of the layer, at 800 MHz. "Theoretical" is that of a perfect balance, Σe / 64, as in table IV.
Energy is the power of table II, 9.157 mW an element, times the time; the table's parts of it are kept apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ELEMENTS, DEPTH, CLOCK_MHZ = 64, 8, 800
_MOST_ZEROS = 15  # that a relative index of 4 bits can skip
MOST_VALUES = 16  # that an index of 4 bits can tell apart, zero for fillers among them
POWER_MW = {  # of an element: table II
    "activation queue": 0.112,
    "pointer read": 1.807,
    "sparse matrix read": 4.955,
    "arithmetic": 1.162,
    "activation read and write": 1.122,
}


@dataclass(frozen=True)
class LayerCycles:
    """What a layer takes on EIE."""

    name: str
    rows: int
    columns: int
    weight_density: float
    activation_density: float
    entries: int  # of broadcast columns, fillers among them
    fillers: int
    values: int  # different ones, without zero
    cycles: int
    theoretical_cycles: float

    @property
    def balance(self) -> float:
        """The share of the elements' cycles in which they are busy."""
        return self.theoretical_cycles / self.cycles if self.cycles else 1.0

    @property
    def time_us(self) -> float:
        """The time of the layer."""
        return self.cycles / CLOCK_MHZ

    @property
    def energy_nj(self) -> dict[str, float]:
        """The energy of each part of all elements."""
        return {part: power * ELEMENTS * self.time_us for part, power in POWER_MW.items()}


def layer_cycles(
    weight: Tensor, activations: Tensor, name: str = "", *, elements: int = ELEMENTS, depth: int = DEPTH
) -> LayerCycles:
    """Return what a layer with this weight (rows, columns) takes for these activations (columns,)."""
    matrix, active = (weight != 0).numpy(), (activations != 0).numpy()
    work, fillers = _entries(matrix[:, active], elements)
    entries = int(work.sum())
    return LayerCycles(
        name=name,
        rows=matrix.shape[0],
        columns=matrix.shape[1],
        weight_density=float(matrix.mean()),
        activation_density=float(active.mean()),
        entries=entries,
        fillers=fillers,
        values=len(weight[weight != 0].unique()),
        cycles=_simulated(work, depth),
        theoretical_cycles=entries / elements,
    )


def _entries(matrix: NDArray[np.bool_], elements: int) -> tuple[NDArray[np.int64], int]:
    """Return how many entries every element has of every column (columns, elements), and how many are fillers."""
    rows, columns = matrix.shape
    local = -(-rows // elements)  # of an element
    padded = np.zeros((local * elements, columns), bool)
    padded[:rows] = matrix
    kept = padded.reshape(local, elements, columns)
    zeros = np.zeros((elements, columns), np.int64)  # since the last entry
    count, fillers = np.zeros((elements, columns), np.int64), np.zeros((elements, columns), np.int64)
    for row in kept:
        fillers += np.where(row, zeros // (_MOST_ZEROS + 1), 0)
        count += row
        zeros = np.where(row, 0, zeros + 1)
    return (count + fillers).T, int(fillers.sum())


def _simulated(work: NDArray[np.int64], depth: int) -> int:
    """Return the cycle in which the last element is done with the last column."""
    columns, elements = work.shape
    done = np.zeros((columns + depth, elements), np.int64)  # f, after `depth` rows of zeros
    broadcast = 0
    for n in range(columns):
        broadcast = max(broadcast + 1, int(done[n].max()))
        done[n + depth] = np.maximum(done[n + depth - 1], broadcast) + work[n]
    return int(done[-1].max()) if columns else 0


def network_cycles(model: nn.Module, inputs: Tensor) -> list[LayerCycles]:
    """Return what every linear layer of a network takes for one sample, whose activations come from a forward pass."""
    seen: dict[str, Tensor] = {}
    layers: Mapping[str, nn.Linear] = {
        name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)
    }

    def hook(name: str):  # type: ignore[no-untyped-def]  # torch's protocol of hooks
        return lambda layer, arguments: seen.__setitem__(name, arguments[0].detach().flatten(0, -2)[0])

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(inputs)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return [layer_cycles(layer.weight.detach(), seen[name], name) for name, layer in layers.items() if name in seen]
