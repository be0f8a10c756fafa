"""What a method is.

A method is a frozen dataclass of its settings, and each setting is a flag of the command line. Its `stages` yields what
to train next and returns a plain network, or one whose weights are computed from smaller tensors. It never trains by
itself: the runner does, and counts what every method costs in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn
from typing_extensions import Self

from secateur.budget import Budget
from secateur.encode import to_bytes
from secateur.train.recipe import Recipe
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """How a network is made smaller: settings, and the stages of training they lead to."""

    name: ClassVar[str]  # in the table of methods and on the command line
    leaves: ClassVar[str] = "pruned"  # what its network is called in tables
    leaves_few_values: ClassVar[bool] = False  # whether the weights it leaves are quantised already
    # Whether layers of its network change what they read (signs, few levels): it has the class and parameters of the
    # original, and some layers a child `inputs` besides (`secateur.functions.inputs`).
    changes_inputs: ClassVar[bool] = False
    leaves_small: ClassVar[bool] = False  # whether its weights are computed from smaller tensors, which a file stores
    needs_trained: ClassVar[bool] = False  # whether another method has to go before it
    is_reference: ClassVar[bool] = False  # whether it leaves every weight, for others to be compared with
    trains_dense: ClassVar[bool] = False  # whether it trains a dense network first, its form "dense"
    package: ClassVar[str] = ""  # the package from outside that carries it out, if it is none of our dependencies
    published_as: ClassVar[str] = ""  # what `secateur.literature` calls the method, if it has results of it

    @abstractmethod
    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield what is to be trained before the method can go on, and return a plain network.

        With `leaves_small`, its weights are still read through functions that compute them from smaller tensors.
        `model` is plain and may be changed; `recipe` is how the user wants a network trained.
        """

    def with_budget(self, budget: Budget) -> Self:
        """Return the method with another budget, if it has one."""
        return self

    def cut_magnitudes(self, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        """Return, for every threshold, the |w| below which a weight is cut: the threshold, unless θ is smooth."""
        return thresholds

    def check(self, model: nn.Module) -> None:  # noqa: B027  (most methods work on any network)
        """Raise a ValueError if the settings cannot work on a network of these shapes, which may be without memory."""

    @abstractmethod
    def epochs(self, recipe: Recipe) -> int:
        """Return the passes over the training images that all stages take together."""

    def epochs_for(self, model: nn.Module, recipe: Recipe) -> int:
        """Return the same for a network, on whose layers it may depend."""
        return self.epochs(recipe)


@dataclass(frozen=True)
class Aids:
    """What a run can tell a method while it trains."""

    # The size of the file that a plain network would be written to, everything counted.
    file_size: Callable[[nn.Module], int] = lambda model: len(to_bytes(model.state_dict()))
    # The error on validation images in per cent; None where there are none.
    error: Callable[[nn.Module], float] | None = None
    # Where a sentence to the user goes.
    note: Callable[[str], None] = lambda text: None
    # The mean losses of batches of so many training samples, to be differentiated: for methods that measure derivatives
    # between stages. None where a finished run is restored, and its stages are read from checkpoints.
    losses: Callable[[nn.Module, int], Iterator[Tensor]] | None = None


@runtime_checkable
class Aided(Protocol):
    """A method that wants to know more than the network and the recipe."""

    def aided_stages(self, model: nn.Module, recipe: Recipe, aids: Aids) -> Generator[Stage, None, nn.Module]:
        """Do what `stages` does, with the run's aids."""
        ...


@runtime_checkable
class Cautious(Protocol):
    """A method that can tell before training that its settings will not reach much."""

    def caution(self, model: nn.Module, recipe: Recipe, training_images: int) -> str | None:
        """Return a sentence about what the settings cannot reach; None if there is nothing to say."""
        ...
