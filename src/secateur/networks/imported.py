"""Networks of other packages, named as `package.module:callable`.

Importing a module runs it, so nothing is imported unless its name, or that of a package it belongs to, is among the
names that the caller trusts. A name in a file is data and trusts nothing by itself.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateur.networks.network import Shape
from secateur.networks.seeding import seeded

_CLASSES, _SHAPE = ("classes", "num_classes"), "input_shape"  # the parameters that are filled in
_FLAGS = {**dict.fromkeys(_CLASSES, "--classes"), _SHAPE: "--input-shape"}
_USUAL_CHANNELS = 3  # of pictures, for a network without convolutions


class NetworkError(ValueError):
    """A network of another package cannot be built; one sentence says why."""


class Hints(NamedTuple):
    """What a network of another package says about its inputs: the whole shape, or at least the channels."""

    input_shape: Shape | None
    channels: int


def is_import_path(name: str) -> bool:
    """Return whether a name has the form `package.module:callable`."""
    module, _, attribute = name.partition(":")
    return attribute.isidentifier() and _is_module_name(module)


def modules_of(name: str) -> tuple[str, ...]:
    """Return the modules that a network's name asks to import, none for one of ours: whoever types it trusts them."""
    return (name.partition(":")[0],) if is_import_path(name) else ()


def require_module_names(trust: Collection[str]) -> None:
    """Raise an error unless these are names of modules."""
    if isinstance(trust, str):
        raise TypeError(f'trust takes several names of modules, got a text: write ["{trust}"]')
    for name in trust:
        if not _is_module_name(name):
            raise ValueError(f'trust takes names of modules such as "package.module", got "{name}"')


def is_trusted(module: str, trust: Collection[str]) -> bool:
    """Return whether a module, or a package it belongs to, is among those that the caller trusts."""
    require_module_names(trust)
    return any(module == name or module.startswith(f"{name}.") for name in trust)


def require_trusted(name: str, trust: Collection[str], source: object = None) -> None:
    """Raise a NetworkError unless the module of an import path is trusted; `source` is the file that names it."""
    if not is_import_path(name):
        given = f"{source} names" if source is not None else "got"
        raise NetworkError(f'a network of another package is called "package.module:callable", {given} {name!r:.80}')
    module = name.partition(":")[0]
    if not is_trusted(module, trust):
        held = f"{source} names {name}, which" if source is not None else name
        raise NetworkError(
            f"{held} is not one of our networks, and nothing was imported: if you trust the module, add "
            f'--trust {module} (in Python trust=["{module}"])'
        )


