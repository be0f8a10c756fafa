"""Copy the tensors of a file into existing ones, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.encode.container import Archive
from secateur.encode.levels import to_bits


def fill(archive: Archive, state: Mapping[str, Tensor], owner: str, path: str | PathLike[str]) -> None:
    """Copy the tensors of a file into those of `state`, which belong to the model called `owner`.

    Names, shapes, dtypes, every stream and memory that tensors of `state` share are checked before one value changes.
    """
    _require_writable(state)
    require_match(archive, state, owner, path)
    decoded = {record.name: tensor for record, tensor in archive.read_all()}
    _require_agreement(state, decoded, owner, path)
    with torch.no_grad():
        for name, tensor in decoded.items():
            state[name].copy_(tensor)


def require_match(archive: Archive, state: Mapping[str, Tensor], owner: str, path: str | PathLike[str]) -> None:
    """Refuse a state whose tensors are not those of the file, by name, shape or dtype."""
    stored = {record.name: record for record in archive.records}
    for name in [*state, *stored]:
        if name not in stored:
            raise ValueError(f'{path} does not hold "{name}", which {owner} has: it belongs to another network')
        if name not in state:
            raise ValueError(f'{path} holds "{name}", which {owner} does not have: it belongs to another network')
        record, tensor = stored[name], state[name]
        if (record.shape, record.dtype) != (tuple(tensor.shape), tensor.dtype):
            raise ValueError(
                f'"{name}" is {record.dtype} of shape {record.shape} in {path}, and {tensor.dtype} of shape '
                f"{tuple(tensor.shape)} in {owner}: it belongs to another network"
            )


def _require_writable(state: Mapping[str, Any]) -> None:
    """Refuse tensors that cannot be written to."""
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f'"{name}" is not a tensor but {type(tensor).__name__}: a file holds tensors only')
        if tensor.is_meta:
            raise ValueError(f'"{name}" lies on the meta device and has no memory: call to_empty(device=…) first')
        if _overlaps_itself(tensor):
            raise ValueError(f'elements of "{name}" share memory: give the model a clone() of it')


def _overlaps_itself(tensor: Tensor) -> bool:
    """Return whether two elements share memory: a stride is no longer than the reach of all smaller ones together."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += (size - 1) * stride
    return False


def _require_agreement(
    state: Mapping[str, Tensor], decoded: Mapping[str, Tensor], owner: str, path: str | PathLike[str]
) -> None:
    """Refuse a file with different values for the same memory of a model: fill a copy of the memory and compare."""
    for names in _sharing_memory(state):
        memory = state[names[0]].untyped_storage().clone()
        views = {}
        for name in names:
            tensor = state[name]
            views[name] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            views[name].set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride()).copy_(decoded[name])
        for name, view in views.items():
            if not np.array_equal(to_bits(view), to_bits(decoded[name])):
                raise ValueError(
                    f'"{name}" shares memory with other tensors of {owner}, which have other values in {path}: untie '
                    "them, or save a model that ties them"
                )


def _sharing_memory(state: Mapping[str, Tensor]) -> list[list[str]]:
    """Group the names of tensors in one storage, where one begins before another ends."""
    spans: dict[tuple[torch.device, int], list[tuple[int, int, str]]] = {}
    for name, tensor in state.items():
        if tensor.numel():
            steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            begin = int(tensor.storage_offset() * tensor.itemsize)
            end = int(begin + (steps + 1) * tensor.itemsize)
            spans.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append((begin, end, name))
    groups = []
    for together in spans.values():
        together.sort()
        if any(after[0] < before[1] for before, after in pairwise(together)):
            groups.append([name for _, _, name in together])
    return groups
