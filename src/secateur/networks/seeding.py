"""Random numbers of a seed, without touching the global generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Draw from a generator of that seed inside, and leave the global one as it is; without a seed, do nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the generators of all GPUs, which are not restored here.
        torch.default_generator.manual_seed(seed)
        yield
