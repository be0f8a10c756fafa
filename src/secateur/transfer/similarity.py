"""How alike are two representations of the same pictures? Linear CKA (Kornblith et al. 2019, arXiv 1905.00414)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from secateur.transfer.features import FeatureNetwork
from secateur.transfer.metrics import Numbers
from secateur.transfer.task import Picture

Kernels: TypeAlias = Mapping[str, Numbers]
SAMPLE = 128  # pictures that layers are compared on, in one batch


@dataclass(frozen=True)
class LayerSimilarity:
    """The linear CKA of a layer in two networks: 1 if its outputs differ by rotation and scale only."""

    layer: str
    cka: float


def linear_cka(first: Numbers, second: Numbers) -> float:
    """Return ‖XᵀY‖² ÷ (‖XᵀX‖ ‖YᵀY‖) of centred features X and Y (pictures, features); NaN if one is constant.

    By the kernels K = XXᵀ and L = YYᵀ, which is the same: ⟨K, L⟩ ÷ (‖K‖ ‖L‖).
    """
    if len(first) != len(second):
        raise ValueError(f"features of {len(first)} and of {len(second)} pictures cannot be compared")
    return _cka(*(_kernel(torch.from_numpy(np.asarray(each, np.float64))).numpy() for each in (first, second)))


def sample_of(pictures: Sequence[Picture], sample: int = SAMPLE) -> tuple[Picture, ...]:
    """Return a sample of pictures at equal distances, or all if there are no more."""
    count = min(sample, len(pictures))
    return tuple(pictures[index * len(pictures) // count] for index in range(count))


def compare_layers(first: Kernels, second: Kernels) -> tuple[LayerSimilarity, ...]:
    """Return the linear CKA of every layer that two networks have by the same name."""
    return tuple(LayerSimilarity(name, _cka(first[name], second[name])) for name in first if name in second)


def kernels_of(network: FeatureNetwork, pictures: Sequence[Picture]) -> dict[str, Numbers]:
    """Return the kernel (pictures, pictures) of every convolution and linear layer, from one batch.

    A hook computes it at once, so no output has to be kept.
    """
    found: dict[str, Numbers] = {}

    def keep(name: str, module: nn.Module, given: object, answer: object) -> None:
        if isinstance(answer, Tensor) and name not in found:
            found[name] = _kernel(answer.flatten(1)).numpy()

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
    layers = [(name, module) for name, module in network.model.named_modules() if isinstance(module, kinds)]
    handles = [module.register_forward_hook(partial(keep, name)) for name, module in layers]
    try:
        pixels, _ = network.stream(pictures).batch(torch.arange(len(pictures)))
        with torch.no_grad():
            network.model(network.scaling(pixels))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _kernel(features: Tensor) -> Tensor:
    centred = features - features.mean(dim=0)
    return (centred @ centred.T).double()


def _cka(first: Numbers, second: Numbers) -> float:
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float((first * second).sum()) / lengths if lengths > 0 else float("nan")
