"""A complete small training loop for one stage, on Hugging Face Accelerate.

Everything random is drawn anew from (seed, phase, epoch) at the start of each epoch, or from the seed and the epoch of
the whole run. A checkpoint is written at its end, every ten minutes within it, and when the process is asked to end. A
run that is killed at any moment and resumed ends bit for bit as if it had never been killed.
"""

from __future__ import annotations

import math
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from secateur.memory import keep_freed_memory
from secateur.train import checkpoint
from secateur.train.journal import Journal
from secateur.train.objective import parameter_groups
from secateur.train.observers import LogLine, Observer, Silent
from secateur.train.parallel import (
    accelerator_of,
    from_all_processes,
    gather_,
    in_any_process,
    mean_over_processes,
    require_enough,
    restore_forward_,
    sharded,
    share_buffers_,
)
from secateur.train.progress import Progress
from secateur.train.recipe import Recipe
from secateur.train.source import Batches, Part, Source, steps_in, steps_of
from secateur.train.stage import Stage
from secateur.train.task import Task, moved
from secateur.train.termination import Termination, noticing_sigterm
from secateur.weights.function import after_step

_CHECKPOINT_SECONDS = 600  # between two checkpoints of a long epoch


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
    loss of a batch, without it the cross-entropy of pairs of inputs and labels. SIGTERM ends it with a
    KeyboardInterrupt once the step under way is done and a checkpoint is written.
    """
    with _flushing_denormals(), noticing_sigterm() as termination:
        training = _Training(stage, source, task or Task(), seed, journal, termination)
        observer = observer or Silent()
        training.resume()
        try:
            while training.progress.epoch < stage.recipe.epochs:
                line = training.epoch(observer)
                line |= measure(stage.model)
                _refuse_nan_error(stage, line, training.progress.epoch)
                if training.is_main:
                    journal.append(line)
                    observer.epoch(line)
                    observer.network(line, stage.model)
                training.end_epoch()
        finally:
            restore_forward_(stage.model)
        return training.progress.seconds


class _Training:
    """A stage under way: the prepared network, its optimizer, and the epochs over the images."""

    def __init__(
        self, stage: Stage, source: Source, task: Task, seed: int, journal: Journal, termination: Termination
    ) -> None:
        keep_freed_memory()
        recipe = stage.recipe
        self.stage, self.source, self.task = stage, source, task
        self.seed = seed + (1000 * stage.order if stage.first_epoch is None else 0)
        self.journal, self.termination = journal, termination
        self.accelerator = accelerator_of(recipe)
        self.process, self.processes = self.accelerator.process_index, self.accelerator.num_processes
        self.is_main: bool = self.accelerator.is_main_process
        if self.processes > 1:
            if isinstance(source, Batches):
                raise ValueError("a data loader serves one process: give several processes the data set itself")
            require_enough(len(source), recipe.batch_size, self.processes)
        # With FSDP2 a sharded copy is trained, and the stage's own network is filled from it after every epoch.
        self.is_sharded = recipe.shard and self.processes > 1
        if self.is_sharded and stage.between is not None:
            raise ValueError(f'stage "{stage.name}" changes whole tensors between steps: leave out --shard')
        self.network = sharded(stage.model, self.accelerator.device) if self.is_sharded else stage.model
        groups = parameter_groups(
            self.network,
            lr=recipe.lr,
            rho=stage.rho,
            lambda_wd=recipe.lambda_wd,
            decay_biases=recipe.decay_biases,
            bias_lr=recipe.bias_lr,
        )
        optimizer = _optimizer(recipe, groups, is_sharded=self.is_sharded)
        if self.is_sharded:
            self.prepared, self.optimizer = self.network, self.accelerator.prepare(optimizer)
        else:
            self.prepared, self.optimizer = self.accelerator.prepare(stage.model, optimizer)
        # torch's stubs: it returns a module for a module.
        self.called: nn.Module = torch.compile(self.prepared) if recipe.compile else self.prepared  # type: ignore[assignment]
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.steps = steps_of(source, recipe)
        self.progress, self.own, self.saved = Progress(), dict[str, Tensor](), time.perf_counter()

    def resume(self) -> None:
        """Load the checkpoint, if there is one, and remove the lines of the log that were written after it."""
        if self.journal.checkpoint.exists():
            facts, rows = checkpoint.load(self.journal.checkpoint, self.prepared, self.optimizer.optimizer)
            self.progress = Progress(**facts)
            is_same = all(len(each) == self.processes for each in rows.values())
            # Copies: torch reads a generator's state from the beginning of its memory, whichever row it is (2.13).
            self.own = {name: each[self.process].clone() for name, each in rows.items()} if is_same else {}
            if self.accelerator.scaler is not None and self.progress.scaler:
                self.accelerator.scaler.load_state_dict(self.progress.scaler)
            if self.is_sharded:
                gather_(self.network, self.stage.model)
        if self.is_main:
            self.journal.truncate(self.progress.log_bytes)
        self.saved = time.perf_counter()

    def end_epoch(self) -> None:
        """Write the checkpoint of an epoch."""
        self.progress.end_epoch()
        self.progress.log_bytes = self.journal.length
        self._save()
        self._end_if(in_any_process([self.termination.is_asked], self.accelerator.device)[0])

    def _save(self, by_process: dict[str, Tensor] | None = None) -> None:
        self.progress.seconds += time.perf_counter() - self.saved
        if self.accelerator.scaler is not None:
            self.progress.scaler = self.accelerator.scaler.state_dict()
        facts = self.progress.to_json()
        optimizer = self.optimizer.optimizer
        checkpoint.save(
            self.journal.checkpoint, self.prepared, optimizer, facts, by_process=by_process, write=self.is_main
        )
        self.saved = time.perf_counter()

    def _save_within_epoch(self, generator: torch.Generator) -> None:
        """Write a checkpoint if it is time, or if this or another process is asked to end, and end it then."""
        is_due = time.perf_counter() - self.saved > _CHECKPOINT_SECONDS
        is_asked, is_due = in_any_process([self.termination.is_asked, is_due], self.accelerator.device)
        if is_asked or is_due:
            own = _random_states(generator) | {"sums": self.progress.sums}
            self._save({name: from_all_processes(value, self.accelerator) for name, value in own.items()})
        self._end_if(is_asked)

    def _end_if(self, is_asked: bool) -> None:
        if is_asked:
            raise KeyboardInterrupt(signal.SIGTERM)

    def epoch(self, observer: Observer) -> LogLine:
        """Go through all images once, or through those that are left, and return the beginning of the log line."""
        stage, recipe, progress = self.stage, self.stage.recipe, self.progress
        total, before = recipe.epochs * self.steps, progress.epoch * self.steps
        self.prepared.train()
        generator = self._reseed(*self._place(progress.epoch))
        steps = steps_in(
            self.source,
            recipe,
            generator=generator,
            order=_generator(self.seed, *self._place(progress.epoch)),
            process=self.process,
            processes=self.processes,
            first=progress.step,
        )
        if progress.step:
            self._restore(generator)
        for parts in steps:
            self._set_rates((before + progress.step) / total)
            progress.loss += self._step(parts)
            progress.step += 1
            if stage.between is not None:
                stage.between(before + progress.step, total)
            if self.is_main:
                observer.step(stage.name, before + progress.step, total)
            self._save_within_epoch(generator)  # after the last step, too: what follows it may take minutes
        if progress.step != self.steps:
            raise ValueError(
                f"epoch {progress.epoch + 1} brought {progress.step} steps instead of {self.steps}: data has changed"
            )
        share_buffers_(self.network)
        if self.is_sharded:
            gather_(self.network, stage.model)
        means = [progress.loss, *(float(sum_) / self.steps for sum_ in progress.terms.values())]
        loss, *terms = mean_over_processes(means, self.accelerator.device)
        _refuse_divergence(stage, loss, progress.epoch)
        decay = {"decay": _decay(self.optimizer.param_groups)}
        return {
            "phase": stage.phase,
            "epoch": progress.epoch + 1,
            "epochs": recipe.epochs,
            "step": before + self.steps,
            "loss": loss,
            "loss_terms": dict(zip(progress.terms, terms, strict=True)) | decay,
            **({"target": dict(stage.target)} if stage.target else {}),
        }

    def _step(self, parts: Iterator[Part]) -> float:
        """Take one step; add up the terms of its loss, and return its share of the epoch's mean loss."""
        accelerator, recipe, terms = self.accelerator, self.stage.recipe, self.progress.terms
        mean = torch.zeros((), dtype=torch.float64)
        for number, (share, batch) in enumerate(parts, start=1):
            is_last = self.processes == 1 or number == recipe.accumulate  # before it, gradients stay in their process
            with nullcontext() if is_last else accelerator.no_sync(self.prepared):
                with accelerator.autocast():
                    loss = self.task(self.called, moved(batch, accelerator.device))
                values = {"task": loss}
                for name, term in self.stage.terms.items():
                    values[name] = term(self.network)
                    loss = loss + values[name]
                mean += loss.detach().cpu() * share / self.steps
                for name, value in values.items():
                    terms[name] = terms.get(name, 0.0) + value.detach() * share
                accelerator.backward(loss * share)
        if recipe.clip_norm is not None:
            accelerator.clip_grad_norm_(self._clipped(), recipe.clip_norm)
        self.optimizer.step()
        after_step(self.network)
        self.optimizer.zero_grad()
        return mean.item()

    def _clipped(self) -> list[Tensor]:
        """Return what `clip_norm` is for: not the thresholds, whose gradients are sums over whole layers."""
        return [weight for group in self.optimizer.param_groups if "rho" not in group for weight in group["params"]]

    def _set_rates(self, progress: float) -> None:
        factor = self.stage.recipe.rate_factor(progress)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _place(self, epoch: int) -> tuple[object, ...]:
        """Return what, next to the seed, the randomness of an epoch is drawn from."""
        first = self.stage.first_epoch
        return (self.stage.phase, epoch) if first is None else ("train", first + epoch)

    def _reseed(self, *place: object) -> torch.Generator:
        """Start the randomness of an epoch: torch's global generator (dropout) and one of our own (augmentation)."""
        place = (*place, self.process)
        torch.manual_seed(zlib.crc32(repr((self.seed, *place, "global")).encode()))
        return _generator(self.seed, *place, "source")

    def _restore(self, generator: torch.Generator) -> None:
        """Go on with what this process had in the middle of an epoch; another number of processes draws anew."""
        if self.own:
            _set_random_states(generator, self.own)
            self.progress.sums = self.own["sums"]
        else:
            place = (*self._place(self.progress.epoch), self.progress.step)
            generator.set_state(self._reseed(*place).get_state())


