"""Why weights stay dense: one short reason for each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn

from secateur.graph.nodes import has_hooks
from secateur.graph.products import Use
from secateur.run.plan import Group

_SMALL_MS = 0.02  # below, most of the time goes into calling a layer


def why_dense(
    model: nn.Module,
    groups: Sequence[Group],
    weights: Mapping[str, tuple[tuple[int, ...], int]],
    uses: Sequence[Use],
    untraceable: Mapping[str, str],
    called: Collection[str],
) -> dict[str, str]:
    """Return why each matrix of a model stays dense that does: by the name of its layer, else of its parameter.

    `uses` are the products that were found, `untraceable` says why parts could not be traced, and `called` names the
    parts that the example called.
    """
    reasons = {
        group.layers[0]: _why_group(group, *weights[group.layers[0]]) for group in groups if group.kernel is None
    }
    timed = {name for group in groups for name in group.layers}
    used: dict[int, list[str]] = {}
    for use in uses:
        used.setdefault(use.weight.untyped_storage().data_ptr(), []).append(use.name)
    for path, parameter in model.named_parameters():
        names = used.get(parameter.untyped_storage().data_ptr(), [])
        if parameter.dim() < 2 or any(name in timed for name in names):
            continue
        owner = path.rpartition(".")[0]
        reasons[names[0] if names else path.removesuffix(".weight")] = _why_unreached(
            model.get_submodule(owner), owner, parameter.dtype, untraceable, called
        )
    return reasons


def _why_group(group: Group, shape: tuple[int, ...], count: int) -> str:
    if math.isnan(group.sparse_ms):  # no sparse way was tried
        return f"too dense: {count / max(math.prod(shape), 1):.0%} of its weights are left"
    times = f"{group.dense_ms:.3f} ms dense, {group.sparse_ms:.3f} ms sparse"
    return f"too small: {times}" if group.dense_ms < _SMALL_MS else f"not faster: {times}"


def _why_unreached(
    owner: nn.Module, path: str, dtype: torch.dtype, untraceable: Mapping[str, str], called: Collection[str]
) -> str:
    if dtype is not torch.float32:
        return f"not float32: {str(dtype).removeprefix('torch.')}"
    if has_hooks(owner):
        return "has hooks"
    names = path.split(".") if path else []
    for part in (".".join(names[:depth]) for depth in range(len(names), -1, -1)):
        if part in untraceable and part in called:
            where = f'"{part}"' if part else "the network"
            return f"not traceable: {where}: {untraceable[part]}"
    if path not in called:
        return "not called by the example"
    return f"not a product of an input and a weight: {type(owner).__name__} reads it"
