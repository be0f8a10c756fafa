"""A budget in the paper's own terms: the size is given, and λ_t is the multiplier of that constraint.

The paper's loss is L₀(θ(W; t)) + λ_t·Σ_l‖θ(W_l; t_l)‖₁ with λ_t given and the sparsity an outcome. Here it is turned
round. With u_l the root mean square of layer l's weights at the beginning,

    t_l = s·u_l·exp(r_l),    Σ_l r_l = 0,    α_l = c/t_l

    s    is solved so that as many weights have |w| ≥ t as the schedule wants:  kept = N·ratio^(−p/ramp), then constant
    λ    = −Σ_l g_l / Σ_l h_l    with  g_l = ∂L₀/∂ln t_l  and  h_l = ∂P/∂ln t_l:  L₀ + λ·P is stationary in s
    r_l  descends  g_l + λ·h_l:  layers compete for the budget

p is the share of the training that is done. The price is P = Σ_l β_l·K_l, with K_l weights kept that count β_l each:
β = 1 for a number of weights, and the bits of a kept weight for a number of bytes, where the ratio is what these bits
make of the budget and becomes exact while the network approaches it. Cutting the K_l weights between t and t + dt takes
t off the paper's ‖θ_l‖₁ for each of them, so ∂K_l/∂ln t_l = ∂‖θ_l‖₁/∂t_l: the paper's L_t, with every weight that is
cut worth the same. (Prices by ‖θ‖₁ itself, that is λ = λ_t and h_l = t_l·∂‖θ_l‖₁/∂t_l, did as well or a little worse
in two pairs of runs.)

Layers read θ̄, the weights that would be kept, and both gradients are those of θ (`hard_theta_with_slopes`), so that
nothing changes at the cut. But θ̄ jumps at t: a weight whose best value is below t keeps crossing the threshold, however
small the learning rate is; in one run at 190×, a fifth of the weights kept did so at the end. So after a share of the
training the set of kept weights is fixed, and the rest of the training may give them any value, below t too.

No constant depends on the network, the optimizer or its learning rate: gradients count by their signs and ratios only,
and every length is in units of u or t.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from secateur.budget import Budget
from secateur.functions.solved_threshold import SolvedThreshold
from secateur.pruner.goals import Goal, Ratio, Size, final_ratio
from secateur.pruner.pruned import SAMPLE, Pruned, sampling_stride
from secateur.sibling import Granularity, LayerRules, SiblingConfig, chosen_tensors, threshold_shape
from secateur.weights.reading import attach
from secateur.weights.tensors import tensors

RAMP = 0.5  # share of the training after which no further weight is cut
FIXED = 0.6  # share of the training after which weights do not change places any more
_LARGEST_INTERVAL, _UPDATES = 50, 100  # steps between two updates at most, and how many updates there are at least
# r moves by _TRAVEL/√updates at an update: noise takes it about _TRAVEL far in all, a steady gradient √updates as far.
_TRAVEL = 0.5
_NEXT_TO_NOTHING = 1e-3  # of the largest gradient by r: a smaller one moves its r in proportion, not at full speed
# Until weights are fixed, s is solved on a sample, of `SAMPLE` weights or of as many as keep this number; then on all.
_KEPT_SAMPLE = 1 << 13
_MEAN, _MEAN_SQUARE, _SLOW = 0.8, 0.98, 0.8  # what the running means keep at an update


class Pruner:
    """Prunes a network to a budget while it trains, in any loop: call `step` after every step of the optimizer.

        pruner = Pruner(model, Budget(ratio=20), steps=len(loader) * epochs)
        …
            optimizer.step()
            pruner.step()
        plain = prune(model)

    The layers that `build_sibling` would choose read their weights through a `SolvedThreshold`, in place; `layers` and
    `granularity` are those of `build_sibling`. A network that has these already, such as one whose training goes on, is
    taken as it is. All that changes is part of the network's state dict. After a share `fixed` of the steps weights do
    not change places any more; 1 is for a loop that trains the pruned network further. A loop that counts its steps
    itself calls `advance` in place of `step`.
    """

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        *,
        steps: int | None = None,
        granularity: Granularity = "layer",
        layers: LayerRules | None = None,
        fixed: float = FIXED,
    ) -> None:
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be the number of all steps of the training, at least 1, got {steps}")
        if not RAMP <= fixed <= 1:
            raise ValueError(f"fixed must lie between {RAMP:g}, where the ramp ends, and 1, got {fixed}")
        self.steps, self.fixed = steps, fixed
        is_new = not any(tensor.has(SolvedThreshold) for tensor in tensors(model))
        if is_new:
            _attach(model, SiblingConfig(granularity=granularity), layers or {})
        self._pruned = [
            Pruned(tensor, tensor.stored, function)
            for tensor in tensors(model)
            if (function := tensor.function(SolvedThreshold)) is not None
        ]
        self.weights = sum(each.weight.numel() for each in self._pruned)
        self._others = [tensor for tensor in tensors(model) if not tensor.has(SolvedThreshold)]
        if is_new:
            # A layer of zeros alone has not been trained yet: these are not the zeros of a sparse network.
            self._begin(sum(int(each.weight.count_nonzero()) or each.weight.numel() for each in self._pruned))
        self._set_budget(budget)

    def restart(self, budget: Budget) -> None:
        """Begin a new ramp, from the weights that are kept now to another budget."""
        with torch.no_grad():
            kept = self.kept
            for each in self._pruned:
                each.function.release(each.weight)
                each.function.counts.zero_()
            self._begin(kept)
            self._set_budget(budget)

    @torch.no_grad()
    def _begin(self, kept: int) -> None:
        """Let the ramp begin with the weights that are not zero, so that those of a sparse network stay zero."""
        if 0 < kept < self.weights:
            for each in self._pruned:
                each.function.start.fill_(math.log(self.weights / kept))
                each.set_to_smallest()

    def _set_budget(self, budget: Budget) -> None:
        if budget.error_increase is not None:
            raise ValueError(
                "a budget of error takes several rounds of training, which a Pruner does not do: prune with a ratio, "
                "or let secateur train the network (--error-increase)"
            )
        self.budget = budget
        self._goal: Goal
        if budget.bytes is None:
            self._goal = Ratio(final_ratio(budget, [each.weight.numel() for each in self._pruned]))
        else:
            self._goal = Size(budget.bytes, self._others)

    def step(self) -> None:
        """Take the gradients of the thresholds, before they are set to zero, and move the thresholds."""
        if self.steps is None:
            raise ValueError("step() needs the number of all steps: Pruner(model, budget, steps=len(loader) * epochs)")
        for each in self._pruned:
            if each.function.threshold.grad is None:
                raise ValueError(
                    f'"{each.name}": its threshold has no gradient: call Pruner.step() after backward() and before '
                    "zero_grad(), and let the loss depend on every layer"
                )
        with torch.no_grad():
            for each in self._pruned:
                each.function.after_step(each.weight)
            for each in self._pruned:  # an optimizer that was built before the thresholds does not do this
                gradient = each.function.threshold.grad
                assert gradient is not None
                gradient.zero_()
        self._pruned[0].function.counts[0] += 1
        self.advance(self.done, max(self.done, self.steps))

    @torch.no_grad()
    def advance(self, done: int, total: int) -> None:
        """Move the thresholds to where they belong after `done` of `total` steps; gradients were taken already."""
        interval = max(1, min(total // _UPDATES, _LARGEST_INTERVAL))
        if done % interval and done != total:
            return
        if self._pruned[0].function.is_fixed:
            return
        progress = min(done / total, 1.0)
        if done < total:
            self._learn(progress, interval, max(total // interval, 1))
        if progress >= self.fixed:
            self._choose(self.wanted(progress))
        else:
            self._solve(self.wanted(progress))

    def wanted(self, progress: float) -> float:
        """Return how many weights the schedule keeps after a share of the training."""
        start = float(self._pruned[0].function.start)
        end = max(start, math.log(self._goal.ratio(self._pruned)))
        return self.weights * math.exp(-(start + (end - start) * min(1.0, progress / RAMP)))

    @property
    def largest_ratio(self) -> float:
        """All weights ÷ those that the layers keep in any case."""
        return self.weights / sum(each.least for each in self._pruned)

    @property
    def done(self) -> int:
        """How many times `step` was called, in all trainings that the network has resumed from."""
        return int(self._pruned[0].function.counts[0])

    @property
    def kept(self) -> int:
        """How many weights would be kept if the network were cut now."""
        return sum(each.kept for each in self._pruned)

    @property
    def multiplier(self) -> float:
        """λ: what a weight, or a bit, is worth in units of the loss; 0 before the first update."""
        price = sum(float(each.function.moments[3].sum()) for each in self._pruned)
        return -sum(float(each.function.moments[2].sum()) for each in self._pruned) / price if price else 0.0

    def keep_exactly(self, number: int) -> None:
        """Cut all but the `number` largest weights of those that are kept now, for a file that has to fit."""
        with torch.no_grad():
            for each in self._pruned:
                each.function.release(each.weight)
            self._choose(number)

    def _learn(self, progress: float, steps: int, updates: int) -> None:
        """Move the relative thresholds by one of `updates` descent steps; `steps` have passed since the last one."""
        functions = [each.function for each in self._pruned]
        slopes = [function.mean_gradient(steps) * function.threshold for function in functions]
        betas = self._goal.prices(self._pruned)
        prices = [beta * each.norm_slope() for beta, each in zip(betas, self._pruned, strict=True)]
        for function, slope, price in zip(functions, slopes, prices, strict=True):
            function.gradient.zero_()
            function.counts[1] += 1
            function.moments[2].lerp_(slope, 1 - _SLOW)
            function.moments[3].lerp_(price, 1 - _SLOW)
        multiplier = self.multiplier
        for function, slope, price in zip(functions, slopes, prices, strict=True):
            descent = slope + multiplier * price
            function.moments[0].lerp_(descent, 1 - _MEAN)
            function.moments[1].lerp_(descent.square(), 1 - _MEAN_SQUARE)
        number = int(functions[0].counts[1])
        means = [function.moments[0] / (1 - _MEAN**number) for function in functions]
        sizes = [(function.moments[1] / (1 - _MEAN_SQUARE**number)).sqrt() for function in functions]
        least = max(_NEXT_TO_NOTHING * max(float(size.max()) for size in sizes), torch.finfo(sizes[0].dtype).tiny)
        rate = _TRAVEL / math.sqrt(updates) * (1 + math.cos(math.pi * progress)) / 2
        for function, mean, size in zip(functions, means, sizes, strict=True):
            # Squares of tiny gradients vanish, their mean does not; anywhere else the quotient is below 2.
            function.relative -= rate * (mean / size.clamp(min=least)).clamp(-2, 2)
        centre = sum(float(function.relative.sum()) for function in functions)
        centre /= sum(function.relative.numel() for function in functions)
        for function in functions:
            function.relative -= centre

    def _solve(self, wanted: float) -> None:
        """Set all thresholds to one scale s, so that about `wanted` weights are kept."""
        most = max(math.ceil(self.weights / SAMPLE), int(wanted / _KEPT_SAMPLE))
        stride = sampling_stride(most, [each.weight for each in self._pruned])
        sizes = self._sizes(stride)
        scale = _largest(torch.cat(sizes), _whole(wanted / stride), self._pruned[0].scale)
        for each, size in zip(self._pruned, sizes, strict=True):
            each.set_threshold(scale)
            if stride * int((size >= scale).sum()) < each.least:
                each.lower_threshold()

    def _choose(self, wanted: float) -> None:
        """Keep exactly so many weights for good, the largest in units of their layer."""
        sizes = [each.with_least(size) for each, size in zip(self._pruned, self._sizes(), strict=True)]
        number, everything = _whole(wanted), torch.cat(sizes)
        scale = _largest(everything, number, self._pruned[0].scale)
        kept = everything > scale
        equal = (everything == scale).nonzero().squeeze(1)
        kept[equal[: number - int(kept.sum())]] = True
        for each, part in zip(self._pruned, kept.split([len(size) for size in sizes]), strict=True):
            each.set_threshold(scale)
            each.function.fix(part.view(each.weight.shape))

    def _sizes(self, stride: int = 1) -> list[Tensor]:
        """Return what is compared with s, one flat tensor a layer, for one weight in `stride`."""
        sizes = [each.relative_sizes(stride) for each in self._pruned]
        for each, size in zip(self._pruned, sizes, strict=True):
            if not size.sum().isfinite():
                raise FloatingPointError(f'"{each.name}" became NaN or infinite: lower the learning rate')
        return sizes


def _whole(number: float) -> int:
    """Return a number of weights, at least 1, and never more than a budget allows."""
    return max(1, math.floor(number * (1 + 1e-12)))


def _largest(values: Tensor, number: int, guess: Tensor) -> Tensor:
    """Return the smallest of the `number` largest values; a `guess` near it saves most of the time."""
    likely = values[values >= 0.8 * guess]
    values = likely if len(likely) >= number else values
    place = len(values) - number
    if values.is_cpu:  # NumPy takes half as long as torch
        return torch.from_numpy(np.partition(values.numpy(), place))[place]
    return values.kthvalue(place + 1).values


def _attach(model: nn.Module, config: SiblingConfig, layers: LayerRules) -> None:
    for tensor, rule in chosen_tensors(model, config, layers):
        attach(tensor, SolvedThreshold(tensor.stored, threshold_shape(tensor, rule.granularity)))
