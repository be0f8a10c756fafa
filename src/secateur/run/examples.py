"""How a network is called with an example, and how it calls its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


def arguments(
    model: nn.Module, example: Tensor | tuple[Any, ...] | Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the network is called with, by position as far as its forward allows that, and by name."""
    if not isinstance(example, Mapping):
        return (example if isinstance(example, tuple) else (example,)), {}
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**example)
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} cannot be called with the example: {error}") from None
    positional = [one for one in signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    given = max((rank for rank, one in enumerate(positional, 1) if one.name in example), default=0)
    by_position = {one.name: example.get(one.name, one.default) for one in positional[:given]}
    return tuple(by_position.values()), {name: one for name, one in example.items() if name not in by_position}


@dataclass
class Calls:
    """How the parts of a network are called, by their names."""

    inputs: dict[str, int] = field(default_factory=dict)  # how many, of parts that are given tensors, always as many
    returning: set[str] = field(default_factory=set)  # parts that return one tensor
    called: set[str] = field(default_factory=set)


def count_calls(model: nn.Module, call: Callable[[], object]) -> Calls:
    """Call a model, and note how it calls its parts."""
    counts: dict[str, set[int | None]] = {}
    returned: dict[str, bool] = {}
    handles = []
    for name, module in model.named_modules():

        def note(
            part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], answer: object, path: str = name
        ) -> None:
            given = in_order(part, args, kwargs)
            tensors = given is not None and all(isinstance(one, Tensor) and not one.is_nested for one in given)
            counts.setdefault(path, set()).add(len(given) if given is not None and tensors else None)
            returned[path] = isinstance(answer, Tensor) and returned.get(path, True)

        handles.append(module.register_forward_hook(note, with_kwargs=True))
    call()
    for handle in handles:
        handle.remove()
    alike = {path: next(iter(found)) for path, found in counts.items() if len(found) == 1}
    return Calls(
        {path: count for path, count in alike.items() if count is not None},
        {path for path, is_tensor in returned.items() if is_tensor},
        set(counts),
    )


def record_inputs(model: nn.Module, call: Callable[[], object], parts: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Call a model, and note what some of its parts are given at last, in the order of their arguments."""
    seen: dict[str, tuple[Any, ...]] = {}
    handles = []
    for part in parts:

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = part) -> None:
            seen[path] = in_order(module, args, kwargs) or args

        handles.append(model.get_submodule(part).register_forward_pre_hook(note, with_kwargs=True))
    if parts:
        call()
    for handle in handles:
        handle.remove()
    return seen


def in_order(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return what a module is given in the order of its arguments; None if it leaves out one before another."""
    names = list(inspect.signature(module.forward).parameters)[len(args) :] if kwargs else []
    given = names[: len(kwargs)]
    return (*args, *(kwargs[name] for name in given)) if set(given) == set(kwargs) else None
