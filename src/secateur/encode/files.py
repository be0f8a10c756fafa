"""Step 5, encode: a network in one small file, and back."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from secateur import models
from secateur.atomic import write_atomically
from secateur.encode.container import MAX_BYTES, Architecture, Archive, open_archive, to_bytes
from secateur.encode.levels import to_bits
from secateur.encode.units import with_sorted_units
from secateur.nearest import require_one_of


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    codec: str = "smallest",
    metadata: Mapping[str, str] | None = None,
    architecture: str | tuple[str, Mapping[str, Any]] | None = None,
    sort_units: bool = False,
) -> int:
    """Write a plain model to a .cut file, without loss and whole or not at all; return the size of the file in bytes.

    `codec` is "smallest", which tries all and keeps the smallest for each tensor, or the name of one. `architecture`
    lets `load` build the model again: the name of one of ours, which is found by itself, or ("package.module:Class",
    keyword arguments). `metadata` is text by name. `sort_units` puts hidden units that no one outside can tell apart in
    an order that makes the file smaller: the function stays, rows and columns move.
    """
    _require_plain(model)
    if sort_units:
        model = with_sorted_units(model)
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f'"{name}" is not a tensor but {type(value).__name__}: a file holds tensors only')
    warn_of_negative_zeros(state)
    content = to_bytes(
        state, codec=codec, metadata=metadata, architecture=_architecture(model, architecture), sorted_units=sort_units
    )
    write_atomically(Path(path), content)
    return len(content)


def load(
    path: str | PathLike[str],
    model: nn.Module | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    import_class: bool = False,
) -> nn.Module:
    """Read a model from a .cut file: into `model`, or else into a new one of the architecture that the file names.

    All or nothing: names, shapes, dtypes, every stream and memory that tensors of `model` share are checked before one
    parameter changes. A new network gets the dtypes of the file. A class that is not ours is imported,
    which runs its module, only if `import_class` says so. `max_bytes` limits what the tensors may take in memory.
    """
    with open_archive(path, max_bytes) as archive:
        is_new = model is None
        if model is None:
            model = _build(archive, path, import_class)
        if is_new and archive.architecture is not None and archive.architecture.is_ours:
            return _take_over(archive, model)
        _require_initialised(model)
        state = model.state_dict()
        _require_fillable(state)
        _require_match(archive, state, f"{type(model).__name__}", path)
        decoded = list(archive.read_all())
        _require_agreement(state, {record.name: tensor for record, tensor in decoded}, type(model).__name__, path)
        with torch.no_grad():
            for record, tensor in decoded:
                state[record.name].copy_(tensor)
    return model


def _take_over(archive: Archive, model: nn.Module) -> nn.Module:
    """Make the tensors of a file those of a new network that is known to match it: there is never a second copy."""
    device = torch.get_default_device()
    # Names that are tied in the file are not in a network of ours.
    decoded = {
        record.name: (tensor if record.alias_of is None else tensor.clone()).to(device)
        for record, tensor in archive.read_all()
    }
    model.load_state_dict(decoded, assign=True)
    return model


def load_state(path: str | PathLike[str], *, max_bytes: int = MAX_BYTES) -> dict[str, Tensor]:
    """Read the tensors of a .cut file by name, as a plain state dict; tied names share one tensor."""
    with open_archive(path, max_bytes) as archive:
        return {record.name: tensor for record, tensor in archive.read_all()}


def _require_plain(model: nn.Module) -> None:
    for owner, module in model.named_modules():
        prefix = f"{owner}." if owner else ""
        if parametrize.is_parametrized(module):
            assert isinstance(module.parametrizations, nn.ModuleDict)
            name, chain = next(iter(module.parametrizations.items()))
            assert isinstance(chain, parametrize.ParametrizationList)
            raise ValueError(
                f'"{prefix}{name}" is read through {type(chain[0]).__name__}: make the model plain first '
                "(secateur.prune, freeze, or torch's remove_parametrizations)"
            )
        for name in module._buffers:
            if name.endswith("_mask") and f"{name.removesuffix('_mask')}_orig" in module._parameters:
                tensor = f"{prefix}{name.removesuffix('_mask')}"
                raise ValueError(f'"{tensor}" is masked by torch.nn.utils.prune: call its remove(module, name) first')


def warn_of_negative_zeros(tensors: Mapping[str, Tensor]) -> None:
    """Say so when zeros carry signs: `weight * mask` leaves such, and a file, which keeps every bit, grows by them."""
    counts = {name: _negative_zeros(tensor) for name, tensor in tensors.items()}
    many = {name: count for name, count in counts.items() if count >= max(100, tensors[name].numel() / 100)}
    if many:
        name = next(iter(many))
        rest = sum(many.values()) - many[name]
        others = f", and {len(many) - 1} more tensor{'s' * (len(many) > 2)} {rest:,}" if len(many) > 1 else ""
        warnings.warn(
            f'"{name}" holds {many[name]:,} negative zeros{others}, which are stored like weights: add 0.0 to '
            f"{'them' if others else 'it'} to lose them",
            stacklevel=3,
        )


def _negative_zeros(tensor: Tensor) -> int:
    has_signs = tensor.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    if not has_signs or tensor.layout != torch.strided or tensor.is_meta:
        return 0
    # Piece by piece: a network that fills half of the memory must not need more than that to be saved.
    bits, piece = to_bits(tensor), 1 << 18
    sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
    return sum(int(np.count_nonzero(bits[at : at + piece] == sign)) for at in range(0, bits.size, piece))


def _architecture(model: nn.Module, given: str | tuple[str, Mapping[str, Any]] | None) -> Architecture | None:
    if given is None:
        return next((Architecture(name) for name, kind in models.MODELS.items() if type(model) is kind), None)
    if isinstance(given, str):
        require_one_of("network", given, models.MODELS)
        return Architecture(given)
    path, arguments = given
    if not all(path.partition(":")):
        raise ValueError(f'the class must be given as "package.module:Class", got "{path}"')
    return Architecture(path, dict(arguments))


def _build(archive: Archive, path: str | PathLike[str], import_class: bool) -> nn.Module:
    """Return a network of the architecture and the dtypes of a file, whose values are yet to come."""
    architecture, dtypes = archive.architecture, {record.name: record.dtype for record in archive.records}
    if architecture is None:
        raise ValueError(f"{path} does not say which network it holds: pass it as model=, or use load_state")
    if architecture.is_ours:
        return skeleton(archive, path).to_empty(device=torch.get_default_device())
    if not import_class:
        raise ValueError(
            f"{path} holds a {architecture.name}, which is not one of ours: pass it as model=, or, if you trust the "
            "file, import_class=True"
        )
    module, _, name = architecture.name.partition(":")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{architecture.name}, which {path} names, is not a torch module")
    model = kind(**architecture.arguments or {})
    _cast(model, dtypes)
    return model


def skeleton(archive: Archive, path: str | PathLike[str]) -> nn.Module:
    """Return the network of ours that a file names, with the file's dtypes, once it is known to hold all of it.

    It has no memory: a hundred bytes may name a network of 553 MB.
    """
    assert archive.architecture is not None
    with torch.device("meta"):
        model = models.build(archive.architecture.name, seed=0)
    _cast(model, {record.name: record.dtype for record in archive.records})
    _require_match(archive, model.state_dict(), type(model).__name__, path)
    return model


def _cast(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Give a new model the floating-point dtypes of a file, as `model.to(dtype)` would."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        dtype = dtypes.get(name, tensor.dtype)
        if tensor.is_floating_point() and dtype.is_floating_point and not is_lazy(tensor):
            tensor.data = tensor.data.to(dtype)


def _require_initialised(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f'"{name}" has no shape yet: call the model once on an input')


def _require_fillable(state: Mapping[str, Any]) -> None:
    """Refuse tensors that cannot be written to."""
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f'"{name}" is not a tensor but {type(tensor).__name__}: a file holds tensors only')
        if tensor.is_meta:
            raise ValueError(f'"{name}" lies on the meta device and has no memory: call to_empty(device=…) first')
        if _overlaps_itself(tensor):
            raise ValueError(f'elements of "{name}" share memory: give the model a clone() of it')


def _overlaps_itself(tensor: Tensor) -> bool:
    """Tell whether two elements lie in one place: where a step is no longer than all smaller steps reach together."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += (size - 1) * stride
    return False


def _require_agreement(
    state: Mapping[str, Tensor], decoded: Mapping[str, Tensor], model: str, path: str | PathLike[str]
) -> None:
    """Refuse a file that wants different values in the same memory of a model: fill a copy of it, and look."""
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
                    f'"{name}" shares memory with other tensors of {model}, which have other values in {path}: untie '
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


def _require_match(archive: Archive, state: Mapping[str, Tensor], model: str, path: str | PathLike[str]) -> None:
    """Refuse a model whose tensors are not those of the file, by name, shape or dtype."""
    stored = {record.name: record for record in archive.records}
    for name in [*state, *stored]:
        if name not in stored:
            raise ValueError(f'{path} does not hold "{name}", which {model} has: it belongs to another network')
        if name not in state:
            raise ValueError(f'{path} holds "{name}", which {model} does not have: it belongs to another network')
        record, tensor = stored[name], state[name]
        if (record.shape, record.dtype) != (tuple(tensor.shape), tensor.dtype):
            raise ValueError(
                f'"{name}" is {record.dtype} of shape {record.shape} in {path}, and {tensor.dtype} of shape '
                f"{tuple(tensor.shape)} in {model}: it belongs to another network"
            )
