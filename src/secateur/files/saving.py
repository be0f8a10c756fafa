"""A network into one small file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from torch import Tensor, nn

from secateur.atomic import write_atomically
from secateur.encode import to_bytes
from secateur.encode.negative_zeros import warn_of_negative_zeros
from secateur.files.architecture import GivenArchitecture, described
from secateur.functions.computed import Computed, is_small
from secateur.functions.small_forms import small_forms
from secateur.graph.hidden_units import with_sorted_units
from secateur.weights.reading import settle
from secateur.weights.tensors import tensors


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    codec: str = "smallest",
    metadata: Mapping[str, str] | None = None,
    architecture: GivenArchitecture | None = None,
    sort_units: bool = False,
) -> int:
    """Write a plain model to a .cut file, without loss and atomically; return the size of the file in bytes.

    Of a weight that is computed from smaller tensors (a low-rank product, hashed buckets, …) only these are stored.
    `codec` is "smallest", which tries all and keeps the smallest for each tensor, or the name of one. `architecture`
    lets `load` build the model again: the name of one of our networks, which is recognised by itself,
    ("package.module:callable", keyword arguments), or a configuration with `to_dict` that the model's class takes, as
    those of Hugging Face (`architecture=model.config`). `metadata` maps text to text. `sort_units` reorders hidden
    units to make the file smaller: rows and columns move, but the network computes the same function.
    """
    content = encoded(model, codec=codec, metadata=metadata, architecture=architecture, sort_units=sort_units)
    write_atomically(Path(path), content)
    return len(content)


def encoded(
    model: nn.Module,
    *,
    codec: str = "smallest",
    metadata: Mapping[str, str] | None = None,
    architecture: GivenArchitecture | None = None,
    sort_units: bool = False,
) -> bytes:
    """Return the content of the file that `save` writes."""
    _require_plain(model)
    if sort_units:
        model = with_sorted_units(model)
    state = (settle(model) if is_small(model) else model).state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f'"{name}" is not a tensor but {type(value).__name__}: a file holds tensors only')
    small = small_forms(model)
    warn_of_negative_zeros({name: value for name, value in state.items() if name not in small})
    known = described(model, architecture)
    return to_bytes(state | small, codec=codec, metadata=metadata, architecture=known, sorted_units=sort_units)


def _require_plain(model: nn.Module) -> None:
    """Refuse weights that are read through a function or a mask: a file holds what the layers read."""
    for tensor in tensors(model):
        if tensor.functions and not (len(tensor.functions) == 1 and isinstance(tensor.functions[0], Computed)):
            raise ValueError(
                f'"{tensor.name}" is read through {type(tensor.functions[0]).__name__}: make the model plain first '
                "(secateur.prune, freeze or settle, or torch's remove_parametrizations)"
            )
        if tensor.places[0].mask is not None:
            raise ValueError(f'"{tensor.name}" is masked by torch.nn.utils.prune: call its remove(module, name) first')
