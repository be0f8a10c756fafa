"""What a run's directory holds, read with care: a missing or damaged file becomes a sentence, the rest is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors

from secateur.encode import FormatError, open_archive
from secateur.experiments.directory import RunDirectory
from secateur.experiments.reference import Reference, find_reference
from secateur.job import Job
from secateur.report.commands import command
from secateur.report.page.logs import DAMAGES, read_history
from secateur.report.page.run import Epoch, Layer, PageFile, Run
from secateur.results import AnswersResult, EvaluationResult, RunError, RunResult, SpeedResult, read

Kind = TypeVar("Kind")


def gather(directory: RunDirectory) -> Run:
    """Read a run; one of which nothing can be read is a RunError."""
    if not directory.path.is_dir():
        raise RunError(f"{directory.path} is not a directory: give the directory of a run")
    problems: list[str] = []
    result = _read(RunResult, directory.result, problems)
    settings, job = _settings(directory, result, problems)
    if settings is None:
        why = problems[0] if problems else f"there is no {directory.job.name} in it"
        raise RunError(f"{directory.path} is not the directory of a run: {why}")
    history = read_history(
        directory,
        problems,
        stages=[stage.name for stage in result.stages] if result else [],
        steps_each=_steps_each(job, result),
    )
    return Run(
        directory=directory,
        settings=settings,
        job=job,
        layers=_layers(result) if result else _layers_in_training(directory, history, problems),
        history=history,
        result=result,
        test=_read(EvaluationResult, directory.test, problems),
        answers=_read(AnswersResult, directory.answers, problems) if result else None,
        file=_file(directory, result, problems),
        speed=_read(SpeedResult, directory.speed, problems),
        reference=_reference(job, directory),
        problems=tuple(problems),
    )


def _read(kind: type[Kind], path: Path, problems: list[str]) -> Kind | None:
    """Return a typed result; None if the file does not exist, and None with a sentence if it is damaged."""
    try:
        return read(kind, path) if path.exists() else None
    except RunError as error:
        problems.append(f"{path.name} is damaged or of another version ({first_line(error.__cause__ or error)})")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except DAMAGES as error:
        problems.append(f"{path.name} is damaged or of another version ({first_line(error)})")
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, shortened."""
    text = str(error).strip().splitlines()
    return text[0][:100] if text else type(error).__name__


def _settings(
    directory: RunDirectory, result: RunResult | None, problems: list[str]
) -> tuple[Mapping[str, Any] | None, Job | None]:
    """Return a job's settings as written, and the job if this version can run it."""
    noted: list[str] = []
    job = _read(Job, directory.job, noted)
    if job is not None:
        return job.to_json(), job if _is_known(job) else None
    settings = _plain_settings(directory.job)
    if settings is not None:
        return settings, None  # of another version: shown as they are
    problems += noted
    if result is None:
        return None, None
    return result.job.to_json(), result.job if _is_known(result.job) else None


def _plain_settings(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content["network"], str) else None
    except (OSError, *DAMAGES):
        return None


def _is_known(job: Job) -> bool:
    """Return whether a command repeats the job, or Python does: its preset and its network may be unknown here."""
    try:
        return job.is_given or bool(command(job))
    except ValueError:
        return False


def _steps_each(job: Job | None, result: RunResult | None) -> int:
    """Return the steps of an epoch, for logs that do not have them; 0 if they are not known."""
    return math.ceil(result.training_images / job.recipe.batch_size) if job and result else 0


def _layers(result: RunResult) -> tuple[Layer, ...]:
    return tuple(
        Layer(
            name=layer.name,
            shape=layer.shape,
            weights=layer.weights,
            kept=layer.kept,
            thresholds=result.thresholds.get(layer.name, ()),
        )
        for layer in result.layers
    )


def _layers_in_training(directory: RunDirectory, history: tuple[Epoch, ...], problems: list[str]) -> tuple[Layer, ...]:
    """Return the layers of a run that is not finished: sizes from its checkpoints, the rest from its logs."""
    latest = next((epoch for epoch in reversed(history) if epoch.kept), None)
    if latest is None:
        return ()
    shapes: dict[str, tuple[int, ...]] = {}
    for stage in dict.fromkeys(epoch.stage for epoch in history):
        shapes |= _shapes(directory.journal(stage).checkpoint, problems)
    thresholds = next((epoch.thresholds for epoch in reversed(history) if epoch.thresholds), {})
    return tuple(
        Layer(
            name=name,
            shape=shapes[name],
            weights=math.prod(shapes[name]),
            kept=kept,
            thresholds=(thresholds[name],) if name in thresholds else (),
        )
        for name, kept in latest.kept.items()
        if name in shapes
    )


def _shapes(checkpoint: Path, problems: list[str]) -> dict[str, tuple[int, ...]]:
    try:
        with safetensors.safe_open(checkpoint, framework="pt") as file:
            keys = {name_in_model(key): key for key in file.keys()}  # noqa: SIM118  (not a dict)
            return {name: tuple(file.get_slice(key).get_shape()) for name, key in keys.items() if name}
    except FileNotFoundError:
        return {}
    except (safetensors.SafetensorError, OSError) as error:
        problems.append(f"{checkpoint.name} is damaged ({first_line(error)}): no sizes of layers")
        return {}


def name_in_model(key: str) -> str | None:
    """Return the name that a weight has in the plain model; None for any other key of a checkpoint."""
    kind, _, name = key.partition(":")
    if kind != "model":
        return None
    if ".parametrizations." not in f".{name}":
        return name
    return name.replace("parametrizations.", "").removesuffix(".original") if name.endswith(".original") else None


def _file(directory: RunDirectory, result: RunResult | None, problems: list[str]) -> PageFile | None:
    if result is None or result.file is None:
        return None
    if min(result.file.bytes, result.file.dense_bytes) <= 0:
        problems.append(f"{directory.result.name}: a file of {result.file.bytes:,} bytes is left out")
        return None
    tensor_bytes: dict[str, int] = {}
    try:
        with open_archive(directory.file) as archive:
            tensor_bytes = {record.name: record.length for record in archive.records if record.alias_of is None}
    except FileNotFoundError:
        problems.append(f"{directory.file.name} does not exist: no bytes per layer")
    except (FormatError, OSError) as error:
        problems.append(f"{directory.file.name} is damaged ({first_line(error)}): no bytes per layer")
    return PageFile(bytes=result.file.bytes, dense_bytes=result.file.dense_bytes, tensor_bytes=tensor_bytes)


def _reference(job: Job | None, directory: RunDirectory) -> Reference | None:
    try:
        return find_reference(job, directory) if job else None
    except (OSError, *DAMAGES):  # a preset or network that is unknown here, a file that is being replaced
        return None