def _random_states(generator: torch.Generator) -> dict[str, Tensor]:
    states = {"global": torch.get_rng_state(), "source": generator.get_state()}
    return states | ({"device": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _set_random_states(generator: torch.Generator, states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["global"])
    generator.set_state(states["source"])
    if torch.cuda.is_available() and "device" in states:
        torch.cuda.set_rng_state(states["device"])


def _optimizer(recipe: Recipe, groups: list[dict[str, Any]], *, is_sharded: bool) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe, fused where torch's fused one can be used.

    It takes no shards. Where fp16 overflows it leaves gradients scaled, and if the first step does, momentum begins
    with whatever is in memory (torch 2.13).
    """
    is_fused = not is_sharded and recipe.precision != "fp16"
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, nesterov=recipe.nesterov, fused=is_fused)
    return torch.optim.Adam(groups, fused=is_fused)


@contextmanager
def _flushing_denormals() -> Iterator[None]:
    """Treat numbers too small to be normal as zero: arithmetic with them is many times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


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


def _refuse_nan_error(stage: Stage, line: LogLine, epoch: int) -> None:
    if math.isnan(line.get("error", 0.0)):
        where = f"after epoch {epoch + 1} of stage {stage.name}"
        raise FloatingPointError(f"the error on validation data is NaN {where}: check how it is measured")


def _refuse_divergence(stage: Stage, loss: float, epoch: int) -> None:
    where = f"in epoch {epoch + 1} of stage {stage.name}: lower the learning rate or rho"
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss became {loss} {where}")
    for name, parameter in stage.model.named_parameters():  # the last step may break what no loss has seen yet
        if not torch.isfinite(parameter).all():
            raise FloatingPointError(f'"{name}" became NaN or infinite {where}')
