"""Whether two networks give the same answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_TOLERANCE = 1e-3  # of the largest output, for the network as a whole


def agrees(call: Callable[[], Any], expected: Any) -> bool:
    """Return whether a call gives the expected answer."""
    try:
        return _close(call(), expected)
    except Exception:  # a part may be used in ways that its forward does not show, or answers may not be comparable
        return False


def _close(one: Any, two: Any) -> bool:
    """Return whether two answers are the same: numbers to the tolerance, everything else exactly."""
    if is_dataclass(two) and not isinstance(two, type):
        return type(one) is type(two) and all(_close(getattr(one, f.name), getattr(two, f.name)) for f in fields(two))
    own, other = pytree.tree_leaves(one), pytree.tree_leaves(two)
    if len(own) != 1 or own[0] is not one:
        return len(own) == len(other) and all(_close(mine, theirs) for mine, theirs in zip(own, other, strict=True))
    if isinstance(two, float):
        one, two = (torch.tensor(value, dtype=torch.float64) for value in (one, two))
    if not isinstance(two, Tensor):
        return type(one) is type(two) and bool(one == two)
    if not isinstance(one, Tensor) or one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not two.is_floating_point():
        return torch.equal(one, two)
    finite = two[two.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    # NaN and infinities must stand in the same places: an infinite scale would let everything pass.
    return torch.allclose(one, two, rtol=0, atol=scale * _TOLERANCE, equal_nan=True)
