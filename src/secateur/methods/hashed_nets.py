"""Chen et al. 2015, "Compressing Neural Networks with the Hashing Trick" (HashedNets, arXiv 1504.04788).

Each layer has few values, and a hash, which costs nothing to store, says which of them a weight is (their equations 7
and 8, with the sign of a second hash):

    V[i, j] = ξ(i, j) · w[h(i, j)]        ∂L/∂w_k = Σ_{i,j} ∂L/∂V[i, j] · ξ(i, j) · 1[h(i, j) = k]

They use xxHash, as here; the network is trained from scratch. Published for MNIST networks with 1/8 to 1/64
of their values; we could not check their figures and give none. Biases stay as they are.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn
from typing_extensions import Doc

from secateur.functions.computed import compute_from
from secateur.functions.hashed import HashedWeights
from secateur.methods.small import SmallMethod, require_room, weights_of
from secateur.train.recipe import Recipe, require_whole
from secateur.train.stage import Stage


@dataclass(frozen=True, kw_only=True)
class HashedNets(SmallMethod):
    """Train a network from scratch whose weights share few values by a hash of their place."""

    name: ClassVar[str] = "hashed-nets"
    leaves: ClassVar[str] = "hashed"

    ratio: Annotated[float, Doc("weights of each layer ÷ its buckets (the paper: 8 to 64)")] = 8.0
    hash_seed: Annotated[int, Doc("seed of the first layer's hash; the next ones have the numbers that follow")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(hash_seed=self.hash_seed)

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the ratio leaves a layer without a bucket."""
        weights = [tensor.stored for tensor in weights_of(model)]
        require_room(sum(self._buckets(weight) for weight in weights), model, self.ratio)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the network with its buckets once, and return it."""
        self.check(model)
        for number, tensor in enumerate(weights_of(model)):
            weight, seed = tensor.stored, self.hash_seed + 2 * number  # each layer has two hashes
            compute_from(tensor, HashedWeights.like(weight, self._buckets(weight), seed))
        yield Stage(name="train", model=model, recipe=recipe)
        return model

    def _buckets(self, weight: Tensor) -> int:
        return max(int(weight.numel() / self.ratio), 1)