def find(name: str, trust: Collection[str], source: object = None) -> Any:
    """Import what an import path names, if its module is trusted; a NetworkError says in one sentence why not."""
    require_trusted(name, trust, source)
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise NetworkError(
                f'{name}: there is no module "{error.name}" here: install it, or run in the directory that holds it'
            ) from error
        raise NetworkError(f"{name}: its module cannot be imported: {_said(error)}") from error
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise NetworkError(f"{name}: its module cannot be imported: {_said(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        near = get_close_matches(attribute, [each for each in dir(module) if not each.startswith("_")], n=1)
        hint = f': did you mean "{near[0]}"?' if near else ""
        raise NetworkError(f'there is no "{attribute}" in the module {module_name}{hint}') from error


def call(
    name: str, trust: Collection[str], positional: Sequence[object] = (), named: Mapping[str, Any] | None = None
) -> nn.Module:
    """Return the network that an import path builds from these arguments.

    Arguments may come from a file, so what is called must be a class of networks, or defined in a trusted module: that
    a module imports `subprocess.run` for itself does not make it a network.
    """
    return _call(name, _builder(name, trust), named or {}, positional)


def build(
    name: str,
    trust: Collection[str],
    *,
    seed: int | None = None,
    classes: int | None = None,
    input_shape: Shape | None = None,
) -> nn.Module:
    """Build a network of another package; where the input shape is known, check that it runs on such inputs.

    It is given what it has parameters for: the number of classes as `classes` or `num_classes`, and `input_shape`.
    """
    with seeded(seed):  # for itself: a module is imported once only, and may draw random numbers then
        builder = _builder(name, trust)
    arguments = _arguments(builder, classes, input_shape)
    for size, flag in _FLAGS.items():
        if size not in arguments and _is_needed(builder, size):
            raise NetworkError(f"{name} needs {size}: add {flag}, or give the parameter a default")
    with seeded(seed):
        model = _call(name, builder, arguments)
        shape = input_shape or shape_of(model) or shape_of(builder)
        if shape is not None:
            _require_fit(name, model, classes, shape)
        for tensor, value in (*model.named_parameters(), *model.named_buffers()):
            if is_lazy(value):
                raise NetworkError(f'{name}: "{tensor}" has no shape before the first input: add --input-shape')
    return model


def arguments_of(
    name: str, trust: Collection[str], *, classes: int | None = None, input_shape: Shape | None = None
) -> dict[str, Any]:
    """Return the arguments that `build` calls an import path with, for files that name it."""
    return _arguments(_builder(name, trust), classes, input_shape)


def hints_of(name: str, trust: Collection[str], *, classes: int | None = None) -> Hints:
    """Return what a network says about its inputs: its attribute `input_shape`, or else its first convolution."""
    builder = _builder(name, trust)
    shape = shape_of(builder)
    if shape is not None or _is_needed(builder, _SHAPE):
        return Hints(shape, _USUAL_CHANNELS)
    with seeded(0):
        model = _call(name, builder, _arguments(builder, classes, None))
    convolutions = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    channels = next((layer.in_channels for layer in convolutions), 0)  # a lazy layer has 0
    return Hints(shape_of(model), channels or _USUAL_CHANNELS)


def usual_shape(name: str, trust: Collection[str]) -> Shape | None:
    """Return the attribute `input_shape` of what an import path names, if it has one."""
    return shape_of(_builder(name, trust))


def shape_of(thing: object) -> Shape | None:
    """Return the attribute `input_shape` (channels, height, width) of a network or of what builds it, if it has one."""
    match getattr(thing, _SHAPE, None):
        case (int(channels), int(height), int(width)) if min(channels, height, width) >= 1:
            return channels, height, width
    return None


def run_once(model: nn.Module, input_shape: Shape) -> object:
    """Run a network on two black images in evaluation mode, which also gives lazy layers their shapes."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            result: object = model(torch.zeros(2, *input_shape))
            return result
    finally:
        for module, mode in modes:
            module.training = mode


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _builder(name: str, trust: Collection[str]) -> Callable[..., object]:
    found = find(name, trust)
    if isinstance(found, nn.Module):
        raise NetworkError(f"{name} is a network, not a function or class that builds one: name that")
    if not callable(found):
        raise NetworkError(f"{name} is of type {type(found).__name__}, not a function or class that builds a network")
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    inner = found
    while isinstance(inner, partial):
        inner = inner.func
    home = getattr(inner, "__module__", None) or "an unknown module"
    if not is_trusted(home, trust):
        module = name.partition(":")[0]
        raise NetworkError(
            f"{name} is defined in {home}, which is not trusted, and was not called: define a function in {module} "
            "that calls it"
        )
    builder: Callable[..., object] = found
    return builder


def _call(
    name: str, builder: Callable[..., object], arguments: Mapping[str, Any], positional: Sequence[object] = ()
) -> nn.Module:
    shown = [f"{value!r:.60}" for value in positional] + [f"{key}={value!r:.60}" for key, value in arguments.items()]
    given = ", ".join(shown) or "no arguments"
    try:
        inspect.signature(builder).bind(*positional, **arguments)
    except TypeError as error:
        raise NetworkError(
            f"{name} cannot be called with {given}: {error}: name a function that takes classes, num_classes, "
            "input_shape or nothing"
        ) from error
    except ValueError:  # it has no signature
        pass
    try:
        model = builder(*positional, **arguments)
    except (Exception, SystemExit) as error:  # code of another package may raise anything
        raise NetworkError(f"{name}, called with {given}, failed: {_said(error)}") from error
    if not isinstance(model, nn.Module):
        raise NetworkError(f"{name} returned an object of type {type(model).__name__}, not a torch.nn.Module")
    return model


def _parameters(builder: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return {}
    return {name: one for name, one in found.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}


def _is_needed(builder: Callable[..., object], parameter: str) -> bool:
    found = _parameters(builder).get(parameter)
    return found is not None and found.default is found.empty


def _arguments(builder: Callable[..., object], classes: int | None, input_shape: Shape | None) -> dict[str, Any]:
    """Return those of the sizes that are known and that a callable has parameters for."""
    taken = _parameters(builder)
    given = {} if classes is None else {name: classes for name in _CLASSES if name in taken}
    return given if input_shape is None or _SHAPE not in taken else {**given, _SHAPE: input_shape}


def _require_fit(name: str, model: nn.Module, classes: int | None, input_shape: Shape) -> None:
    """Raise a NetworkError unless a network maps images of a shape to one number for each class."""
    shape = "×".join(map(str, input_shape))
    try:
        result = run_once(model, input_shape)
    except Exception as error:  # a forward may raise anything
        raise NetworkError(
            f"{name} does not run on images of {shape} (channels, height, width): {_said(error)}"
        ) from error
    if classes is None:
        return
    if not isinstance(result, Tensor):
        raise NetworkError(f"{name} returns an object of type {type(result).__name__} for images, not a tensor")
    if tuple(result.shape) != (2, classes):
        raise NetworkError(
            f"{name} returns a tensor of shape {tuple(result.shape)} for two images of {shape}, and the data has "
            f"{classes} classes: it must be (2, {classes})"
        )


def _said(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
