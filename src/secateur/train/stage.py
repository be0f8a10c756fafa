"""What a method asks the training loop for: one stage after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import Tensor, nn

from secateur.train.recipe import Recipe

Phase: TypeAlias = Literal["train", "fine-tune", "quantize"]  # the last two come after a cut
Term: TypeAlias = Callable[[nn.Module], Tensor]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A network to be trained in place, by which recipe, and what acts on it between steps."""

    name: str  # unique within a run: its log and its checkpoint are named after it
    model: nn.Module
    recipe: Recipe
    phase: Phase = "train"
    rho: float = 1e-2  # learning rate of thresholds ÷ learning rate of weights
    terms: Mapping[str, Term] = field(default_factory=dict)  # what is added to the loss of the task, by name
    # Called after every step with the number of steps done and of all steps. It may depend on nothing else than these
    # and the network, whose buffers are part of the checkpoint: a resumed stage then ends as one never interrupted.
    between: Callable[[int, int], None] | None = None
    # Where it is to end: {"ratio": …} or {"bytes": …}. Shown next to what is reached; nothing else follows from it.
    target: Mapping[str, float] = field(default_factory=dict)
    order: int = 0  # stages of one phase with different numbers see the images in different orders
    # The epochs of the run before this stage, if the images go on in one order through all of its stages, whatever
    # these are: `phase` and `order` do not matter then. None: the order starts anew.
    first_epoch: int | None = None
    # The networks to evaluate once the stage is trained, by name: the stage's own, or what it would be when cut.
    forms: Callable[[], Mapping[str, nn.Module]] = dict
