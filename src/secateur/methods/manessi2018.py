"""Manessi et al. 2018, "Automated Pruning for Deep Neural Network Compression": thresholds learned by gradient descent.

The paper trains the sibling once and cuts it. A fine-tune of what is left, with every zero kept, is ours.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from torch import nn
from typing_extensions import Doc

from secateur.functions.threshold import learned_thresholds
from secateur.methods.method import Method
from secateur.prune import keep_zeros, prune, require_cutoff
from secateur.sibling import SiblingConfig, build_sibling
from secateur.theta import theta_inverse
from secateur.train.objective import penalty
from secateur.train.recipe import Recipe, require_not_negative, require_whole
from secateur.train.stage import Stage

_WORTH_TRAINING = 1.5  # a ratio below this is next to nothing


@dataclass(frozen=True, kw_only=True)
class Manessi2018(Method):
    """Train the sibling, thresholds and weights together, cut it, and fine-tune what is left."""

    name: ClassVar[str] = "manessi2018"
    published_as: ClassVar[str] = "Manessi et al. 2018"

    sibling: Annotated[SiblingConfig, Doc("how a weight gets its threshold")] = field(default_factory=SiblingConfig)
    rho: Annotated[float, Doc("ρ, the thresholds' learning rate ÷ the weights'")] = 1e-2
    lambda_t: Annotated[float, Doc("λ_t, the weight of Σ|θ(W; t)|, which drives the thresholds")] = 1e-2
    cutoff: Annotated[float, Doc("γ, weights with |θ(w)| below it are cut")] = 1e-3
    fine_tune_epochs: Annotated[int, Doc("passes after the cut, with every zero kept (0: none, the paper)")] = 0
    fine_tune_lr: Annotated[float, Doc("learning rate after the cut")] = 1e-3

    def __post_init__(self) -> None:
        require_cutoff(self.cutoff)
        require_not_negative(rho=self.rho, lambda_t=self.lambda_t, fine_tune_lr=self.fine_tune_lr)
        require_whole(fine_tune_epochs=self.fine_tune_epochs)

    def stages(self, model: nn.Module, recipe: Recipe) -> Generator[Stage, None, nn.Module]:
        """Yield the sibling, then what is left of it if that is fine-tuned, and return the pruned network."""
        sibling = build_sibling(model, self.sibling)
        for function in learned_thresholds(sibling).values():
            function.cutoff = self.cutoff
        yield Stage(
            name="train",
            model=sibling,
            recipe=recipe,
            rho=self.rho,
            terms={"thresholds": lambda model: penalty(model, self.lambda_t)},
            forms=lambda: {
                "sibling": sibling,
                "theta": prune(sibling, self.cutoff),
                "raw": prune(sibling, self.cutoff, survivors="raw"),
            },
        )
        pruned = prune(sibling, self.cutoff)
        if not self.fine_tune_epochs:
            return pruned
        recipe = replace(recipe, epochs=self.fine_tune_epochs, lr=self.fine_tune_lr)
        yield Stage(name="fine-tune", model=keep_zeros(pruned), recipe=recipe, phase="fine-tune")
        return prune(pruned)

    def cut_magnitudes(self, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        """Return the |w| for which |θ(w; t)| = γ, which for a smooth θ is not t but a little below."""
        t = torch.tensor(thresholds, dtype=torch.float64)
        return tuple(theta_inverse(torch.full_like(t, self.cutoff), t, self.sibling.alpha).tolist())

    def epochs(self, recipe: Recipe) -> int:
        """Return the epochs before and after the cut."""
        return recipe.epochs + self.fine_tune_epochs

    def caution(self, model: nn.Module, recipe: Recipe, training_images: int) -> str | None:
        """Return a sentence if the thresholds cannot rise far enough to cut more than a few weights.

        Under Adam a threshold moves by at most about lr·ρ a step, whatever the loss says. What lies below the highest
        threshold that can be reached is counted in the network as it starts.
        """
        if recipe.optimizer != "adam" or not self.lambda_t:
            return None
        travel = recipe.steps(training_images) * recipe.lr * self.rho * (0.5 if recipe.schedule == "cosine" else 1)
        below = total = 0
        with torch.no_grad():
            plain = dict(model.named_parameters())
            for name, function in learned_thresholds(build_sibling(copy.deepcopy(model), self.sibling)).items():
                below += int((plain[name].abs() < function.threshold + travel).sum())
                total += plain[name].numel()
        ratio = total / max(total - below, 1)
        if ratio >= _WORTH_TRAINING:
            return None
        return (
            f"these settings can prune next to nothing (about {ratio:.1f}×): in {recipe.steps(training_images):,} "
            f"steps a threshold rises by at most lr·ρ·steps = {travel:.2g}; train for more epochs or with a larger rho"
        )
