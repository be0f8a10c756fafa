"""Code lengths: how many bits an adaptive entropy coder would need, and what the next symbol would cost.

A coder that starts without knowledge and predicts symbol k by (n_k + ½) / (n + A/2), its counts so far (Krichevsky and
Trofimov), needs for all the symbols together, in any order,

    bits(n_1 … n_A) = log₂ [ Γ(n + A/2) / Γ(A/2) · ∏ Γ(½) / Γ(n_k + ½) ]   =   n·H(n_k / n) + O(A/2 · log₂ n)

that is the empirical entropy and the price of learning it; there are no tables to send. A is the number of symbols in
use. For one tensor of N weights, kept in K places:

    bits     = positions + levels + side
    positions = min(G, R) + min(G, C) − G      of one binary code for all (G), one per row (R), one per column (C)
    levels   = bits(n_k over the values in use)
    side     = 16 for every centroid, step or scale (a float16)

A row or column starts from ½ non-zero at the density of the whole instead of from ½ and ½. What rows save and what
columns save add up, as in a model that multiplies the two; where learning them costs more than it saves, G stands.

The bits are a step function of the weights, so their gradient is that of the code lengths between the levels: with
x = weight/Δ and ℓ(k) the bits that one more symbol k would cost now, a weight of level k = 1, 2, … is charged

    ∂bits/∂|x| = ℓ(k+1) − ℓ(k)   for k ≤ |x| < k+1          and, where a weight may still become zero,
    ∂bits/∂|x| = ℓ(1) + ∂positions/∂kept    for |x| < 1

Added up along the way from zero to a weight this is exactly what the weight costs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

SIDE_BITS = 16  # of one centroid, step or scale


def adaptive_bits(counts: Tensor) -> Tensor:
    """Return the bits of an adaptive code for symbols that occur so often, along the last dimension, in float64."""
    counts = counts.double()
    used = counts > 0
    half_alphabet = used.sum(-1).clamp(min=1).double() / 2
    each = torch.where(used, torch.lgamma(counts + 0.5) - math.lgamma(0.5), 0.0)
    return (torch.lgamma(counts.sum(-1) + half_alphabet) - torch.lgamma(half_alphabet) - each.sum(-1)) / math.log(2)


def symbol_bits(counts: Tensor) -> Tensor:
    """Return ℓ(k), the bits that one more symbol of each kind would cost after so many."""
    counts = counts.double()
    alphabet = (counts > 0).sum().clamp(min=1)
    return torch.log2(counts.sum() + alphabet / 2) - torch.log2(counts + 0.5)


class Positions(NamedTuple):
    """Which weights are not zero: how often in each row (first index) and column (the other indices), of how many."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, kept: Tensor) -> Positions:
        """Count a tensor of booleans; one of a single dimension is one row, and all its columns are one."""
        if kept.dim() < 2:
            total = kept.sum().reshape(1)
            return cls(total, total)
        table = kept.reshape(len(kept), -1)
        return cls(table.sum(1), table.sum(0))

    def bits(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the bits, and what rows and what columns save of those for all as one."""
        total = self.rows.sum()
        whole, prior = adaptive_bits(torch.stack([total, size - total])), _prior(total, size)
        row_gain = whole - _binary_bits(self.rows, size // len(self.rows), prior).sum()
        column_gain = whole - _binary_bits(self.columns, size // len(self.columns), prior).sum()
        bits = (whole - row_gain.clamp(min=0) - column_gain.clamp(min=0)).clamp(min=0)
        return bits, row_gain, column_gain

    def prices(self, size: int) -> tuple[Tensor, Tensor]:
        """Return ∂positions/∂kept as one summand per row and one per column."""
        _, row_gain, column_gain = self.bits(size)
        total = self.rows.sum()
        price, prior = _binary_price(total, size, torch.tensor(0.5)), _prior(total, size)
        by_row = _binary_price(self.rows, size // len(self.rows), prior) - price
        by_column = _binary_price(self.columns, size // len(self.columns), prior) - price
        return torch.where(row_gain > 0, by_row, 0.0) + price, torch.where(column_gain > 0, by_column, 0.0)


def position_bits(kept: Tensor) -> Tensor:
    """Return the bits for saying which weights are not zero."""
    if kept.numel() == 0:  # no rows or no columns to divide by
        return torch.zeros((), dtype=torch.float64, device=kept.device)
    return Positions.of(kept).bits(kept.numel())[0]


def _prior(kept: Tensor, size: int) -> Tensor:
    """Return how many zeros a row or column is taken to have had per ½ non-zero before it begins."""
    return ((size - kept).double() + 0.5) / (kept.double() + 0.5) / 2


def _binary_bits(kept: Tensor, length: int, zeros: Tensor) -> Tensor:
    """Return the bits of an adaptive code that has seen ½ non-zero and so many zeros before."""

    def log_beta(kept: Tensor) -> Tensor:
        return torch.lgamma(kept + 0.5) + torch.lgamma(length - kept + zeros) - torch.lgamma(length + 0.5 + zeros)

    start = math.lgamma(0.5) + torch.lgamma(zeros) - torch.lgamma(0.5 + zeros)
    return (start - log_beta(kept.double())) / math.log(2)


def _binary_price(kept: Tensor, length: int, zeros: Tensor) -> Tensor:
    """Return the derivative of the bits in the number kept."""
    kept = kept.double()
    return (torch.digamma(length - kept + zeros) - torch.digamma(kept + 0.5)) / math.log(2)


def plain_bits(weight: Tensor, cutoff: float = 0.0) -> Tensor:
    """Return the bits of positions and of the values as they are, or of all values where that is less.

    Weights below `cutoff` count as zero.
    """
    kept = (weight.abs() >= cutoff) & (weight != 0)
    each = 8 * weight.element_size()
    sparse = position_bits(kept) + each * kept.sum()
    return sparse.clamp(max=each * weight.numel()).float()


def grid_bits(ratio: Tensor, levels: Tensor, largest: int, *, zeros_are_fixed: bool) -> Tensor:
    """Return the bits of positions and levels, with the gradient in `ratio` = weight/Δ that the module describes.

    Where `zeros_are_fixed` a weight that is kept cannot become zero: below level 1 there is nothing to gain.
    """
    kept = levels != 0
    positions = Positions.of(kept)
    bits = positions.bits(levels.numel())[0].float()
    if zeros_are_fixed:
        return bits + level_bits(ratio[kept], levels[kept], largest)
    by_row, by_column = (price.to(ratio.dtype) for price in positions.prices(levels.numel()))
    prices = (by_row[:, None] + by_column).reshape(ratio.shape) if ratio.dim() > 1 else by_row + by_column
    return bits + level_bits(ratio, levels, largest, prices)


def level_bits(ratio: Tensor, levels: Tensor, largest: int, prices: Tensor | None = None) -> Tensor:
    """Return the bits of the levels that are not zero, with their gradient in `ratio` = weight/Δ.

    `prices` are those of the positions: what it costs a weight below level 1 not to be zero, if it may become zero.
    """
    counts = torch.zeros(2 * largest + 1, dtype=torch.float64, device=levels.device)
    nonzero = levels[levels != 0].long() + largest
    counts = counts.index_add(0, nonzero, torch.ones_like(nonzero).double())
    lengths = symbol_bits(counts).to(ratio.dtype)
    lengths[largest] = 0  # a zero has no level
    fixed = ratio.detach()
    lower = fixed.abs().floor().clamp(max=largest - 1)
    sign = torch.where(fixed < 0, -1, 1)
    here = (sign * lower).long() + largest
    slopes = torch.where(fixed.abs() < largest, lengths[here + sign] - lengths[here], 0.0)
    slopes = torch.where(lower > 0, slopes, 0.0 if prices is None else slopes + prices)
    # The difference is exactly zero: it brings the gradient, not a value.
    return adaptive_bits(counts).float() + (slopes * sign * (ratio - fixed)).sum().float()
