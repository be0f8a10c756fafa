"""Step 5, encode: a network in one small file, and back.

The format itself (`secateur.encode`) knows tensors only. This module joins it with the networks: which architecture a
file names, how that is built again, and how its inputs are scaled.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateur import networks
from secateur.atomic import write_atomically
from secateur.encode import Architecture, Archive, open_archive, to_bytes
from secateur.encode.container import MAX_BYTES
from secateur.encode.filling import fill, require_match
from secateur.encode.negative_zeros import warn_of_negative_zeros
from secateur.functions.computed import Computed, is_small
from secateur.functions.inputs import restore_inputs
from secateur.functions.small_forms import attach_small_forms, small_forms
from secateur.graph.hidden_units import with_sorted_units
from secateur.networks import NetworkError, Shape, imported
from secateur.networks.seeding import seeded
from secateur.weights.reading import settle
from secateur.weights.tensors import tensors

if TYPE_CHECKING:
    from secateur.data import CropKind, Scaling

# The one import path that needs no trust: a network of ours with other numbers of classes or another
# input size than its published ones. Its arguments are {"name": …, "classes": …, "input_shape": […]}.
OUR_BUILDER = "secateur.networks:build"
_SIZE = ("classes", "input_shape")
# The argument that stands for a configuration: ["package.module:ConfigClass", its data].
_CONFIG = "__config__"
_MOST_CLASSES, _LONGEST_SIDE = 1 << 24, 1 << 16  # above any that make sense: a file must not ask for absurd sizes


class Config(Protocol):
    """A configuration that a model is built from, as those of Hugging Face: `type(model)(config)`."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as data."""
        ...


GivenArchitecture: TypeAlias = str | tuple[str, Mapping[str, Any]] | Config


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
    described = _architecture(model, architecture)
    return to_bytes(state | small, codec=codec, metadata=metadata, architecture=described, sorted_units=sort_units)


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


def is_ours(architecture: Architecture | None) -> bool:
    """Return whether a file's architecture is one of our networks, of its published or of another size."""
    return architecture is not None and (architecture.is_named or architecture.name == OUR_BUILDER)


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


def build_empty(architecture: Architecture, path: str | PathLike[str]) -> nn.Module:
    """Build a network of ours on the meta device, from what the file at `path` says about it."""
    arguments = {"name": architecture.name} if architecture.is_named else _checked(architecture.arguments or {}, path)
    with torch.device("meta"):
        return networks.build(**arguments, seed=0)


def input_shape(model: nn.Module, metadata: Mapping[str, str], path: str | PathLike[str]) -> Shape:
    """Return the shape of one input of a file's network: the one in its metadata, or the network's `input_shape`."""
    shape = recorded_shape(metadata) or imported.shape_of(model)
    if shape is None:
        raise ValueError(
            f"{path} holds a {type(model).__name__} and does not say the shape of its inputs: give the class an "
            'attribute input_shape, or save with metadata={"input_shape": "3 32 32"}'
        )
    return shape


def recorded_shape(metadata: Mapping[str, str]) -> Shape | None:
    """Return the input shape that the metadata of a file gives; files of our own networks need none."""
    sides = metadata.get(_SIZE[1], "").split()
    if len(sides) != 3 or not all(side.isascii() and side.isdecimal() for side in sides):
        return None
    channels, height, width = map(int, sides)
    return (channels, height, width) if all(_is_count(side, _LONGEST_SIDE) for side in map(int, sides)) else None


def describe_inputs(
    scaling: Scaling,
    data: str,
    classes: Sequence[str],
    *,
    crop: CropKind = "centre",
    input_shape: Shape | None = None,
) -> dict[str, str]:
    """Return the metadata that `read_inputs` reads; a named data set knows its classes itself.

    The input shape is for networks that are not ours.
    """
    from secateur.data import DATA_SETS
    from secateur.data.crops import needs_pictures

    known = {} if data in DATA_SETS else {"classes": "\n".join(classes)}
    if input_shape is not None:
        known[_SIZE[1]] = " ".join(map(str, input_shape))
    if needs_pictures(crop):  # the others show the centre without a margin
        known["crop"] = crop
    return {"data": data if data in DATA_SETS else Path(data).name, **known, **scaling.as_text()}


class FileInputs(NamedTuple):
    """What a file says about the inputs of its network."""

    scaling: Scaling
    data: str
    classes: tuple[str, ...]
    crop: CropKind | None  # how pictures of all sizes were cut; None: they are stretched to the size of the data set


def read_inputs(path: Path) -> FileInputs:
    """Return the scaling that the inputs of a file's network need, the name of its data set, and the classes."""
    from secateur.data import CROPS, DATA_SETS, Scaling, is_cut  # here, so that importing secateur loads no data sets

    with open_archive(path) as archive:
        metadata = archive.metadata
    try:
        data = metadata["data"]
        named = DATA_SETS[data].classes if data in DATA_SETS else ()
        classes = tuple(metadata["classes"].split("\n")) if "classes" in metadata else named
        was_cut = "classes" in metadata or (data in DATA_SETS and is_cut(data))
        crop = CROPS[CROPS.index(metadata.get("crop", "centre"))] if was_cut else None
        return FileInputs(Scaling.from_text(metadata), data, classes, crop)
    except (KeyError, ValueError):
        raise ValueError(f"{path} does not say how its inputs are scaled: pack the model of a run") from None


