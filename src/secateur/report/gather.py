"""What a run's directory says, read with care: what is missing or damaged becomes a sentence, the rest is kept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors

from secateur.encode import FormatError, open_archive
from secateur.experiments.compress import Compression
from secateur.experiments.job import Job, dense_job
from secateur.experiments.rundir import RunDirectory, RunError
from secateur.report.commands import command
from secateur.report.facts import Dense, Epoch, Error, Layer, PackedFile, Run, Speed
from secateur.train.loop import Phase

Found = TypeVar("Found")

# What a file that is damaged, or that another program wrote, may raise when it is taken for ours.
_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def gather(directory: RunDirectory) -> Run:
    """Read a run; one of which nothing can be read is a RunError."""
    if not directory.path.is_dir():
        raise RunError(f"{directory.path} is not a directory: give the directory of a run")
    reader = _Reader()
    outcome = reader.parse(directory.result, _outcome)
    settings = reader.parse(directory.job, _settings) or (outcome.settings if outcome else None)
    history, counts_steps = _history(reader, directory, settings, outcome)
    if settings is None:
        why = reader.problems[0] if reader.problems else f"there is no {directory.job.name} in it"
        raise RunError(f"{directory.path} is not the directory of a run: {why}")
    test = reader.parse(directory.test, _test)
    layers = outcome.layers if outcome else _layers_in_training(reader, directory, history)
    errors: list[Error] = [test] if test else []
    if outcome is not None:
        errors.append(Error(percent=outcome.forms["final"], images="validation", count=outcome.validation_images))
    elif history:
        errors.append(Error(percent=history[-1].error, images="validation"))
    job = _job(settings)
    files, speed = _files(reader, directory), reader.parse(directory.speed, _speed)
    return Run(
        directory=directory,
        settings=settings,
        job=job,
        state=_state(settings, outcome, history, directory),
        problems=tuple(reader.problems),
        layers=layers,
        history=history,
        counts_steps=counts_steps,
        errors=tuple(errors),
        forms=test.forms if test else outcome.forms if outcome else {},
        parameters=outcome.parameters if outcome else sum(layer.weights for layer in layers),
        parameters_kept=outcome.parameters_kept if outcome else sum(layer.kept for layer in layers),
        files=files,
        speed=speed,
        dense=_dense(job, directory) if job else None,
        seconds=outcome.seconds if outcome else {},
        facts=outcome.facts if outcome else {},
    )


class _Reader:
    """Reads files and notes down, in a sentence each, what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def parse(self, path: Path, parse: Callable[[Any], Found]) -> Found | None:
        """Return what `parse` makes of a JSON file; None, and a note, if it is damaged; None if it is not there."""
        try:
            return parse(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"{_place(path)} cannot be read: {error.strerror}")
        except _DAMAGES as error:
            self.problems.append(f"{_place(path)} is damaged or of another version ({_what(error)})")
        return None

    def log(self, path: Path) -> list[dict[str, Any]]:
        """Return the records of a log; a line that is damaged is left out."""
        records, lost = [], 0
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        record = json.loads(line)
                        lost += not isinstance(record, dict)
                        records += [record] if isinstance(record, dict) else []
                    except _DAMAGES:
                        lost += 1
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problems.append(f"{_place(path)} cannot be read: {error.strerror}")
        if lost:
            self.problems.append(f"{_place(path)}: {lost} damaged line{'s' if lost > 1 else ''} left out")
        return records


def _place(path: Path) -> str:
    """Name a file of a run, with the directory of a compression where it lies in one."""
    return f"{path.parent.name}/{path.name}" if path.parent.name.startswith("compressed") else path.name


