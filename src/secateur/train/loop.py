"""A complete small training loop for networks and data that fit in memory, on Hugging Face Accelerate.

Everything random is drawn anew from (seed, phase, epoch) at the start of each epoch and a checkpoint is written at
its end, so a run that is killed at any moment and resumed ends bit for bit as if it had never been killed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Doc

from secateur.nearest import require_choices
from secateur.threshold import learned_thresholds
from secateur.train import checkpoint
from secateur.train.objective import parameter_groups, penalty

Phase: TypeAlias = Literal["train", "fine-tune", "quantize"]  # the last two come after the cut
Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a network is trained, cut and fine-tuned; the defaults are the paper's for MNIST."""

    epochs: Annotated[int, Doc("passes over the training images before the cut")] = 52
    fine_tune_epochs: Annotated[int, Doc("passes after the cut, with every zero kept (0: none, the paper)")] = 0
    batch_size: Annotated[int, Doc("images per step, over all processes")] = 128
    optimizer: Annotated[Literal["adam", "sgd"], Doc("sgd has momentum 0.9")] = "adam"
    lr: Annotated[float, Doc("learning rate of the weights")] = 1e-3
    fine_tune_lr: Annotated[float, Doc("learning rate after the cut")] = 1e-3
    schedule: Annotated[Literal["constant", "cosine"], Doc("how the learning rates go on, in both phases")] = "constant"
    rho: Annotated[float, Doc("ρ, the thresholds' learning rate ÷ the weights'")] = 1e-2
    lambda_t: Annotated[float, Doc("λ_t, the weight of Σ|θ(W; t)|, which drives the thresholds")] = 1e-2
    lambda_wd: Annotated[float, Doc("λ_wd, the weight of ‖W‖²")] = 1e-4
    decay_biases: Annotated[bool, Doc("let λ_wd act on biases too")] = False
    cutoff: Annotated[float, Doc("γ, weights with |θ(w)| below it are cut")] = 1e-3
    input_dropout: Annotated[float, Doc("share of input pixels set to zero in training")] = 0.0
    augment: Annotated[float, Doc("share of training images replaced by a distorted copy")] = 0.0
    scaling: Annotated[Literal["unit", "standard"], Doc("pixels in 0…1, or of mean 0 and deviation 1")] = "unit"
    clip_norm: Annotated[float | None, Doc("clip the gradient of the weights to this norm")] = None
    accumulate: Annotated[int, Doc("micro-batches per step")] = 1
    precision: Annotated[Literal["no", "bf16", "fp16"], Doc("mixed precision by autocast")] = "no"

    def __post_init__(self) -> None:
        require_choices(
            self,
            optimizer=("adam", "sgd"),
            schedule=("constant", "cosine"),
            scaling=("unit", "standard"),
            precision=("no", "bf16", "fp16"),
        )
        for name in ("lr", "fine_tune_lr", "rho", "lambda_t", "lambda_wd", "cutoff"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be ≥ 0 and finite, got {value}")
        for name, least in (("epochs", 0), ("fine_tune_epochs", 0), ("batch_size", 1), ("accumulate", 1)):
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                raise ValueError(f"{name} must be a whole number ≥ {least}, got {number}")
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(f"clip_norm must be positive and finite, or None, got {self.clip_norm}")
        for name in ("input_dropout", "augment"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")


class Source(Protocol):
    """Where batches come from: indices in, inputs and labels out, all randomness from the generator."""

    def __len__(self) -> int:
        """Return the number of images in an epoch."""
        ...

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and labels."""
        ...


class Observer(Protocol):
    """Who watches: told after every step and after every epoch."""

    def step(self, phase: Phase, done: int, total: int) -> None:
        """Take note that `done` of the phase's `total` steps are done."""
        ...

    def epoch(self, record: Record) -> None:
        """Take note of an epoch's log line."""
        ...

    def network(self, record: Record, model: nn.Module) -> None:
        """Look at the network after an epoch, without touching it."""
        ...


class Silent:
    """An observer that says nothing."""

    def step(self, phase: Phase, done: int, total: int) -> None:
        """Ignore a step."""

    def epoch(self, record: Record) -> None:
        """Ignore an epoch."""

    def network(self, record: Record, model: nn.Module) -> None:
        """Ignore the network."""


@dataclass(frozen=True)
class Observers:
    """Several observers in the place of one."""

    each: tuple[Observer, ...]

    def step(self, phase: Phase, done: int, total: int) -> None:
        """Tell all of them of a step."""
        for observer in self.each:
            observer.step(phase, done, total)

    def epoch(self, record: Record) -> None:
        """Tell all of them of an epoch."""
        for observer in self.each:
            observer.epoch(record)

    def network(self, record: Record, model: nn.Module) -> None:
        """Show all of them the network."""
        for observer in self.each:
            observer.network(record, model)


@dataclass(frozen=True, kw_only=True)
class Journal:
    """Where a phase keeps its checkpoint and its log."""

    checkpoint: Path
    log: Path


@contextmanager
def _flushing_denormals() -> Iterator[None]:
    """Count numbers too small to be normal as zero: arithmetic with them is many times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@_flushing_denormals()
def fit(
    model: nn.Module,
    source: Source,
    config: TrainConfig,
    *,
    phase: Phase,
    seed: int,
    measure: Callable[[nn.Module], Record],
    journal: Journal,
    observer: Observer | None = None,
    cost: Callable[[nn.Module], Tensor] | None = None,
) -> float:
    """Train `model` in place through one phase, from its last checkpoint if there is one; return the seconds spent.

    `measure` is asked once per epoch, on the model as it then is, and its answer goes into the log. `cost` is added to
    the loss of every step, as a rate term is.
    """
    try:
        from accelerate import Accelerator  # the train extra; heavy, so not before it is needed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("training needs accelerate: pip install 'secateur[train]'") from error

    _keep_freed_memory()
    observer = observer or Silent()
    epochs, lr = (config.epochs, config.lr) if phase == "train" else (config.fine_tune_epochs, config.fine_tune_lr)
    groups = parameter_groups(
        model, lr=lr, rho=config.rho, lambda_wd=config.lambda_wd, decay_biases=config.decay_biases
    )
    accelerator = Accelerator(mixed_precision=config.precision, cpu=not torch.cuda.is_available())
    prepared, optimizer = accelerator.prepare(model, _optimizer(config, groups))
    rates = [group["lr"] for group in optimizer.param_groups]
    steps = math.ceil(len(source) / config.batch_size)
    has_thresholds = bool(learned_thresholds(model))
    # Not the thresholds': theirs are sums over whole layers, beside which the weights' would be clipped to nothing.
    thresholds = {id(function.threshold) for function in learned_thresholds(model).values()}
    clipped = [parameter for parameter in prepared.parameters() if id(parameter) not in thresholds]
    facts: dict[str, Any] = {"epoch": 0, "seconds": 0.0, "log_bytes": 0}
    if journal.checkpoint.exists():
        facts = checkpoint.load(journal.checkpoint, prepared, optimizer.optimizer)
    done, seconds = facts["epoch"], facts["seconds"]
    if accelerator.is_main_process:
        _truncate(journal.log, facts["log_bytes"])
    for epoch in range(done, epochs):
        started = time.perf_counter()
        generator = _reseed(seed, phase, epoch, accelerator.process_index)
        losses = torch.zeros((), dtype=torch.float64)
        terms: dict[str, Tensor | float] = {}
        prepared.train()
        order = torch.randperm(len(source), generator=_generator(seed, phase, epoch))
        for step, indices in enumerate(order.split(config.batch_size)):
            factor = _rate_factor(config.schedule, (epoch * steps + step) / (epochs * steps))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            processes = accelerator.num_processes
            for part in indices[accelerator.process_index :: processes].tensor_split(config.accumulate):
                # Gradients are averaged over processes. One without images takes part with one that counts nothing.
                share = len(part) * processes / len(indices)
                inputs, labels = source.batch(part if len(part) else indices[:1], generator)
                inputs, labels = inputs.to(accelerator.device), labels.to(accelerator.device)
                if config.input_dropout:
                    inputs = functional.dropout(inputs, config.input_dropout)
                with accelerator.autocast():
                    loss = functional.cross_entropy(prepared(inputs), labels)
                parts = {"task": loss}
                if has_thresholds:
                    parts["thresholds"] = penalty(model, config.lambda_t)
                    loss = loss + parts["thresholds"]
                if cost is not None:
                    parts["rate"] = cost(model)
                    loss = loss + parts["rate"]
                losses += loss.detach().cpu() * share / steps
                for name, term in parts.items():
                    terms[name] = terms.get(name, 0.0) + term.detach() * share
                accelerator.backward(loss * share)
            if config.clip_norm is not None:
                accelerator.clip_grad_norm_(clipped, config.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.is_main_process:
                observer.step(phase, epoch * steps + step + 1, epochs * steps)
        _refuse_divergence(model, losses, phase, epoch)
        record = {
            "phase": phase,
            "epoch": epoch + 1,
            "epochs": epochs,
            "step": (epoch + 1) * steps,
            "loss": losses.item(),
            "loss_terms": {name: float(sum_) / steps for name, sum_ in terms.items()}
            | {"decay": _decay(optimizer.param_groups)},
            **measure(model),
        }
        seconds += time.perf_counter() - started
        if accelerator.is_main_process:
            _append(journal.log, record)
            observer.epoch(record)
            observer.network(record, model)
        facts = {"epoch": epoch + 1, "seconds": seconds, "log_bytes": _length(journal.log)}
        checkpoint.save(journal.checkpoint, prepared, optimizer.optimizer, facts, write=accelerator.is_main_process)
    for function in learned_thresholds(model).values():
        function.project_()
    return float(seconds)


def is_main_process() -> bool:
    """Whether this process is the one that writes and prints: of several that torchrun started, the first."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_all() -> None:
    """Wait until every process that torchrun started is here: what the first has written is there for the others."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _keep_freed_memory() -> None:
    """Tell glibc to reuse large buffers instead of giving them back to the system after every step.

    LeNet-5's sibling takes 3,000 page faults a step otherwise, a sixth of its time.
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold, gibibyte = -1, -3, 1 << 30
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, gibibyte)
        libc.mallopt(mmap_threshold, gibibyte)


def _optimizer(config: TrainConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, fused=True)
    return torch.optim.Adam(groups, fused=True)


def _decay(groups: list[dict[str, Any]]) -> float:
    """Return L_wd = λ_wd·‖W‖², which the optimizer knows by its gradient only; a group's weight decay is 2·λ_wd."""
    total = 0.0
    for group in groups:
        for weight in group["params"] if group["weight_decay"] else ():
            # FSDP2 has sharded it: every process takes part in putting it together.
            whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            total += group["weight_decay"] / 2 * whole.detach().square().sum().item()
    return total


def _rate_factor(schedule: str, progress: float) -> float:
    """Return the share of the learning rate that is left after this share of the steps."""
    return 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1.0


def _generator(seed: int, *place: object) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr((seed, *place)).encode()))


