"""A complete small training loop for one stage, on Hugging Face Accelerate.

Everything random is drawn anew from (seed, phase, epoch) at the start of each epoch and a checkpoint is written at
its end. A run that is killed at any moment and resumed ends bit for bit as if it had never been killed.
"""

from __future__ import annotations

import ctypes
import platform
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from secateur.train import checkpoint
from secateur.train.journal import Journal
from secateur.train.objective import parameter_groups
from secateur.train.observers import LogLine, Observer, Silent
from secateur.train.recipe import Recipe
from secateur.train.source import Batches, Part, Source, steps_in, steps_of
from secateur.train.stage import Stage
from secateur.train.task import Task, moved
from secateur.weights.function import after_step

if TYPE_CHECKING:
    from accelerate import Accelerator


def fit(
    stage: Stage,
    source: Source,
    *,
    seed: int,
    measure: Callable[[nn.Module], LogLine],
    journal: Journal,
    observer: Observer | None = None,
    task: Task | None = None,
) -> float:
    """Train a stage's network in place, from its checkpoint if there is one, and return the seconds it took in all.

    `measure` is called once per epoch, on the network as it then is, and its result goes into the log. `task` is the
    loss of a batch, without it the cross-entropy of pairs of inputs and labels.
    """
    with _flushing_denormals():
        training = _Training(stage, source, task or Task(), seed + 1000 * stage.order)
        observer = observer or Silent()
        done, seconds, length = training.resume(journal)
        if training.is_main:
            journal.truncate(length)
        for epoch in range(done, stage.recipe.epochs):
            started = time.perf_counter()
            line = training.epoch(epoch, observer)
            line |= measure(stage.model)
            seconds += time.perf_counter() - started
            if training.is_main:
                journal.append(line)
                observer.epoch(line)
                observer.network(line, stage.model)
            training.save(journal, {"epoch": epoch + 1, "seconds": seconds, "log_bytes": journal.length})
        return float(seconds)