def _what(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    said = text[0][:100] if text else type(error).__name__
    return f"no {said}" if isinstance(error, KeyError) else said


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    settings: Mapping[str, Any]
    layers: tuple[Layer, ...]
    forms: Mapping[str, float]
    validation_images: int
    training_images: int
    parameters: int
    parameters_kept: int
    seconds: Mapping[str, float]
    facts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Test(Error):
    forms: Mapping[str, float]


def _settings(content: Any) -> dict[str, Any]:
    if not isinstance(content["network"], str):
        raise TypeError(f"the network is {content['network']!r}, not a name")
    return _plain(content)


def _plain(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"an object is expected, not {type(content).__name__}")
    return content


def _outcome(content: Any) -> _Outcome:
    thresholds = {
        str(name): tuple(map(float, values)) for name, values in _plain(content.get("thresholds", {})).items()
    }
    facts = {name: str(value) for name, value in _plain(content.get("versions", {})).items()}
    training_images = _count(content.get("training_images", 0))
    if training_images:
        facts["training images"] = f"{training_images:,}"
    if "threads" in content:
        facts["threads"] = str(content["threads"])
    return _Outcome(
        settings=_settings(content["job"]),
        layers=tuple(_layer(layer, thresholds) for layer in content["layers"]),
        forms=_numbers(content["validation"]) | {"final": float(content["validation"]["final"])},
        validation_images=_count(content.get("validation_images", 0)),
        training_images=training_images,
        parameters=_count(content["parameters"]),
        parameters_kept=_count(content["parameters_kept"]),
        seconds=_numbers(content.get("seconds", {})),
        facts=facts,
    )


def _layer(content: Any, thresholds: Mapping[str, tuple[float, ...]]) -> Layer:
    name, shape = str(content["name"]), tuple(map(_count, content["shape"]))
    weights, kept = _count(content["weights"]), _count(content["kept"])
    if math.prod(shape) != weights or kept > weights:
        raise ValueError(f"{kept} of {weights} weights in a tensor of shape {shape}")
    return Layer(name=name, shape=shape, weights=weights, kept=kept, thresholds=thresholds.get(name, ()))


def _test(content: Any) -> _Test:
    forms = _numbers(content["error"])
    return _Test(percent=forms["final"], images="test", count=_count(content["test_images"]), forms=forms)


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is no count")
    return int(value)


def _numbers(content: Any) -> dict[str, float]:
    return {str(name): float(value) for name, value in _plain(content).items()}


def _history(
    reader: _Reader, directory: RunDirectory, settings: Mapping[str, Any] | None, outcome: _Outcome | None
) -> tuple[tuple[Epoch, ...], bool]:
    """Return the epochs of training and fine-tuning, and whether their steps are known."""
    each = _steps_each(settings, outcome.training_images if outcome else 0)
    epochs: list[Epoch] = []
    for phase in ("train", "fine-tune"):
        before = epochs[-1] if epochs else None
        epochs += _epochs(reader, directory, phase, before, each)
    counts_steps = bool(epochs) and all(epoch.step for epoch in epochs)
    return tuple(epochs), counts_steps


def _steps_each(settings: Mapping[str, Any] | None, images: int) -> int:
    """Return the steps of an epoch, for logs that do not tell; 0 if there is no way to know."""
    try:
        return math.ceil(images / int((settings or {})["train"]["batch_size"]))
    except _DAMAGES:
        return 0


def _epochs(reader: _Reader, directory: RunDirectory, phase: Phase, before: Epoch | None, each: int) -> list[Epoch]:
    log = directory.journal(phase).log
    epochs, lost = [], 0
    for record in reader.log(log):
        try:
            epoch = _epoch(record, phase)
        except _DAMAGES:
            lost += 1
            continue
        step = epoch.step or epoch.epoch * each
        epochs.append(replace(epoch, step=step + before.step if before and step else step))
    if lost:
        reader.problems.append(f"{_place(log)}: {lost} record{'s' if lost > 1 else ''} of another version left out")
    return epochs


def _epoch(record: Mapping[str, Any], phase: Phase) -> Epoch:
    return Epoch(
        phase=phase,
        epoch=_count(record["epoch"]),
        step=_count(record.get("step", 0)),
        error=float(record.get("error", math.nan)),
        sibling_error=float(record.get("sibling_error", math.nan)),
        ratio=math.inf if (ratio := record.get("ratio", math.nan)) is None else float(ratio),
        kept={str(name): _count(value) for name, value in _plain(record.get("kept_per_layer", {})).items()},
        thresholds=_numbers(record.get("thresholds", {})),
        loss=float(record.get("loss", math.nan)),
        loss_terms=_numbers(record.get("loss_terms", {})),
        coded_bytes=float(record.get("coded_bytes", math.nan)),
    )


def _layers_in_training(reader: _Reader, directory: RunDirectory, history: tuple[Epoch, ...]) -> tuple[Layer, ...]:
    """Return the layers of a run that is not finished: sizes from its checkpoint, the rest from its log."""
    if not history or not history[-1].kept:
        return ()
    shapes = _shapes(reader, directory.journal("train").checkpoint)
    thresholds = next((epoch.thresholds for epoch in reversed(history) if epoch.thresholds), {})
    return tuple(
        Layer(
            name=name,
            shape=shapes[name],
            weights=math.prod(shapes[name]),
            kept=kept,
            thresholds=(thresholds[name],) if name in thresholds else (),
        )
        for name, kept in history[-1].kept.items()
        if name in shapes
    )


def _shapes(reader: _Reader, checkpoint: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safetensors.safe_open(checkpoint, framework="pt") as file:
            keys = {name_in_model(key): key for key in file.keys()}  # noqa: SIM118  (not a dict)
            return {name: tuple(file.get_slice(key).get_shape()) for name, key in keys.items() if name}
    except FileNotFoundError:
        return {}
    except (safetensors.SafetensorError, OSError) as error:
        reader.problems.append(f"{checkpoint.name} is damaged ({_what(error)}): no sizes of layers")
        return {}


def name_in_model(key: str) -> str | None:
    """Return the name that a weight has in the plain model; None for any other key of a checkpoint."""
    kind, _, name = key.partition(":")
    if kind != "model":
        return None
    if ".parametrizations." not in f".{name}":
        return name
    return name.replace("parametrizations.", "").removesuffix(".original") if name.endswith(".original") else None


def _files(reader: _Reader, directory: RunDirectory) -> tuple[PackedFile, ...]:
    found = []
    for place in directory.compressed():
        file = reader.parse(place.file_record, lambda content, place=place: _file(reader, place, content))  # type: ignore[misc]  # mypy: default of a lambda
        if file is not None:
            found.append((place.file_record.stat().st_mtime_ns, file))
    return tuple(file for _, file in sorted(found, key=lambda pair: pair[0], reverse=True))


def _file(reader: _Reader, place: RunDirectory, content: Any) -> PackedFile:
    steps = _numbers(content["validation"])
    error = Error(percent=steps["decoded"], images="validation")
    test = reader.parse(
        place.test, lambda content: (float(content["error"]["decoded"]), _count(content["test_images"]))
    )
    if test is not None:
        error = Error(percent=test[0], images="test", count=test[1])
    tensor_bytes: dict[str, int] = {}
    try:
        with open_archive(place.packed) as archive:
            tensor_bytes = {record.name: record.length for record in archive.records if record.alias_of is None}
    except FileNotFoundError:
        reader.problems.append(f"{_place(place.packed)} is not there: no bytes per layer")
    except (FormatError, OSError) as problem:
        reader.problems.append(f"{_place(place.packed)} is damaged ({_what(problem)}): no bytes per layer")
    return PackedFile(
        name=place.path.name,
        bytes=_count(content["bytes"]),
        dense_bytes=_count(content["fp32_bytes"]),
        error=error,
        steps=steps,
        settings=_plain(content["compression"]),
        compression=_compression(content["compression"]),
        tensor_bytes=tensor_bytes,
        history=tuple(_epochs(reader, place, "quantize", None, 0)),
    )


def _speed(content: Any) -> Speed:
    return Speed(
        dense_ms=float(content["dense_ms"]),
        sparse_ms=float(content["sparse_ms"]),
        batch=_count(content.get("batch", 1)),
        threads=_count(content.get("threads", 1)),
        layers={
            str(name): (float(times["dense_ms"]), float(times["sparse_ms"]))
            for name, times in _plain(content.get("layers", {})).items()
        },
    )


def _state(
    settings: Mapping[str, Any], outcome: _Outcome | None, history: tuple[Epoch, ...], directory: RunDirectory
) -> str:
    if outcome is not None:
        return "finished"
    if directory.result.exists():
        return "damaged"
    if not history:
        return "no epoch is done yet"
    last = history[-1]
    try:
        goal = settings["train"]["epochs" if last.phase == "train" else "fine_tune_epochs"]
        return f"unfinished: epoch {last.epoch} of {_count(goal)}, phase {last.phase}"
    except _DAMAGES:
        return f"unfinished: epoch {last.epoch}, phase {last.phase}"


def _job(settings: Mapping[str, Any]) -> Job | None:
    """Return the job, if this version could run it."""
    try:
        job = Job.from_json(settings)
        is_sound = isinstance(job.seed, int) and re.fullmatch(r"[\w.=+-]+", job.name) and command(job)
        return job if is_sound else None
    except _DAMAGES:
        return None


def _compression(settings: Mapping[str, Any]) -> Compression | None:
    try:
        return Compression(**settings)
    except _DAMAGES:
        return None


def _dense(job: Job, directory: RunDirectory) -> Dense | None:
    """Return the errors of the dense reference among the runs beside this one."""
    if job.method == "dense":
        return None
    root = directory.path.resolve().parent
    reference = dense_job(job)
    # Or one that somebody has asked for with the flags of the run, which a dense network does not obey.
    as_long = replace(job.train, epochs=reference.train.epochs, fine_tune_epochs=0)
    same = [reference, replace(job, method="dense", train=as_long), replace(job, method="dense")]
    found = [errors for errors in (_errors(RunDirectory(root / each.name)) for each in same) if errors]
    if found:
        return Dense(test=found[0][0], validation=found[0][1], seeds=(job.seed,))
    for each in same:
        stem, _, _ = each.name.rpartition("=")
        others = {path.name.rpartition("=")[2]: path for path in sorted(root.glob(f"{_literally(stem)}=*"))}
        pairs = {int(seed): _errors(RunDirectory(path)) for seed, path in others.items() if seed.isdecimal()}
        known = {seed: errors for seed, errors in pairs.items() if errors}
        if known:
            test, validation = (sum(values) / len(known) for values in zip(*known.values(), strict=True))
            return Dense(test=test, validation=validation, seeds=tuple(sorted(known)))
    return None


def _literally(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _errors(directory: RunDirectory) -> tuple[float, float] | None:
    """Return the errors of a finished run, on test and on validation images; NaN where there is none."""
    reader = _Reader()
    test, outcome = reader.parse(directory.test, _test), reader.parse(directory.result, _outcome)
    if test is None and outcome is None:
        return None
    return test.percent if test else math.nan, outcome.forms["final"] if outcome else math.nan
