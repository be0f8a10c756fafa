"""All steps in one call: any network, any data, a budget; a small file and a run that every command understands."""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from secateur.budget import Budget
from secateur.experiments.directory import RunDirectory
from secateur.experiments.given_data import GivenData, batches_of, given_data
from secateur.experiments.outcome import DENSE, FILE
from secateur.experiments.runner import carry_out, is_finished
from secateur.experiments.subject import Subject
from secateur.files import GivenArchitecture, load
from secateur.job import FROM_WEIGHTS, GIVEN, Job
from secateur.methods import FewValues, Method, method_for
from secateur.results import EvaluationResult, RunResult, figure, write
from secateur.train.processes import is_main_process
from secateur.train.recipe import Recipe
from secateur.train.task import Loss, Task
from secateur.weights.reading import copied

if TYPE_CHECKING:
    from rich.console import Console

_RECIPE = Recipe(epochs=10, optimizer="adam", lr=1e-3, schedule="cosine")
_NO_BETTER = 0.9  # of the error of guessing: a network above that was not trained


@dataclass(frozen=True)
class Compressed:
    """A compressed network, its file and its numbers."""

    model: nn.Module  # plain: original class and keys, exact zeros, few values
    path: Path  # of its .cut file, next to which the other files of the run are
    result: RunResult

    @property
    def ratio(self) -> float:
        """All prunable weights ÷ those kept."""
        return self.result.ratio

    @property
    def bytes(self) -> int:
        """The size of the file."""
        assert self.result.file is not None
        return self.result.file.bytes

    @property
    def error(self) -> float:
        """The validation error of the network in the file, or its mean loss; `result.measure` says which."""
        return self.result.error

    @property
    def dense_error(self) -> float:
        """The same of the network as it was given; NaN if it was not trained."""
        return self.result.errors.get(DENSE, math.nan)

    def __str__(self) -> str:
        before, after = (figure(error, self.result.measure) for error in (self.dense_error, self.error))
        measured = f"validation {self.result.measure} {before} → {after}"
        return f"{self.ratio:.1f}× fewer weights, {self.bytes:,} bytes, {measured}: {self.path}"


def compress(
    model: nn.Module,
    train: Any,
    validation: Any,
    *,
    budget: Budget,
    epochs: int | None = None,
    loss: Loss | None = None,
    teacher: nn.Module | None = None,
    error: Callable[[nn.Module], float] | None = None,
    test: Any = None,
    recipe: Recipe | None = None,
    method: Method | None = None,
    quantize: bool = True,
    architecture: GivenArchitecture | None = None,
    directory: str | Path | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: bool = True,
    page: bool = True,
) -> Compressed:
    """Prune a network to a budget while it trains, quantise what is left, and write it to one small file.

    `train` and `validation` are data loaders, data sets (whose samples are put together in batches of the recipe's
    size), or lists of batches. A batch is a tensor, inputs followed by labels, or a mapping from argument names to
    values. `loss` is a function of the network's output and the labels; without it, the network's own loss is used if
    it returns one, and the cross-entropy otherwise. With a `teacher`, the network also learns from its output: see
    `secateur.train.task`. A classifier without a `loss` of its own is evaluated on `validation` by the percentage of
    wrong answers, any other network by its mean loss, or by `error`, a function of the network; on `test` once.

    Training begins with the weights of `model`, which is left alone, and with its function. `recipe` says how it is
    trained (10 epochs by Adam if none is given), `epochs` for how long, and `method` by what it is pruned. With
    `quantize=False` weights keep their values. `architecture` is what the file says about the network, see `save`;
    without it the file records the class of the model if that can be imported and built without arguments or from a
    configuration.

    The run is left in `directory`, with a `page` about it and the speed of the network unless that is False;
    `resume=True` continues one that was killed. The network that is returned is in evaluation mode.
    """
    from rich.console import Console  # what shows progress is not imported with the package

    from secateur.report.terminal import Watcher, print_outcome, say

    task = Task(loss, None if teacher is None else _frozen(teacher))
    data = given_data(model, train, validation, task=task, error=error)
    job = _job(model, data, budget, recipe or _RECIPE, epochs, method, quantize, seed)
    job.methods[0].check(model)
    place = RunDirectory(Path(directory) if directory else Path("runs") / _name(job, budget))
    console, described = Console(quiet=not progress), architecture or importable(model)
    is_done = is_finished(place, job, resume=resume)
    is_tested, has_page = (is_done and path.exists() for path in (place.test, place.page))
    if is_done and (is_tested or test is None) and (has_page or not page):
        return Compressed(load(place.file, copied(model)).eval(), place.file, place.read_result())
    start = data.evaluate(model).error
    is_trained = not start >= _NO_BETTER * data.guessing_error
    if not is_done:
        with Watcher(console) as watcher:
            if not is_trained:
                watcher.note(
                    f"the network has a validation error of {start:.1f} % as given: it is trained from scratch"
                )
            carry_out(job, place, copied(model), data, architecture=described, is_trained=is_trained, observer=watcher)
    finished = load(place.file, copied(model)).eval()
    if is_main_process():
        if test is not None and not is_tested:
            _test(place, model if is_trained else None, finished, data, test)
        if page:
            _leave_page(console, place, finished, data)
        if progress:
            print_outcome(console, place)
        if described is None:
            say(console, f"the file does not say how to build the network: secateur.load({str(place.file)!r}, model)")
    return Compressed(finished, place.file, place.read_result())