class _Training:
    """A stage under way: the prepared network, its optimizer, and the epochs over the images."""

    def __init__(self, stage: Stage, source: Source, task: Task, seed: int) -> None:
        keep_freed_memory()
        recipe = stage.recipe
        self.stage, self.source, self.task, self.seed = stage, source, task, seed
        groups = parameter_groups(
            stage.model,
            lr=recipe.lr,
            rho=stage.rho,
            lambda_wd=recipe.lambda_wd,
            decay_biases=recipe.decay_biases,
            bias_lr=recipe.bias_lr,
        )
        self.accelerator = _accelerator(recipe)
        self.prepared, self.optimizer = self.accelerator.prepare(stage.model, _optimizer(recipe, groups))
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        if isinstance(source, Batches) and self.accelerator.num_processes > 1:
            raise ValueError("a data loader serves one process: give several processes the data set itself")
        self.steps = steps_of(source, recipe)
        self.is_main: bool = self.accelerator.is_main_process

    def resume(self, journal: Journal) -> tuple[int, float, int]:
        """Load the checkpoint, if there is one; return the epochs done, their seconds, and the bytes of their log."""
        if not journal.checkpoint.exists():
            return 0, 0.0, 0
        facts = checkpoint.load(journal.checkpoint, self.prepared, self.optimizer.optimizer)
        return facts["epoch"], facts["seconds"], facts["log_bytes"]

    def save(self, journal: Journal, facts: dict[str, Any]) -> None:
        """Write the checkpoint of an epoch."""
        checkpoint.save(journal.checkpoint, self.prepared, self.optimizer.optimizer, facts, write=self.is_main)

    def epoch(self, epoch: int, observer: Observer) -> LogLine:
        """Go through all images once and return the beginning of the epoch's log line."""
        stage, recipe, total = self.stage, self.stage.recipe, self.stage.recipe.epochs * self.steps
        loss = torch.zeros((), dtype=torch.float64)
        terms: dict[str, Tensor | float] = {}
        self.prepared.train()
        steps = steps_in(
            self.source,
            recipe,
            generator=self._reseed(epoch),
            order=_generator(self.seed, stage.phase, epoch),
            process=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
        )
        done = first = epoch * self.steps
        for parts in steps:
            self._set_rates(done / total)
            loss += self._step(parts, terms)
            done += 1
            if stage.between is not None:
                stage.between(done, total)
            if self.is_main:
                observer.step(stage.name, done, total)
        if done - first != self.steps:
            raise ValueError(
                f"epoch {epoch + 1} brought {done - first} steps instead of {self.steps}: data has changed"
            )
        _refuse_divergence(stage, loss, epoch)
        decay = {"decay": _decay(self.optimizer.param_groups)}
        return {
            "phase": stage.phase,
            "epoch": epoch + 1,
            "epochs": recipe.epochs,
            "step": (epoch + 1) * self.steps,
            "loss": loss.item(),
            "loss_terms": {name: float(sum_) / self.steps for name, sum_ in terms.items()} | decay,
            **({"target": dict(stage.target)} if stage.target else {}),
        }

    def _step(self, parts: Iterator[Part], terms: dict[str, Tensor | float]) -> Tensor:
        """Take one step; add each term of its loss to `terms`, and return its share of the epoch's mean loss."""
        accelerator, recipe = self.accelerator, self.stage.recipe
        mean = torch.zeros((), dtype=torch.float64)
        for share, batch in parts:
            with accelerator.autocast():
                loss = self.task(self.prepared, moved(batch, accelerator.device))
            values = {"task": loss}
            for name, term in self.stage.terms.items():
                values[name] = term(self.stage.model)
                loss = loss + values[name]
            mean += loss.detach().cpu() * share / self.steps
            for name, value in values.items():
                terms[name] = terms.get(name, 0.0) + value.detach() * share
            accelerator.backward(loss * share)
        if recipe.clip_norm is not None:
            accelerator.clip_grad_norm_(self._clipped(), recipe.clip_norm)
        self.optimizer.step()
        after_step(self.stage.model)
        self.optimizer.zero_grad()
        return mean

    def _clipped(self) -> list[Tensor]:
        """Return what `clip_norm` is for: not the thresholds, whose gradients are sums over whole layers."""
        return [weight for group in self.optimizer.param_groups if "rho" not in group for weight in group["params"]]

    def _set_rates(self, progress: float) -> None:
        factor = self.stage.recipe.rate_factor(progress)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _reseed(self, epoch: int) -> torch.Generator:
        """Start the epoch's randomness: torch's global generator (dropout) and one of our own (augmentation)."""
        place = (self.stage.phase, epoch, self.accelerator.process_index)
        torch.manual_seed(zlib.crc32(repr((self.seed, *place, "global")).encode()))
        return _generator(self.seed, *place, "source")


def _accelerator(recipe: Recipe) -> Accelerator:
    try:
        from accelerate import Accelerator  # the train extra; heavy, so not before it is needed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("training needs accelerate: pip install 'secateur[train]'") from error
    return Accelerator(mixed_precision=recipe.precision, cpu=not torch.cuda.is_available())


def _optimizer(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, fused=True)
    return torch.optim.Adam(groups, fused=True)


@contextmanager
def _flushing_denormals() -> Iterator[None]:
    """Treat numbers too small to be normal as zero: arithmetic with them is many times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def keep_freed_memory() -> None:
    """Tell glibc to reuse large buffers instead of returning them to the system after every step.

    LeNet-5's sibling takes 3,000 page faults a step otherwise, a sixth of its time, and AlexNet's 38,000, a fifth.
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold, gibibyte = -1, -3, 1 << 30
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, gibibyte)
        libc.mallopt(mmap_threshold, gibibyte)


def _decay(groups: list[dict[str, Any]]) -> float:
    """Return L_wd = λ_wd·‖W‖², which the optimizer knows by its gradient only; a group's weight decay is 2·λ_wd."""
    total = 0.0
    for group in groups:
        for weight in group["params"] if group["weight_decay"] else ():
            # FSDP2 has sharded it: every process takes part in putting it together.
            whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            total += group["weight_decay"] / 2 * whole.detach().square().sum().item()
    return total


def _generator(seed: int, *place: object) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr((seed, *place)).encode()))


def _refuse_divergence(stage: Stage, loss: Tensor, epoch: int) -> None:
    where = f"in epoch {epoch + 1} of stage {stage.name}: lower the learning rate or rho"
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss became {loss.item()} {where}")
    for name, parameter in stage.model.named_parameters():  # the last step may break what no loss has seen yet
        if not torch.isfinite(parameter).all():
            raise FloatingPointError(f'"{name}" became NaN or infinite {where}')
