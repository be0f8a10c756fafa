"""How a network is optimised, whichever method shrinks it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from typing_extensions import Doc

from secateur.nearest import require_choices

_ROUNDING = 1e-9  # so that the first step of an epoch belongs to it


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Optimizer, schedule and weight decay of a stage of training; the defaults are the paper's for MNIST."""

    epochs: Annotated[int, Doc("passes over the training images")] = 52
    batch_size: Annotated[int, Doc("images per step, over all processes")] = 128
    optimizer: Annotated[Literal["adam", "sgd"], Doc("sgd has momentum 0.9")] = "adam"
    nesterov: Annotated[bool, Doc("Nesterov's form of momentum, for sgd")] = False
    lr: Annotated[float, Doc("learning rate of the weights")] = 1e-3
    bias_lr: Annotated[float, Doc("learning rate of biases ÷ that of the weights")] = 1.0
    schedule: Annotated[Literal["constant", "cosine", "step"], Doc("how learning rates develop during each stage")] = (
        "constant"
    )
    step_epochs: Annotated[int, Doc("epochs between two steps of the schedule step")] = 20
    step_factor: Annotated[float, Doc("what each of these steps multiplies learning rates by")] = 0.1
    warmup: Annotated[float, Doc("share of each stage in which learning rates rise from zero")] = 0.0
    lambda_wd: Annotated[float, Doc("λ_wd, the weight of ‖W‖²")] = 1e-4
    decay_biases: Annotated[bool, Doc("let λ_wd act on biases too")] = False
    clip_norm: Annotated[float | None, Doc("clip the gradient of the weights to this norm")] = None
    accumulate: Annotated[int, Doc("micro-batches per step")] = 1
    precision: Annotated[Literal["no", "bf16", "fp16"], Doc("mixed precision by autocast")] = "no"
    compile: Annotated[bool, Doc("train through torch.compile, whose first steps take a minute")] = False
    shard: Annotated[bool, Doc("shard the network over the processes of torchrun (FSDP2) instead of copying it")] = (
        False
    )

    def __post_init__(self) -> None:
        require_choices(
            self,
            optimizer=("adam", "sgd"),
            schedule=("constant", "cosine", "step"),
            precision=("no", "bf16", "fp16"),
        )
        require_not_negative(lr=self.lr, bias_lr=self.bias_lr, lambda_wd=self.lambda_wd, step_factor=self.step_factor)
        require_share(warmup=self.warmup)
        require_whole(epochs=self.epochs)
        require_whole(least=1, batch_size=self.batch_size, accumulate=self.accumulate, step_epochs=self.step_epochs)
        if self.nesterov and self.optimizer != "sgd":
            raise ValueError(f'nesterov is a form of momentum, which sgd has and {self.optimizer} has not: use "sgd"')
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(f"clip_norm must be positive and finite, or None, got {self.clip_norm}")

    def rate_factor(self, progress: float) -> float:
        """Return the share of the learning rate that steps take after this share of them."""
        if progress < self.warmup:
            return progress / self.warmup
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup)))
        if self.schedule == "step":
            return float(self.step_factor ** int(progress * self.epochs / self.step_epochs + _ROUNDING))
        return 1.0

    def split(self, share: float) -> tuple[Recipe, Recipe]:
        """Return this recipe for two stages, of which the second has a share of the epochs."""
        second = round(share * self.epochs)
        return replace(self, epochs=self.epochs - second), replace(self, epochs=second)

    def steps(self, training_images: int) -> int:
        """Return the number of optimizer steps that all epochs take together."""
        return self.epochs * math.ceil(training_images / self.batch_size)


def require_not_negative(**settings: float) -> None:
    """Raise a ValueError that names the first setting that is negative, infinite or NaN."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be ≥ 0 and finite, got {value}")


def require_share(**settings: float) -> None:
    """Raise a ValueError that names the first setting that is not at least 0 and below 1."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def require_whole(*, least: int = 0, **settings: int) -> None:
    """Raise a ValueError that names the first setting that is not an integer of at least `least`."""
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number ≥ {least}, got {value}")
