"""Compute once what several networks have in common: modules with the same weights that read the same tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from secateur.graph.nodes import has_hooks


@contextmanager
def sharing(models: Sequence[nn.Module]) -> Iterator[None]:
    """Let equal modules of several networks return what the first of them computed, if they read the same tensor.

    Equal modules have the same bits in their weights and the same settings, so no bit of an output changes. Only
    modules of torch are compared, whose settings are known, and only those with weights and without hooks.
    """
    with ExitStack() as stack:
        _share(models, stack)
        yield


def _share(modules: Sequence[nn.Module], stack: ExitStack) -> None:
    groups: list[list[nn.Module]] = []
    for module in modules:
        equal = next((group for group in groups if _is_equal(group[0], module)), None)
        if equal is None:
            groups.append([module])
        else:
            equal.append(module)
    for group in groups:
        last = _LastCall()
        for module in group if len(group) > 1 else ():
            stack.enter_context(_replaced(module, last.wrap(module.forward)))
    if len(groups) > 1:  # parts of different modules may be equal
        children = [dict(first.named_children()) for first, *_ in groups]
        for name in dict.fromkeys(name for each in children for name in each):
            _share([each[name] for each in children if name in each], stack)


class _LastCall:
    """What one of several equal modules read last, and what it returned."""

    def __init__(self) -> None:
        self.known: tuple[Tensor, Tensor, tuple[int, int]] | None = None

    def wrap(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            if self.known is not None:
                read, found, versions = self.known
                # A tensor has another version once it is changed in place.
                if read is x and versions == (x._version, found._version):
                    return found
            before, found = x._version, forward(x)
            self.known = (x, found, (before, found._version)) if isinstance(found, Tensor) else None
            return found

        return call


@contextmanager
def _replaced(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    before = vars(module).get("forward")
    module.forward = forward  # no hook can skip a computation
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _is_equal(first: nn.Module, second: nn.Module) -> bool:
    modules = [*first.modules(), *second.modules()]
    tensors = [{**dict(each.named_parameters()), **dict(each.named_buffers())} for each in (first, second)]
    return (
        all(type(each).__module__.startswith("torch.nn.modules.") and not has_hooks(each) for each in modules)
        and _settings(first) == _settings(second)
        and bool(tensors[0])
        and tensors[0].keys() == tensors[1].keys()
        and all(_has_same_bits(tensors[0][name], tensors[1][name]) for name in tensors[0])
    )


def _settings(module: nn.Module) -> list[tuple[str, type, dict[str, object]]]:
    left_out = ("_parameters", "_buffers", "_modules")
    return [
        (name, type(each), {key: value for key, value in vars(each).items() if key not in left_out})
        for name, each in module.named_modules()
    ]


def _has_same_bits(first: Tensor, second: Tensor) -> bool:
    kinds = [(each.dtype, each.device, each.shape, each.stride()) for each in (first, second)]
    return kinds[0] == kinds[1] and torch.equal(
        *(each.detach().flatten().view(torch.uint8) for each in (first, second))
    )
