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

        mean = mean₀ + (m − m_d)        variance = variance₀ · v / v_d

    with mean₀ and variance₀ those of the `dense` network, m and v the statistics of the pruned `model` on `batches`,
    and m_d, v_d those of the dense network on the same ones. Only the differences between the two networks count, so
    the batches need not come from the data that the network was trained on. With batches from there, mean₀ = m_d, and
    the result is what `torch.optim.swa_utils.update_bn` finds. A network without batch norm stays as it is.
    """
    pairs = list(zip(_norms(model), _norms(dense), strict=True))
    if not pairs:
        return
    here = copy.deepcopy(dense)
    for network in (model, here):
        update_bn(batches, network)
    for (own, reference), measured in zip(pairs, _norms(here), strict=True):
        statistics, dense_ones, changed = own.state_dict(), reference.state_dict(), measured.state_dict()
        statistics["running_mean"] += dense_ones["running_mean"] - changed["running_mean"]
        statistics["running_var"] *= dense_ones["running_var"] / changed["running_var"]
        statistics["num_batches_tracked"].copy_(dense_ones["num_batches_tracked"])


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms that keep statistics."""
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in found if norm.track_running_stats]
