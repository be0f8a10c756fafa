"""Runs made of dataclasses, without training: what a finished run of any method leaves in its directory."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

import secateur
from secateur.experiments.directory import RunDirectory
from secateur.experiments.presets import run_name
from secateur.job import Job
from secateur.methods import Manessi2018
from secateur.results import (
    EvaluationResult,
    FileResult,
    HistoryPoint,
    LayerResult,
    PublishedRun,
    RunResult,
    SpeedResult,
    StageResult,
    write,
)
from secateur.train.recipe import Recipe

JOB = Job(network="lenet-300-100", data="digits", methods=(Manessi2018(rho=0.3),), recipe=Recipe(epochs=2))
SHAPES = {"fc1.weight": (300, 784), "fc2.weight": (100, 300), "fc3.weight": (10, 100)}
STEPS = 10  # of an epoch


def made_result(
    job: Job = JOB,
    *,
    errors: Mapping[str, float] | None = None,
    stages: Sequence[str] = ("train",),
    share: float = 0.05,
    thresholds: Mapping[str, tuple[float, ...]] | None = None,
    file: FileResult | None = None,
) -> RunResult:
    """Return the result of a run that keeps a share of every layer's weights."""
    layers = tuple(
        LayerResult(name=name, shape=shape, weights=math.prod(shape), kept=round(share * math.prod(shape)))
        for name, shape in SHAPES.items()
    )
    weights, kept = sum(layer.weights for layer in layers), sum(layer.kept for layer in layers)
    return RunResult(
        job=job,
        errors=errors or {"pruned": 2.0, "file": 2.0},
        weights=weights,
        kept=kept,
        layers=layers,
        thresholds=thresholds or {},
        parameters=weights + 410,
        parameters_kept=kept + 410,
        stages=tuple(
            StageResult(name=name, epochs=2, steps=2 * STEPS, seconds=1.5, error_before=3.0, error=2.0, kept=kept)
            for name in stages
        ),
        file=file or FileResult(bytes=20_000, dense_bytes=4 * (weights + 410)),
        training_images=1200,
        validation_images=300,
        versions={"torch": "2.0"},
    )


def made_line(phase: str, epoch: int, **more: object) -> dict[str, object]:
    """Return a line of a log as every stage has it, whatever its method."""
    return {
        "phase": phase,
        "epoch": epoch,
        "epochs": 2,
        "step": epoch * STEPS,
        "loss": 1.0 / epoch,
        "loss_terms": {"task": 1.0 / epoch, "decay": 0.1},
        "error": 4.0 / epoch,
        "ratio": 2.0 * epoch,
        "kept": 13_310,
        "kept_per_layer": {name: round(0.05 * math.prod(shape)) for name, shape in SHAPES.items()},
        **more,
    }


def write_made_run(
    root: Path,
    result: RunResult,
    *,
    phases: Mapping[str, str] | None = None,
    test: EvaluationResult | None = None,
    speed: SpeedResult | None = None,
) -> RunDirectory:
    """Write what a finished run leaves; `phases` gives the phase of every stage by its name."""
    directory = RunDirectory(root / run_name(result.job))
    directory.path.mkdir(parents=True)
    write(directory.job, result.job)
    network = nn.ModuleDict()
    generator = torch.Generator().manual_seed(0)
    for layer in result.layers:
        weight = torch.zeros(layer.weights)
        weight[: layer.kept] = torch.randn(layer.kept, generator=generator)
        network[layer.name.removesuffix(".weight")] = one = nn.Module()
        one.weight = nn.Parameter(weight.reshape(layer.shape))
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    safetensors.torch.save_file(state, directory.model)
    secateur.save(network, directory.file, codec="rans")
    for name, phase in (phases or {stage.name: "train" for stage in result.stages}).items():
        journal = directory.journal(name)
        journal.log.write_text("".join(json.dumps(made_line(phase, epoch)) + "\n" for epoch in (1, 2)))
        safetensors.torch.save_file({f"model:{key}": value for key, value in state.items()}, journal.checkpoint)
    write(directory.result, result)
    for path, content in ((directory.test, test), (directory.speed, speed)):
        if content is not None:
            write(path, content)
    return directory


def publish(
    results: Path,
    job: Job,
    *,
    test: Mapping[str, float],
    place: Mapping[str, str] | None = None,
    history: tuple[HistoryPoint, ...] = (),
    **more: object,
) -> Path:
    """Publish a run of one seed, with these test errors; `place` is the study and the variant it belongs to."""
    from secateur.experiments.studies.published import result_path

    result = made_result(job, **more)
    content = PublishedRun(result=result, test=EvaluationResult(errors=test, images=10_000), history=history)
    path = result_path(results, job, **(place or {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, content)
