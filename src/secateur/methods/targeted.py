"""What methods that prune to a given number of weights share: the setting, the choice, and the fine-tune after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Doc, Self

from secateur.budget import Budget
from secateur.functions.mask import FixedMask
from secateur.functions.scored import ScoredFunction
from secateur.methods.method import Method
from secateur.sibling import SiblingConfig, chosen_tensors, targets
from secateur.train.recipe import Recipe, require_share
from secateur.train.stage import Phase, Stage
from secateur.weights.function import WeightFunction
from secateur.weights.reading import attach, settle
from secateur.weights.tensors import NetworkTensor, tensors

_PRESSURES = 100  # how often the penalty is changed
_LARGEST_CHANGE = 1.25  # of the penalty at once
_RAMP = 0.7  # share of the stage after which the number of weights is to be reached

Function = TypeVar("Function", bound=WeightFunction)


@dataclass(frozen=True, kw_only=True)
class Targeted(Method):
    """A method that prunes to a ratio in the epochs of the recipe."""

    ratio: Annotated[float, Doc("all prunable weights ÷ weights kept in the end")] = 20.0

    def __post_init__(self) -> None:
        require_ratio(self.ratio)

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with the ratio of a budget."""
        return replace(self, ratio=ratio_of(budget, self))

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the ratio leaves less than a weight a layer."""
        require_a_weight_per_layer(model, self.ratio)

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs: pruning takes none of its own."""
        return recipe.epochs


@dataclass(frozen=True, kw_only=True)
class Selecting(Method):
    """A method that scores weights, whose final cut keeps those above zero, or exactly as many as a ratio says."""

    ratio: Annotated[
        float | None, Doc("all prunable weights ÷ weights kept by the final cut (none: those scored above zero)")
    ] = 20.0
    fine_tune: Annotated[float, Doc("share of the epochs after the cut, with every zero kept")] = 0.3

    def __post_init__(self) -> None:
        if self.ratio is not None:
            require_ratio(self.ratio)
        require_share(fine_tune=self.fine_tune)

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with the ratio of a budget for its final cut."""
        return replace(self, ratio=ratio_of(budget, self))

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the ratio leaves less than a weight a layer."""
        require_a_weight_per_layer(model, self.ratio or 1.0)

    def epochs(self, recipe: Recipe) -> int:
        """Return the recipe's epochs: those after the cut are a share of them."""
        return recipe.epochs

    @property
    def target(self) -> dict[str, float]:
        """Where a stage is to end."""
        return {} if self.ratio is None else {"ratio": self.ratio}


def require_parts(dense: float, fine_tune: float) -> None:
    """Raise a ValueError unless shares of the epochs leave some of them for the pruning."""
    require_share(dense=dense, fine_tune=fine_tune, **{"dense + fine_tune": dense + fine_tune})


def require_ratio(ratio: float) -> None:
    """Raise a ValueError unless a network can have so many times fewer weights."""
    if not (math.isfinite(ratio) and ratio > 1):
        raise ValueError(f"ratio must be above 1 and finite, got {ratio}")


def ratio_of(budget: Budget, method: Method) -> float:
    """Return the ratio of a budget; raise a ValueError for one that is not about the number of weights."""
    if budget.final_ratio is None:
        raise ValueError(f'method "{method.name}" prunes to a ratio or a sparsity, not to {budget}')
    return budget.final_ratio


def require_a_weight_per_layer(model: nn.Module, ratio: float) -> None:
    """Raise a ValueError if a ratio leaves less than a weight a layer."""
    found = targets(model)
    total = sum(target.weights for target in found)
    if total / ratio < len(found):
        raise ValueError(
            f"a ratio of {ratio:,g} would keep {total / ratio:.3g} of {total:,} weights: {len(found)} layers need one "
            f"each, so {total // len(found):,} is the most"
        )


def read_through(model: nn.Module, make: Callable[[NetworkTensor], Function]) -> list[tuple[NetworkTensor, Function]]:
    """Let every prunable weight of a network be read through a function of its own; return the tensors with these."""
    found = [(tensor, make(tensor)) for tensor, _ in chosen_tensors(model, SiblingConfig(), {})]
    for tensor, function in found:
        attach(tensor, function)
    return found


def dense_first(
    model: nn.Module, recipe: Recipe, dense: float, fine_tune: float
) -> Generator[Stage, None, tuple[Recipe, Recipe]]:
    """Yield the dense network for a share of the epochs; return the recipes of pruning and of the fine-tune."""
    others, first = recipe.split(dense)
    if first.epochs:
        yield Stage(name="dense", model=model, recipe=first)
    return others.split(fine_tune / (1 - dense))


@torch.no_grad()
def highest(scores: Sequence[Tensor], number: float) -> list[Tensor]:
    """Return which weights to keep, as booleans: the `number` highest, rounded down, with the highest of each layer.

    A layer without a weight would pass nothing on.
    """
    flat = [score.detach().flatten() for score in scores]
    flat = [score.index_fill(0, score.argmax(), torch.inf) for score in flat]
    everything = torch.cat(flat)
    kept = torch.zeros(len(everything), dtype=torch.bool, device=everything.device)
    kept[everything.topk(max(math.floor(number * (1 + 1e-12)), len(flat))).indices] = True
    parts = kept.split([len(score) for score in flat])
    return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]


def steered(found: Sequence[tuple[NetworkTensor, ScoredFunction]], ratio: float | None) -> Callable[[int, int], None]:
    """Return what raises or lowers the penalty between steps, so that scores above zero become about N/ratio.

    Their number is to fall geometrically. It is what a user does who tries one penalty after the other, in one run.
    """
    weights = sum(tensor.stored.numel() for tensor, _ in found)

    @torch.no_grad()
    def between(done: int, total: int) -> None:
        if ratio is None or done % max(total // _PRESSURES, 1):
            return
        wanted = weights / ratio ** min(done / (_RAMP * total), 1.0)
        kept = sum(int((function.scores(tensor.stored) > 0).sum()) for tensor, function in found)
        change = min(max(math.sqrt(max(kept, 1) / wanted), 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)
        for _, function in found:
            function.pressure.mul_(change)

    return between


def cut_and_fine_tune(
    model: nn.Module, ratio: float | None, recipe: Recipe, *, phase: Phase = "fine-tune"
) -> Generator[Stage, None, nn.Module]:
    """Keep the weights with the highest scores, train them with every zero kept, and return a plain network.

    Without a ratio, the weights with scores above zero are kept.
    """
    everything = ((tensor, function) for tensor in tensors(model) for function in tensor.functions)
    found = [(tensor, function) for tensor, function in everything if isinstance(function, ScoredFunction)]
    scores = [function.scores(tensor.stored.detach()) for tensor, function in found]
    if ratio is not None:
        kept = highest(scores, sum(score.numel() for score in scores) / ratio)
        for (_, function), keep in zip(found, kept, strict=True):
            function.chosen = keep
    masks = {tensor.name: score > 0 for (tensor, _), score in zip(found, scores, strict=True)}
    masks |= {tensor.name: function.chosen for tensor, function in found if function.chosen is not None}
    plain = settle(model)
    if not recipe.epochs:
        return plain
    for tensor in tensors(plain):
        if tensor.name in masks:
            attach(tensor, FixedMask(masks[tensor.name].to(torch.uint8)))
    yield Stage(name=phase, model=plain, recipe=recipe, phase=phase)
    return settle(plain)