def _architecture(model: nn.Module, given: GivenArchitecture | None) -> Architecture | None:
    """Return what a file should say about a model, from what the caller says or from the model's class."""
    if given is None:
        return _our_architecture(model)
    if isinstance(given, str):
        networks.NETWORKS.find(given)
        return Architecture(given)
    if not isinstance(given, tuple):
        return Architecture(_class_path(model), {_CONFIG: [_class_path(given), _config_data(given)]})
    path, arguments = given
    if not networks.is_import_path(path):
        raise ValueError(f'the class must be given as "package.module:Class", got "{path}"')
    return Architecture(path, dict(arguments))


def _class_path(thing: object) -> str:
    """Return where the class of an object can be imported from, as "package.module:Class"."""
    kind = type(thing)
    if kind.__module__ == "__main__" or kind.__qualname__ != kind.__name__:
        raise ValueError(f"{kind.__qualname__} cannot be imported from another program: move it to a module of its own")
    return f"{kind.__module__}:{kind.__name__}"


def _config_data(config: Config) -> dict[str, Any]:
    if not hasattr(config, "to_dict"):
        raise ValueError(
            f"architecture must be a name, a class with its arguments or a configuration with to_dict(), got {config!r}"
        )
    if not hasattr(config, "to_json_string"):
        return config.to_dict()
    data: dict[str, Any] = json.loads(config.to_json_string())  # not every entry of to_dict() is data for JSON
    return data


def _our_architecture(model: nn.Module) -> Architecture | None:
    found = networks.name_of(model)
    if found is None:
        return None
    name, unusual = found
    if not unusual:
        return Architecture(name)
    sizes = {"classes": getattr(model, _SIZE[0]), "input_shape": list(getattr(model, _SIZE[1]))}
    return Architecture(OUR_BUILDER, {"name": name, **sizes})


def _checked(arguments: Mapping[str, Any], path: str | PathLike[str]) -> dict[str, Any]:
    """Return the arguments of a network of ours that a file gives, which may be anything."""
    name, classes, shape = (arguments.get(key) for key in ("name", *_SIZE))
    is_sound = (
        set(arguments) == {"name", *_SIZE}
        and isinstance(name, str)
        and not networks.is_import_path(name)  # which would have to be trusted
        and _is_count(classes, _MOST_CLASSES)
        and isinstance(shape, list)
        and len(shape) == 3
        and all(_is_count(side, _LONGEST_SIDE) for side in shape)
    )
    if not is_sound:
        raise ValueError(f"{path} names one of our networks with a size that cannot be: {dict(arguments)}")
    assert isinstance(shape, list)
    return {"name": name, "classes": classes, "input_shape": tuple(shape)}


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


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
            positional, named = _arguments(architecture.arguments or {}, path, trust)
            model = imported.call(architecture.name, trust, positional, named)
            shape = recorded_shape(archive.metadata)
            if shape is not None and any(map(is_lazy, (*model.parameters(), *model.buffers()))):
                imported.run_once(model, shape)
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from error
    _restore_inputs(archive, model)
    _cast(model, {record.name: record.dtype for record in archive.records})
    return model


def _arguments(
    recorded: Mapping[str, Any], path: str | PathLike[str], trust: Collection[str]
) -> tuple[list[object], dict[str, Any]]:
    """Return the arguments that a file gives, by position and by name: a configuration alone, or those by name."""
    if _CONFIG in recorded:
        return [_config(recorded[_CONFIG], path, trust)], {}
    shape = recorded.get(_SIZE[1])
    # JSON has no tuples, and the shape of inputs is one wherever else it is given.
    return [], {**recorded, _SIZE[1]: tuple(shape)} if isinstance(shape, list) else dict(recorded)


def _config(recorded: object, path: str | PathLike[str], trust: Collection[str]) -> object:
    """Build the configuration that a file records, which may be anything."""
    match recorded:
        case [str(class_path), dict(data)] if networks.is_import_path(class_path):
            kind = imported.find(class_path, trust, path)
            if isinstance(kind, type) and hasattr(kind, "to_dict"):
                made: object = kind.from_dict(data) if hasattr(kind, "from_dict") else kind(**data)
                return made
    raise ValueError(f"{path} names a configuration that is none: {recorded!r:.80}")


def _cast(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Give a new model the floating-point dtypes of a file, as `model.to(dtype)` would."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        dtype = dtypes.get(name, tensor.dtype)
        if tensor.is_floating_point() and dtype.is_floating_point and not is_lazy(tensor):
            tensor.data = tensor.data.to(dtype)


def _restore_inputs(archive: Archive, model: nn.Module) -> None:
    """Let layers of a new network change their inputs as those of the network in the file do."""
    restore_inputs(model, {record.name: record.shape for record in archive.records})


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


def _require_initialised(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f'"{name}" has no shape yet: call the model once on an input')
