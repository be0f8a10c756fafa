"""A network back from its file: all or nothing, and nothing is imported that is not trusted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateur.encode import Archive, open_archive
from secateur.encode.container import MAX_BYTES
from secateur.encode.filling import fill, require_match
from secateur.files.architecture import build_empty, is_ours, recorded_arguments
from secateur.files.inputs import recorded_shape
from secateur.functions.inputs import restore_inputs
from secateur.functions.small_forms import attach_small_forms
from secateur.networks import NetworkError, imported
from secateur.networks.seeding import seeded


def load(
    path: str | PathLike[str],
    model: nn.Module | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    trust: Collection[str] = (),
    small: bool = False,
) -> nn.Module:
    """Read a model from a .cut file: into `model`, or else into a new one of the architecture that the file names.

    All or nothing: names, shapes, dtypes, every stream and memory that tensors of `model` share are checked before one
    parameter changes. A new network gets the dtypes of the file. A network that is not ours is imported, which runs its
    module, only if `trust` has the name of that module or of a package it belongs to. `max_bytes` limits the memory
    that the tensors may take.

    Weights that the file computes from smaller tensors are plain ones afterwards. With `small`, layers go on computing
    them, and the smaller tensors are what takes memory and can be trained; `settle` makes such a model plain.
    """
    with open_archive(path, max_bytes) as archive:
        if model is None and is_ours(archive.architecture):
            model = _take_over(archive, skeleton(archive, path).to_empty(device=torch.get_default_device()))
        else:
            if model is None:
                model = build_imported(archive, path, trust)
            _require_initialised(model)
            fill(archive, model.state_dict(), type(model).__name__, path)
        if small:
            computed = (record for record in archive.records if record.formula is not None)
            attach_small_forms(model, {record.name: archive.read_parts(record) for record in computed})
    return model


def skeleton(archive: Archive, path: str | PathLike[str]) -> nn.Module:
    """Return the network of ours that a file names, with the file's dtypes, once it is known to hold all of it.

    It is on the meta device and takes no memory: a file of a hundred bytes may name a network of 553 MB.
    """
    assert archive.architecture is not None
    model = build_empty(archive.architecture, path)
    _restore_inputs(archive, model)
    _cast(model, {record.name: record.dtype for record in archive.records})
    require_match(archive, model.state_dict(), type(model).__name__, path)
    return model


def build_imported(archive: Archive, path: str | PathLike[str], trust: Collection[str]) -> nn.Module:
    """Return the network that a file names, which is not ours, with the file's dtypes; its values are still to be read.

    A NetworkError says why that cannot be: above all, that its module is not trusted.
    """
    architecture = archive.architecture
    if architecture is None:
        raise ValueError(f"{path} does not say which network it holds: pass it as model=, or use load_state")
    imported.require_trusted(architecture.name, trust, path)
    try:
        with seeded(0):
            positional, named = recorded_arguments(architecture.arguments or {}, path, trust)
            model = imported.call(architecture.name, trust, positional, named)
            shape = recorded_shape(archive.metadata)
            if shape is not None and any(map(is_lazy, (*model.parameters(), *model.buffers()))):
                imported.run_once(model, shape)
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from error
    _restore_inputs(archive, model)
    _cast(model, {record.name: record.dtype for record in archive.records})
    return model


def _take_over(archive: Archive, model: nn.Module) -> nn.Module:
    """Make the tensors of a file those of a new network that is known to match it, without a second copy."""
    device = torch.get_default_device()
    # Tensors that are tied in the file are separate in a network of ours.
    decoded = {
        record.name: (tensor if record.alias_of is None else tensor.clone()).to(device)
        for record, tensor in archive.read_all()
    }
    model.load_state_dict(decoded, assign=True)
    return model


def _cast(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Give a new model the floating-point dtypes of a file, as `model.to(dtype)` would."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        dtype = dtypes.get(name, tensor.dtype)
        if tensor.is_floating_point() and dtype.is_floating_point and not is_lazy(tensor):
            tensor.data = tensor.data.to(dtype)


def _restore_inputs(archive: Archive, model: nn.Module) -> None:
    """Let layers of a new network change their inputs as those of the network in the file do."""
    restore_inputs(model, {record.name: record.shape for record in archive.records})


def _require_initialised(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f'"{name}" has no shape yet: call the model once on an input')
