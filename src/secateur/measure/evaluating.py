"""Evaluate a network without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode, without gradients, and restore each module's own mode afterwards.

    The flags are set directly: `train()` and `eval()` may be overridden to do more (LoRA layers merge their
    weights there), which could not be undone.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
