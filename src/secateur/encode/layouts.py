"""Names, dtypes and shapes of the tensors of known networks, so that files of these networks need not spell them out.

They are part of the format, frozen in layouts.json: a layout never changes, even when the code of its network does. A
network without a layout is stored with the names and shapes of its tensors, which costs a few hundred bytes.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TypeAlias

import torch

Layout: TypeAlias = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


@cache
def layouts() -> dict[str, Layout]:
    """Return the frozen layouts by name of the network, each in the order of the network's state dict."""
    content = resources.files("secateur.encode").joinpath("layouts.json").read_text(encoding="utf-8")
    return {
        network: tuple((name, getattr(torch, dtype), tuple(shape)) for name, (dtype, shape) in tensors.items())
        for network, tensors in json.loads(content).items()
    }


def layout_of(network: str) -> Layout | None:
    """Return the frozen layout of a network, or None if it has none."""
    return layouts().get(network)
