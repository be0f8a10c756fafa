"""What a file says about the architecture of its network, and how that is built again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from os import PathLike
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from secateur import networks
from secateur.encode import Architecture
from secateur.files.inputs import LONGEST_SIDE, SHAPE, is_count
from secateur.networks import imported

# The one import path that needs no trust: a network of ours with other numbers of classes or another
# input size than its published ones. Its arguments are {"name": …, "classes": …, "input_shape": […]}.
OUR_BUILDER = "secateur.networks:build"
_SIZE = ("classes", SHAPE)
# The argument that stands for a configuration: ["package.module:ConfigClass", its data].
_CONFIG = "__config__"
_MOST_CLASSES = 1 << 24  # above any that make sense: a file must not ask for absurd sizes


class Config(Protocol):
    """A configuration that a model is built from, as those of Hugging Face: `type(model)(config)`."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as data."""
        ...


GivenArchitecture: TypeAlias = str | tuple[str, Mapping[str, Any]] | Config


def described(model: nn.Module, given: GivenArchitecture | None) -> Architecture | None:
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


def is_ours(architecture: Architecture | None) -> bool:
    """Return whether a file's architecture is one of our networks, of its published or of another size."""
    return architecture is not None and (architecture.is_named or architecture.name == OUR_BUILDER)


def build_empty(architecture: Architecture, path: str | PathLike[str]) -> nn.Module:
    """Build a network of ours on the meta device, from what the file at `path` says about it."""
    arguments = {"name": architecture.name} if architecture.is_named else _checked(architecture.arguments or {}, path)
    with torch.device("meta"):
        return networks.build(**arguments, seed=0)


def recorded_arguments(
    recorded: Mapping[str, Any], path: str | PathLike[str], trust: Collection[str]
) -> tuple[list[object], dict[str, Any]]:
    """Return the arguments that a file gives, by position and by name: a configuration alone, or those by name."""
    if _CONFIG in recorded:
        return [_config(recorded[_CONFIG], path, trust)], {}
    shape = recorded.get(SHAPE)
    # JSON has no tuples, and the shape of inputs is one wherever else it is given.
    return [], {**recorded, SHAPE: tuple(shape)} if isinstance(shape, list) else dict(recorded)


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
    sizes = {"classes": model.classes, "input_shape": list(getattr(model, SHAPE))}
    return Architecture(OUR_BUILDER, {"name": name, **sizes})


def _checked(arguments: Mapping[str, Any], path: str | PathLike[str]) -> dict[str, Any]:
    """Return the arguments of a network of ours that a file gives, which may be anything."""
    name, classes, shape = (arguments.get(key) for key in ("name", *_SIZE))
    is_sound = (
        set(arguments) == {"name", *_SIZE}
        and isinstance(name, str)
        and not networks.is_import_path(name)  # which would have to be trusted
        and is_count(classes, _MOST_CLASSES)
        and isinstance(shape, list)
        and len(shape) == 3
        and all(is_count(side, LONGEST_SIDE) for side in shape)
    )
    if not is_sound:
        raise ValueError(f"{path} names one of our networks with a size that cannot be: {dict(arguments)}")
    assert isinstance(shape, list)
    return {"name": name, "classes": classes, "input_shape": tuple(shape)}


def _config(recorded: object, path: str | PathLike[str], trust: Collection[str]) -> object:
    """Build the configuration that a file records, which may be anything."""
    match recorded:
        case [str(class_path), dict(data)] if networks.is_import_path(class_path):
            kind = imported.find(class_path, trust, path)
            if isinstance(kind, type) and hasattr(kind, "to_dict"):
                made: object = kind.from_dict(data) if hasattr(kind, "from_dict") else kind(**data)
                return made
    raise ValueError(f"{path} names a configuration that is none: {recorded!r:.80}")
