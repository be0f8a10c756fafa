"""Sparse chains as an operator of torch, so that torch.export and torch.compile keep them in their graphs.

The operator takes the non-zeros of all layers as tensors, and what else a chain is as text: an exported program has
both in it, and runs wherever secateur.run has been imported.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.run.kernels.kernel import Kernel
from secateur.run.sparse_chain import SparseChain
from secateur.run.sparse_layer import Pool, SparseLayer, Window
from secateur.run.sparse_weight import SparseWeight

_KEPT = 1024  # chains that were called last: laying one out takes longer than running it
_chains: OrderedDict[tuple[str, tuple[int, ...]], tuple[SparseChain, list[Tensor]]] = OrderedDict()


def _run(x: Tensor, residual: Tensor | None, weights: list[Tensor], spec: str) -> Tensor:
    key = spec, tuple(one.data_ptr() for one in weights)
    found = _chains.pop(key, None) or (_chain(spec, weights), weights)  # kept with it, an address means one tensor
    _chains[key] = found
    if len(_chains) > _KEPT:
        _chains.popitem(last=False)
    result: Tensor = found[0](x, residual)
    return result


def _shape(x: Tensor, residual: Tensor | None, weights: list[Tensor], spec: str) -> Tensor:
    return x.new_empty(_chain(spec, None).out_shape(x.shape, None if residual is None else residual.shape))


def _chain(spec: str, weights: Sequence[Tensor] | None) -> SparseChain:
    """Return the chain that a text describes, with these weights or with none."""
    data = json.loads(spec)
    layers = []
    for index, one in enumerate(data["layers"]):
        places, values, bias = (
            (np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(one["shape"][0], np.float32))
            if weights is None
            else (each.numpy() for each in weights[3 * index : 3 * index + 3])
        )
        window = None if one["window"] is None else Window(**_tuples(one["window"]))
        pool = None if one["pool"] is None else Pool(**one["pool"])
        layers.append(
            SparseLayer(SparseWeight(places, values, tuple(one["shape"])), bias, one["activation"], window, pool)
        )
    return SparseChain(layers, Kernel(**data["kernel"]), flattens=data["flattens"], merges=data["merges"])


def _tuples(window: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in window.items()}


OPERATOR = "secateur::sparse_chain"
_LIBRARY = torch.library.Library("secateur", "FRAGMENT")
_LIBRARY.define("sparse_chain(Tensor x, Tensor? residual, Tensor[] weights, str spec) -> Tensor")
_LIBRARY.impl("sparse_chain", _run, "CPU")
torch.library.register_fake(OPERATOR, _shape, lib=_LIBRARY)
