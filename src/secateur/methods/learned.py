"""What methods that learn scores under a penalty share: the stage in which they do, and what steers it to a ratio."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Generic, TypeVar

from torch import nn

from secateur.functions.scored import ScoredFunction
from secateur.methods.targeted import Selecting, cut_and_fine_tune, dense_first, read_through, steered
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage
from secateur.weights.tensors import NetworkTensor

Function = TypeVar("Function", bound=ScoredFunction)


@dataclass(frozen=True, kw_only=True)
class Learned(Selecting, Generic[Function]):
    """A method that reads weights through functions with scores, whose penalty decides how many are left.

    With a ratio the penalty is raised or lowered while the network trains (`steered`), and the final cut is exact.
    """

    term: ClassVar[str]  # what the penalty is called in the log
    rates: ClassVar[Mapping[str, float]] = MappingProxyType({"sgd": 1.0, "adam": 1.0})  # of scores ÷ of weights

    @abstractmethod
    def function(self, tensor: NetworkTensor) -> Function:
        """Return what a weight is read through."""

    @property
    @abstractmethod
    def strength(self) -> float:
        """The weight of the penalty in the loss, before it is steered; 0 if the functions have none."""

    @property
    def dense_share(self) -> float:
        """The share of the epochs that train the dense network first."""
        return 0.0

    def move(self, functions: Sequence[Function], done: int, total: int, epochs: int) -> None:
        """Change the functions after a step, `done` of the `total` ones in all epochs; by default nothing."""

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network while scores are learned, then what is left of it, and return that."""
        learning, fine_tuning = yield from dense_first(model, recipe, self.dense_share, self.fine_tune)
        found = read_through(model, self.function)
        steer, functions = steered(found, self.ratio), [function for _, function in found]

        def between(done: int, total: int) -> None:
            steer(done, total)
            self.move(functions, done, total, learning.epochs)

        yield Stage(
            name="prune" if self.dense_share else "train",
            model=model,
            recipe=learning,
            rho=self.rates[recipe.optimizer],
            between=between,
            terms={self.term: lambda model: penalty(model, self.strength * float(functions[0].pressure))}
            if self.strength
            else {},
            target=self.target,
        )
        return (yield from cut_and_fine_tune(model, self.ratio, fine_tuning))
