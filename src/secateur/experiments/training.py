"""Trains one stage, and measures its network after every epoch and at the end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from secateur.experiments.directory import RunDirectory
from secateur.experiments.workload import Workload
from secateur.functions.quantizer import Quantizer
from secateur.functions.scored import ScoredFunction
from secateur.functions.solved_threshold import solved_thresholds
from secateur.functions.threshold import LearnedThreshold, learned_thresholds
from secateur.measure import count
from secateur.quantize import coded_bits
from secateur.results import ERROR, StageResult
from secateur.train.loop import fit
from secateur.train.observers import LogLine, Observer
from secateur.train.source import steps_of
from secateur.train.stage import Stage
from secateur.weights.reading import copied, settle_


def measure_progress(model: nn.Module, error: Callable[[nn.Module], float], measure: str = ERROR) -> LogLine:
    """Measure a network during training; one with thresholds or scores is measured as if it were cut now.

    `measure` is what `error` returns; the line says so if that is no percentage of wrong answers.
    """
    functions = learned_thresholds(model)
    is_scored = any(isinstance(module, ScoredFunction) for module in model.modules())
    plain = _cut_now(model) if functions or is_scored else model
    totals = count(plain)
    line: LogLine = {"error": error(plain), "ratio": totals.prunable.ratio, "kept": totals.prunable.kept}
    if measure != ERROR:
        line["measure"] = measure
    if functions:
        # A threshold that is not soft reads what is kept, so that the cut changes no answer.
        is_changed = any(function.is_soft for function in functions.values())
        line["sibling_error"] = error(model) if is_changed else line["error"]
        line["thresholds"] = {name: function.threshold.mean().item() for name, function in functions.items()}
    line["kept_per_layer"] = {tensor.name: tensor.kept for tensor in totals.prunable.tensors}
    if any(isinstance(module, Quantizer) for module in model.modules()):
        with torch.no_grad():
            # As far as real files are smaller or larger than estimated, for a method that compares them.
            factor = next((float(each.calibration) for each in solved_thresholds(model).values()), 1.0)
            line["coded_bytes"] = coded_bits(model).item() / 8 * factor
    return line


def _cut_now(model: nn.Module) -> nn.Module:
    """Return a plain copy of a network with thresholds or scores; a layer may lose all of its weights here."""
    plain = copied(model)
    for module in plain.modules():
        if isinstance(module, LearnedThreshold | ScoredFunction):
            module.allow_empty = True
    settle_(plain)
    return plain


def train_stage(
    stage: Stage, workload: Workload, directory: RunDirectory, seed: int, observer: Observer | None = None
) -> StageResult:
    """Train a stage, from its checkpoint if it has one, and return its cost and its errors."""

    def error(model: nn.Module) -> float:
        return workload.evaluate(model).error

    before = error(stage.model)
    seconds = fit(
        stage,
        workload.training,
        seed=seed,
        measure=lambda model: measure_progress(model, error, workload.measure) | workload.faults,
        journal=directory.journal(stage.name),
        observer=observer,
        task=workload.task,
    )
    return StageResult(
        name=stage.name,
        epochs=stage.recipe.epochs,
        steps=stage.recipe.epochs * steps_of(workload.training, stage.recipe),
        seconds=seconds,
        error_before=before,
        error=error(stage.model),
        kept=count(stage.model).prunable.kept,
    )
