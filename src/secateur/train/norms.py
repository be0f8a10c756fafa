"""Statistics of batch norms, after the layers before them have changed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn


@torch.no_grad()
def match_statistics(model: nn.Module, dense: nn.Module, batches: Sequence[Tensor]) -> None:
    """Move the statistics of batch norms by what pruning has changed, measured on any inputs like the network's own.

        mean = mean₀ + (m − m_d)        variance = variance₀ · (v + ε) / (v_d + ε)

    with mean₀ and variance₀ those of the `dense` network, m and v the statistics of the pruned `model` on `batches`,
    m_d and v_d those of the dense network on the same ones, and the ε of the norm. Only the differences between the two
    networks count, so the batches need not come from the data that the network was trained on. With batches from there,
    mean₀ = m_d, and the result is what `torch.optim.swa_utils.update_bn` finds. A network without batch norm stays as
    it is.
    """
    own_norms, dense_norms = _norms(model), _norms(dense)
    if len(own_norms) != len(dense_norms):
        raise ValueError(
            f"the networks have {len(own_norms)} and {len(dense_norms)} batch norms: give the one before pruning"
        )
    if not own_norms:
        return
    if not batches:
        raise ValueError("batches must hold at least one batch of inputs, got none")
    here = copy.deepcopy(dense)
    for network in (model, here):
        update_bn(batches, network)
    for own, reference, measured in zip(own_norms, dense_norms, _norms(here), strict=True):
        found, before, changed = own.state_dict(), reference.state_dict(), measured.state_dict()
        found["running_mean"] += before["running_mean"] - changed["running_mean"]
        found["running_var"] += own.eps  # a channel may be constant on these batches
        found["running_var"] *= before["running_var"] / (changed["running_var"] + own.eps)
        found["num_batches_tracked"].copy_(before["num_batches_tracked"])


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms that keep statistics."""
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in found if norm.track_running_stats]
