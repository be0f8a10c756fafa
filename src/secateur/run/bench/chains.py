"""What the sparse chains of a compiled network multiply and read."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from secateur.run.plan import Group, Plan
from secateur.run.sparse_chain import SparseChain
from secateur.run.sparse_layer import SparseLayer


def chains_of(fast: nn.Module, plan: Plan) -> dict[Group, SparseChain]:
    """Return the chain that each sparse group of a plan became."""
    chains = {module.names: module for module in fast.modules() if isinstance(module, SparseChain)}
    return {group: chains[group.layers] for group in plan.sparse_groups}


def _samples(chain: SparseChain, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shape of the samples that each layer of a chain is given, for an input of this shape."""
    samples, sample = [], shape[1:]
    for layer in chain.layers():
        samples.append(sample)
        sample = (*sample[:-1], layer.weight.shape[0]) if _vectors(layer, sample) > 1 else layer.out_shape(sample)
    return samples


def _vectors(layer: SparseLayer, sample: tuple[int, ...]) -> int:
    """Count how often a layer is applied to a sample: a linear one to every vector in it."""
    return math.prod(sample) // max(layer.inputs, 1) if layer.window is None else 1


def multiplications(chain: SparseChain, shape: tuple[int, ...] | None) -> list[int]:
    """Count the multiplications of each layer of a chain, for one of the samples of an input of this shape."""
    if shape is None:
        return []
    given = zip(chain.layers(), _samples(chain, shape), strict=True)
    return [layer.multiplications(sample) * _vectors(layer, sample) for layer, sample in given]


def layers_alone(
    chains: Mapping[Group, SparseChain], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[SparseChain, Tensor]]:
    """Return the layers that share a call with others as calls of their own, by name."""
    calls = {}
    for group, chain in chains.items():
        shape = shapes.get(group.layers[0])
        if len(group.layers) == 1 or shape is None:
            continue
        for name, layer, sample in zip(group.layers, chain.layers(), _samples(chain, shape), strict=True):
            alone = SparseChain([layer], chain.kernel, flattens="samples" if _vectors(layer, sample) == 1 else None)
            calls[name] = (alone, torch.randn(shape[0], *sample))
    return calls


def call_one_by_one(calls: Collection[tuple[SparseChain, Tensor]]) -> None:
    """Call each chain on its input."""
    for chain, x in calls:
        chain(x)


def read_bytes(chain: SparseChain) -> int:
    """Return what is read of a chain's weights: as laid out for the kernels, or else in torch's compressed rows."""
    layers = chain.layers()
    rows = sum(8 * layer.weight.count + 4 * (layer.weight.shape[0] + 1) + layer.bias.nbytes for layer in layers)
    return chain.nbytes() or rows


def stored_bytes(chain: SparseChain) -> int:
    """Return what is kept of a chain's weights to copy and save them."""
    return sum(buffer.nbytes for buffer in chain.buffers())
