"""A weight function: what a layer reads in place of its stored weight, and everything else that belongs to it.

Every compressor is one: a learned threshold, a mask, a few shared values, a sign. Functions chain: each is given what
the one before it returns, the first the stored weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

# torch's own type: a dictionary that the optimizer keeps and that schedulers write to.
ParameterGroup: TypeAlias = dict[str, Any]


class FunctionGroup(NamedTuple):
    """Parameters of a weight function, their learning rate ÷ that of the weights, and whether weight decay applies."""

    parameters: list[nn.Parameter]
    rate: float
    is_decayed: bool


class WeightFunction(nn.Module, ABC):
    """A function that a layer reads its weight through, instead of reading the stored weight."""

    prunes: bool = False  # whether the stored tensor counts as a weight for that, even one of a single dimension
    reads_weight: bool = True  # False if the stored weight is no longer read, and so not trained either
    froze_weight: bool = False  # whether `attach` stopped the training of the stored weight for that reason
    # The groups of the plain weights and of this function, as `parameter_groups` made them.
    optimizer_groups: tuple[ParameterGroup, ParameterGroup] | None = None

    @abstractmethod
    def forward(self, weight: Tensor) -> Tensor:
        """Return what the layer reads, with a gradient to the weight or to this function's own parameters."""

    def settle(self, weight: Tensor) -> Tensor:
        """Return the plain value of the weight when training is over.

        Raises a ValueError if there is none; its text continues the tensor's name, as in "would lose all of its …".
        """
        with torch.no_grad():
            value: Tensor = self(weight)
        return value

    def penalty(self, weight: Tensor) -> Tensor | None:
        """Return this function's own term of the loss before its factor λ_t, or None if it has none."""
        return None

    def groups(self, rho: float) -> list[FunctionGroup]:
        """Return how the optimizer treats the parameters: by default at the weights' rate, without decay."""
        own = list(self.parameters())
        return [FunctionGroup(own, 1.0, False)] if own else []

    def after_step(self, weight: Tensor) -> None:
        """Do what has to be done after a step of the optimizer; `weight` is the stored one, to be changed in place."""

    def bits(self, weight: Tensor) -> Tensor | None:
        """Return the estimated bits of the coded tensor, with the gradient of a rate term.

        None stands for the bits of the plain values.
        """
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "optimizer_groups": None}  # a copy belongs to no optimizer


def functions(model: nn.Module) -> list[tuple[WeightFunction, ParametrizationList]]:
    """Return every weight function of a network once, each with a chain that it is part of.

    Written out, because it runs at every step and torch's `modules()` takes twice as long.
    """
    found: dict[WeightFunction, ParametrizationList] = {}
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if isinstance(module, ParametrizationList):
            for part in module._modules.values():
                if isinstance(part, WeightFunction):
                    found[part] = module
        elif module is not None:
            modules.extend(module._modules.values())
    return list(found.items())


def given(function: nn.Module, chain: ParametrizationList) -> Tensor:
    """Return what a function of a chain is given: the stored weight, after the functions before it."""
    weight = chain.original
    assert isinstance(weight, Tensor)
    for part in chain:
        if part is function:
            break
        weight = part(weight)
    return weight


@torch.no_grad()
def after_step(model: nn.Module) -> None:
    """Let every weight function of a network do, in place, what it does after a step of the optimizer."""
    for function, chain in functions(model):
        if type(function).after_step is not WeightFunction.after_step:
            assert isinstance(chain.original, Tensor)
            function.after_step(chain.original)
