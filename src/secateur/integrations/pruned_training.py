"""What a framework's callback does between the steps of a training that prunes: the same for every framework."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from secateur.budget import Budget
from secateur.functions.solved_threshold import SolvedThreshold
from secateur.functions.threshold import LearnedThreshold, learned_thresholds
from secateur.prune import prune_, require_cutoff
from secateur.pruner import Pruner
from secateur.sibling import LayerRules
from secateur.train.objective import penalty
from secateur.train.recipe import require_not_negative
from secateur.weights.function import ParameterGroup, WeightFunction
from secateur.weights.tensors import tensors

_CHAIN = ".parametrizations."  # part of the key of everything that a function of a weight, or the weight itself, has


class PrunedTraining:
    """A training that prunes, to a budget or in the paper's form: attach, begin, steps, cut.

    With a budget, thresholds are attached to the plain network and solved for. In the paper's form the network is a
    sibling already, its optimizer has the groups of `parameter_groups`, and `lambda_t` is the factor of the penalty.
    """

    def __init__(
        self, budget: Budget | None, *, layers: LayerRules | None, lambda_t: float | None, cutoff: float
    ) -> None:
        if (budget is None) == (lambda_t is None):
            raise ValueError(
                "give a budget, as in Budget(ratio=20), or lambda_t for the paper's form: one of the two, got "
                + ("neither" if budget is None else "both")
            )
        if budget is not None and budget.error_increase is not None:
            raise ValueError(
                "a budget of error_increase takes several rounds of training, which a callback does not have: give a "
                "ratio, a sparsity or bytes"
            )
        if lambda_t is not None:
            require_not_negative(lambda_t=lambda_t)
            if layers is not None:
                raise ValueError("in the paper's form layers are chosen by build_sibling(model, layers=…)")
        require_cutoff(cutoff)
        self.budget, self.layers, self.lambda_t, self.cutoff = budget, layers, lambda_t, cutoff
        self._model: nn.Module | None = None
        self._pruner: Pruner | None = None

    def attach(self, model: nn.Module) -> None:
        """Let the network read its weights through thresholds, before a checkpoint is loaded."""
        if self.budget is not None:
            Pruner(model, self.budget, layers=self.layers)
        elif not learned_thresholds(model):
            raise ValueError(
                f"{type(model).__name__} is not a sibling: call secateur.build_sibling on it before training, and give "
                "the optimizer secateur.parameter_groups(model, lr=…, rho=…)"
            )

    def begin(
        self, model: nn.Module, *, steps: float, groups: Iterable[ParameterGroup], clip_norm: float | None
    ) -> None:
        """Prepare for the first step of a training, or of what is left of one, of `steps` steps in all."""
        self._model = model
        if self.budget is None:
            _require_groups(model, groups)
            if clip_norm:
                raise ValueError(
                    f"gradients are clipped at {clip_norm:g}, those of thresholds too: they are sums over whole layers "
                    "and would leave next to nothing of the others; turn clipping off"
                )
            return
        if not math.isfinite(steps):
            raise ValueError("a budget needs the number of all steps: give the trainer a number of steps or epochs")
        self._pruner = Pruner(model, self.budget, steps=int(steps), layers=self.layers)

    def before_step(self) -> None:
        """Add the gradient of the penalty, once for a step of the optimizer; with a budget there is none.

        It reaches thresholds alone, so adding it here equals adding the penalty to the loss. Not by `backward`, whose
        hooks would tell DistributedDataParallel that the gradients are ready a second time.
        """
        if self.lambda_t is None:
            return
        assert self._model is not None
        thresholds = [function.threshold for function in learned_thresholds(self._model).values()]
        slopes = torch.autograd.grad(penalty(self._model, self.lambda_t), thresholds)
        for threshold, slope in zip(thresholds, slopes, strict=True):
            threshold.grad = slope if threshold.grad is None else threshold.grad + slope

    def after_step(self) -> None:
        """Move the thresholds, once for a step of the optimizer, before gradients are set to zero."""
        if self._pruner is not None:
            self._pruner.step()

    def numbers(self) -> dict[str, float]:
        """Return what is worth a line in a log: the ratio, the weights kept and the multiplier λ."""
        assert self._model is not None
        if self._pruner is not None:
            weights, kept, multiplier = self._pruner.weights, self._pruner.kept, self._pruner.multiplier
        else:
            assert self.lambda_t is not None
            weights, kept = _counts(self._model, self.cutoff)
            multiplier = self.lambda_t
        return {
            "pruning/ratio": weights / max(kept, 1),
            "pruning/kept": float(kept),
            "pruning/multiplier": multiplier,
        }

    @torch.no_grad()
    def take_thresholds(self, model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turn a state dict of the network into that of the plain one, as it would be cut; return what is taken out.

        In the paper's form nothing is: there the user's own code builds the sibling, and loads into it.
        """
        if self.budget is None:
            return {}
        taken = {key: state.pop(key) for key in list(state) if _CHAIN in f".{key}"}
        for tensor in tensors(model):
            if tensor.has(SolvedThreshold):
                state.update(dict.fromkeys(tensor.names, tensor.places[0].read()))
        return taken

    def cut(self, model: nn.Module) -> None:
        """Make the network plain again, in place: its own class and keys, with exact zeros."""
        pruner, self._pruner, self._model = self._pruner, None, None
        if pruner is not None and pruner.steps is not None and pruner.done < pruner.steps:
            warnings.warn(
                f"the network is that of step {pruner.done:,} of {pruner.steps:,}: {pruner.kept:,} weights are kept, "
                f"and {pruner.budget} asks for {round(pruner.wanted(1.0)):,}",
                stacklevel=3,
            )
        if any(tensor.has(WeightFunction) for tensor in tensors(model)):
            prune_(model, self.cutoff)


def _require_groups(model: nn.Module, groups: Iterable[ParameterGroup]) -> None:
    """Refuse an optimizer that trains thresholds as it trains weights: ρ would be lost, and they would decay."""
    own = {id(parameter) for group in groups if "rho" in group for parameter in group["params"]}
    for name, function in learned_thresholds(model).items():
        if id(function.threshold) not in own:
            raise ValueError(
                f'the optimizer trains the threshold of "{name}" like a weight: build the optimizer from '
                "secateur.parameter_groups(model, lr=…, rho=…)"
            )


@torch.no_grad()
def _counts(model: nn.Module, cutoff: float) -> tuple[int, int]:
    """Return how many weights have a threshold, and how many of them a cut would keep."""
    read = [tensor for tensor in tensors(model) if tensor.has(LearnedThreshold) and not tensor.has(SolvedThreshold)]
    kept = sum(int((tensor.places[0].read().abs() >= cutoff).sum()) for tensor in read)
    return sum(tensor.stored.numel() for tensor in read), kept