def importable(model: nn.Module) -> GivenArchitecture | None:
    """Return what a file can say about a model's class: its configuration, or that it takes no arguments; or None."""
    kind = type(model)
    if kind.__module__ in ("__main__", "builtins") or kind.__qualname__ != kind.__name__:
        return None
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict") and type(config).__module__ != "__main__":
        return config  # type: ignore[no-any-return]  # a Config, as far as can be seen
    needed = [
        each
        for each in inspect.signature(kind).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed or kind.__module__.startswith("torch."):
        return None
    try:
        with torch.device("meta"):
            same = kind()
    except Exception:  # code of the user may do anything: then the file does not name the class
        return None
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    if {name: value.shape for name, value in same.state_dict().items()} != shapes:
        return None
    return f"{kind.__module__}:{kind.__name__}", {}


def _job(
    model: nn.Module,
    data: GivenData,
    budget: Budget,
    recipe: Recipe,
    epochs: int | None,
    method: Method | None,
    quantize: bool,
    seed: int,
) -> Job:
    first = (method or method_for(budget)()).with_budget(budget)
    further = (FewValues(),) if quantize and not first.leaves_few_values else ()
    return Job(
        network=type(model).__name__,
        # A directory belongs to these weights and data: another network must not be taken for a finished run.
        data=f"{len(data.training):,} + {data.validation_samples:,} samples{FROM_WEIGHTS}{_digest(model):08x}",
        preset=GIVEN,
        methods=(first, *further),
        recipe=recipe if epochs is None else replace(recipe, epochs=epochs),
        seed=seed,
    )


def _name(job: Job, budget: Budget) -> str:
    words = str(budget).replace("×", "x").replace("%", "percent").replace(",", "").split()
    return "-".join([job.network.lower(), *words, f"seed{job.seed}"])


def _digest(model: nn.Module) -> int:
    """Return a checksum of a network's tensors."""
    found = 0
    for value in model.state_dict().values():
        if isinstance(value, Tensor):
            found = zlib.crc32(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), found)
    return found


def _frozen(teacher: nn.Module) -> nn.Module:
    """Return a teacher as it is used: without training and gradients."""
    return copied(teacher).eval().requires_grad_(False)


def _test(place: RunDirectory, dense: nn.Module | None, model: nn.Module, data: GivenData, test: Any) -> None:
    unseen = replace(data, validation=batches_of(test, "test"))
    errors = {} if dense is None else {DENSE: unseen.evaluate(dense).error}
    errors[FILE] = unseen.evaluate(model).error
    write(place.test, EvaluationResult(errors=errors, images=unseen.validation_samples))


def _leave_page(console: Console, place: RunDirectory, model: nn.Module, data: GivenData) -> None:
    """Write the page, with the speed of the network if its input is one tensor of floats."""
    from secateur.report.finish import leave_page, leave_speed

    if data.input_shape is not None:
        leave_speed(console, place, Subject(str(place.path), type(model).__name__, model.cpu(), data.input_shape))
    leave_page(console, place)