def _reseed(seed: int, phase: Phase, epoch: int, process: int) -> torch.Generator:
    """Start the epoch's randomness: torch's global generator (dropout) and one of our own (augmentation)."""
    torch.manual_seed(zlib.crc32(repr((seed, phase, epoch, process, "global")).encode()))
    return _generator(seed, phase, epoch, process, "source")


def _refuse_divergence(model: nn.Module, losses: Tensor, phase: Phase, epoch: int) -> None:
    where = f"in epoch {epoch + 1} of phase {phase}: lower the learning rate or rho"
    if not torch.isfinite(losses):
        raise FloatingPointError(f"the loss became {losses.item()} {where}")
    for name, parameter in model.named_parameters():  # the last step may break what no loss has seen yet
        if not torch.isfinite(parameter).all():
            raise FloatingPointError(f'"{name}" became NaN or infinite {where}')


def _append(log: Path, record: Record) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            # JSON has no infinity, which the ratio is where nothing would be left.
            finite = {name: None if value == math.inf else value for name, value in record.items()}
            file.write(json.dumps(finite, allow_nan=False) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(log)) from error


def _length(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _truncate(log: Path, length: int) -> None:
    """Forget lines written after the checkpoint: their epoch is about to be repeated."""
    if _length(log) > length:
        with log.open("r+b") as file:
            file.truncate(length)


def read_log(log: Path) -> Iterator[Record]:
    """Yield the records of a log."""
    with log.open() as file:
        for line in file:
            record = json.loads(line)
            yield {name: math.inf if name == "ratio" and value is None else value for name, value in record.items()}
