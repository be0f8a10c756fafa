"""What methods that train a dense network and then cut and retrain it in rounds have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from secateur.functions.mask import FixedMask
from secateur.methods.method import Aids
from secateur.methods.targeted import Targeted
from secateur.prune import prune
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage, Term
from secateur.weights.reading import attach
from secateur.weights.tensors import NetworkTensor, parameters


@dataclass(frozen=True, kw_only=True)
class Rounds(Targeted):
    """Train a dense network, then cut and retrain it in rounds, all in the epochs of the recipe."""

    trains_dense: ClassVar[bool] = True

    rounds: Annotated[int, Doc("how often the network is cut and retrained, each time by the same factor")] = 5
    dense: Annotated[float, Doc("share of the epochs before the first cut")] = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(least=1, rounds=self.rounds)
        if not 0 < self.dense < 1:
            raise ValueError(f"dense must lie between 0 and 1, got {self.dense}")

    @abstractmethod
    def keep(self, weights: Sequence[NetworkTensor], model: nn.Module, ratio: float, aids: Aids) -> list[Tensor]:
        """Return which weights to keep, as booleans; those that are kept may be changed. A weight of zero was cut."""

    def terms(self) -> dict[str, Term]:
        """Return what is added to the loss of the dense network."""
        return {}

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the dense network, then what is left of it after every cut, and return that."""
        return (yield from self.aided_stages(model, recipe, Aids()))

    def aided_stages(self, model: nn.Module, recipe: Recipe, aids: Aids) -> Generator[Stage, None, nn.Module]:
        """Do what `stages` does with what the run can tell about its data."""
        lengths = self.lengths(recipe.epochs)
        first = replace(recipe, epochs=lengths[0])
        yield Stage(name="train", model=model, recipe=first, terms=self.terms(), forms=lambda: {"dense": model})
        weights = [tensor for tensor in parameters(model) if tensor.is_weight]
        masks = [FixedMask(torch.ones_like(tensor.stored, dtype=torch.uint8)) for tensor in weights]
        for tensor, mask in zip(weights, masks, strict=True):
            attach(tensor, mask)
        for number, epochs in enumerate(lengths[1:], start=1):
            ratio = self.ratio ** (number / (len(lengths) - 1))
            kept = self.keep(weights, model, ratio, aids)
            with torch.no_grad():
                for tensor, mask, keep in zip(weights, masks, kept, strict=True):
                    mask.mask.copy_(keep)
                    tensor.stored[~keep] = 0
            yield Stage(
                name=f"round-{number}",
                model=model,
                recipe=replace(recipe, epochs=epochs),
                phase="fine-tune",
                target={"ratio": ratio},
                order=number,
            )
        return prune(model)

    def lengths(self, epochs: int) -> list[int]:
        """Divide the epochs into those of the dense network and of every round; fewer epochs make fewer rounds."""
        if epochs < 2:
            raise ValueError(f'method "{self.name}" trains before and after a cut: give it at least 2 epochs')
        rounds = min(self.rounds, epochs - 1)
        first = min(max(round(self.dense * epochs), 1), epochs - rounds)
        bounds = [first + round(part * (epochs - first) / rounds) for part in range(rounds + 1)]
        return [first, *(end - begin for begin, end in pairwise(bounds))]
