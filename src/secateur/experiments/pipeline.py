"""The stages of a job's methods, in order, for training them and for restoring them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from secateur.functions.computed import is_small
from secateur.job import Job
from secateur.measure import count
from secateur.methods import Aided, Aids
from secateur.train.stage import Stage
from secateur.weights.reading import settle

_PRUNED_BEFORE = 0.01  # share of zeros; training leaves next to none


def pipeline(
    job: Job,
    model: nn.Module,
    visit: Callable[[Stage], None],
    aids: Aids | None = None,
    *,
    is_trained: bool = False,
) -> Iterator[tuple[str, nn.Module]]:
    """Carry out a job's methods on a network; `visit` trains each stage, or fills it from its checkpoint.

    `aids` are for methods that want them while they train.

    Yields every form of the network that is to be evaluated, by name: those of the stages and, after each method, what
    it leaves. The last one is the finished network. Names that two methods use are made different. A network that is
    trained already, because it starts from pretrained weights, is a form as well: the dense one to compare with, unless
    the job trains that itself or weights have been pruned before.
    """
    stage_names, form_names = _Names(), _Names()
    if is_trained:
        yield form_names.new("dense" if _is_compared_with_start(job, model) else "start"), model
    for method in job.methods:
        model = settle(model) if is_small(model) else model
        if isinstance(method, Aided):
            stages = method.aided_stages(model, job.recipe, aids or Aids())
        else:
            stages = method.stages(model, job.recipe)
        while True:
            try:
                stage = next(stages)
            except StopIteration as end:
                model = _laid_out(end.value)
                break
            visit(replace(stage, name=stage_names.new(stage.name)))
            yield from ((form_names.new(form), network) for form, network in stage.forms().items())
        yield form_names.new(method.leaves), model


def _is_compared_with_start(job: Job, start: nn.Module) -> bool:
    """Return whether what a job starts from is its dense network; a network given in Python is compared with itself."""
    if job.is_dense or job.methods[0].trains_dense:
        return False
    return job.is_given or count(start).prunable.sparsity < _PRUNED_BEFORE


class _Names:
    """Gives the second of two equal names a number: checkpoints and errors are kept under them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def new(self, name: str) -> str:
        self._counts[name] += 1
        return name if self._counts[name] == 1 else f"{name}-{self._counts[name]}"


@torch.no_grad()
def _laid_out(model: nn.Module) -> nn.Module:
    """Give a network the memory layout of a freshly loaded one, so that the next method's bits do not depend on it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # torch's stubs
