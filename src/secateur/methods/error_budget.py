"""A budget of error: how far a network can be pruned if its validation error may rise by so many points."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from itertools import pairwise

from torch import Tensor, nn

from secateur.budget import Budget
from secateur.methods.method import Aids
from secateur.pruner import Pruner
from secateur.sibling import Granularity
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage

_MOST_ROUNDS = 11
_FIRST_FACTOR = 4.0  # by which the first round raises the ratio; its square root after a round that is not allowed
_ROUNDING = 1e-9  # errors are multiples of an image


def as_far_as_allowed(
    model: nn.Module, recipe: Recipe, aids: Aids, increase: float, granularity: Granularity
) -> Generator[Stage, None, None]:
    """Yield the dense network, and then the same in rounds, each of which prunes it further, in place.

    A round begins with the whole learning rate (with 0.3 of it LeNet-300-100 reached 27× instead of 49× at +0.3
    points) and ends with none, so that its error is what the network is worth. A round whose error is not allowed
    is undone, and the next one goes less far.
    """
    yield Stage(name="dense", model=model, recipe=recipe, forms=lambda: {"dense": model})
    # Without validation images a finished run can still be restored, which trains nothing.
    error = aids.error or (lambda model: math.nan)
    allowed = error(model) + increase
    pruner, ratio, factor = Pruner(model, Budget(ratio=2), granularity=granularity), 1.0, _FIRST_FACTOR
    reached, most = _copied_state(model), pruner.largest_ratio
    for number, round_recipe in enumerate(_rounds(recipe), start=1):
        tried = min(ratio * factor, most)
        pruner.restart(Budget(ratio=tried))
        yield Stage(
            name=f"round-{number}",
            model=model,
            recipe=round_recipe,
            between=pruner.advance,
            order=number,
            target={"ratio": tried},
        )
        if error(model) <= allowed + _ROUNDING:
            ratio, reached = tried, _copied_state(model)
        else:
            model.load_state_dict(reached)
            factor = math.sqrt(factor)
    if ratio == 1:
        aids.note(
            f"no network with a weight less is within {increase:g} points of the dense network's error: train for "
            "more epochs, or allow more"
        )


def _rounds(recipe: Recipe) -> list[Recipe]:
    """Divide the epochs of a recipe into rounds of about equal length."""
    number = max(1, min(_MOST_ROUNDS, recipe.epochs))
    bounds = [round(part * recipe.epochs / number) for part in range(number + 1)]
    return [replace(recipe, epochs=end - begin) for begin, end in pairwise(bounds)]


def _copied_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
