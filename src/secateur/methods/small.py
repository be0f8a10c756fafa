"""What methods share whose weights are computed from smaller tensors: the setting, and what counts as kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import nn
from typing_extensions import Doc

from secateur.methods.targeted import Targeted
from secateur.weights.tensors import NetworkTensor, parameters

_LAST = 0.4  # of the numbers that a ratio leaves: the most of them for a last layer that stays as it is


@dataclass(frozen=True, kw_only=True)
class SmallMethod(Targeted):
    """A method in the epochs of the recipe that returns a network whose weights are computed from smaller tensors.

    A file stores these. `settle` makes the network plain, and so does `secateur.load` unless told otherwise.
    """

    leaves_small: ClassVar[bool] = True
    leaves_few_values: ClassVar[bool] = True  # quantising the plain weights would only make the file larger

    ratio: Annotated[float, Doc("all prunable weights ÷ numbers that are stored for them")] = 10.0


def last_to_leave(model: nn.Module, ratio: float) -> str | None:
    """Return the name of the last weight if it may stay as it is: from few numbers, all classes would get like rows."""
    last = weights_of(model)[-1]
    total = sum(tensor.stored.numel() for tensor in weights_of(model))
    return last.name if last.stored.numel() <= _LAST * total / ratio else None


def weights_of(model: nn.Module) -> list[NetworkTensor]:
    """Return the weights that a ratio is about."""
    return [tensor for tensor in parameters(model) if tensor.is_weight]


def require_room(needed: int, model: nn.Module, ratio: float) -> None:
    """Raise a ValueError if the smallest form of a network has more numbers than a ratio allows."""
    total = sum(tensor.stored.numel() for tensor in weights_of(model))
    if needed > total / ratio:
        raise ValueError(
            f"a ratio of {ratio:g} would keep {total / ratio:.4g} of {total:,} numbers, and these layers need "
            f"{needed:,}: {total / needed:.4g} is the most"
        )
