"""A warning about negative zeros, which a file stores like weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from secateur.encode.levels import to_bits


def warn_of_negative_zeros(tensors: Mapping[str, Tensor]) -> None:
    """Warn about many negative zeros: `weight * mask` leaves them, and they make a lossless file larger."""
    counts = {name: _negative_zeros(tensor) for name, tensor in tensors.items()}
    many = {name: count for name, count in counts.items() if count >= max(100, tensors[name].numel() / 100)}
    if many:
        name = next(iter(many))
        rest = sum(many.values()) - many[name]
        others = f", and {len(many) - 1} more tensor{'s' * (len(many) > 2)} {rest:,}" if len(many) > 1 else ""
        warnings.warn(
            f'"{name}" holds {many[name]:,} negative zeros{others}, which are stored like weights: add 0.0 to '
            f"{'them' if others else 'it'} to lose them",
            stacklevel=3,
        )


def _negative_zeros(tensor: Tensor) -> int:
    has_signs = tensor.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    if not has_signs or tensor.layout != torch.strided or tensor.is_meta:
        return 0
    # Piece by piece: saving a network that fills half of the memory must not need the other half.
    bits, piece = to_bits(tensor), 1 << 18
    sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
    return sum(int(np.count_nonzero(bits[at : at + piece] == sign)) for at in range(0, bits.size, piece))
