"""The one driver: trains the stages of a job, evaluates every form of its network, and leaves a result and a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from secateur.atomic import write_atomically
from secateur.encode.container import open_archive
from secateur.experiments.answers import describe_answers
from secateur.experiments.directory import RunDirectory
from secateur.experiments.images import JobImages, load_images
from secateur.experiments.models import build, load_model, save_model
from secateur.experiments.pipeline import pipeline
from secateur.experiments.presets import run_name
from secateur.experiments.reference import trained_reference
from secateur.experiments.training import train_stage
from secateur.experiments.versions import versions
from secateur.files import describe_inputs, encoded, load, save
from secateur.functions.threshold import learned_thresholds
from secateur.job import Job
from secateur.measure import Answers, count
from secateur.methods import Aids, Cautious
from secateur.pretrained import Start, read_start
from secateur.results import FileResult, LayerResult, RunError, RunResult, StageResult, last, write
from secateur.train.observers import Observer, Silent
from secateur.train.processes import is_main_process, join_processes, wait_for_all
from secateur.train.stage import Stage

FILE = "file"  # the form of a network that is read back from its file


def run(
    job: Job,
    root: Path,
    *,
    data_root: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> RunDirectory:
    """Carry out a job in a directory of its own below `root`; a finished run is returned as it is.

    Reads training files only: the test set is for `evaluate`.
    """
    directory = RunDirectory(root / run_name(job))
    join_processes()
    is_finished = _is_finished(directory, job, resume)
    wait_for_all()  # before the first process writes: all of them must have seen the same files
    if is_finished:
        return directory
    start = read_start(job.start, job.network, data_root)
    images = load_images(job, data_root, None if start is None else start.scaling)
    seen = images.training.images
    model = build(job, len(seen.classes), seen.shape, start)
    random = () if start is None else start.left_random(model)
    _begin(directory, job)
    if observer is not None and start is not None and not directory.has_started:
        observer.note(_describe(start, random))
    method = job.methods[0]
    if observer is not None and isinstance(method, Cautious) and not directory.has_started:
        said = method.caution(model, job.recipe, len(images.training))
        if said is not None:
            observer.note(said)
    stages: list[StageResult] = []
    thresholds: dict[str, tuple[float, ...]] = {}

    def train(stage: Stage) -> None:
        stages.append(train_stage(stage, images, directory, job.seed, observer))
        for name, function in learned_thresholds(stage.model).items():
            thresholds[name] = tuple(function.threshold.flatten().tolist())

    errors: dict[str, float] = {}
    answers: dict[str, Answers] = {}
    kept: dict[str, int] = {}
    finished = model
    header = _header(directory, images)

    def file_size(network: nn.Module) -> int:
        return len(encoded(network, codec=job.coding.codec, metadata=header, sort_units=job.coding.sort_units))

    aids = Aids(file_size=file_size, error=images.error, note=(observer or Silent()).note)
    is_trained = start is not None and not random
    for form, network in pipeline(job, model, train, aids, is_trained=is_trained):
        answers[form] = images.answers(network)
        errors[form], kept[form], finished = answers[form].error, count(network).prunable.kept, network
    _refuse_guessing(directory, errors, images, stages)
    if is_main_process():
        save_model(directory.model, finished, job, images.training.scaling, seen)
        file, answers[FILE] = _write_file(directory, job, finished, images, errors)
        errors[FILE] = answers[FILE].error
        dense = None if job.is_dense else answers.get("dense") or _reference_answers(job, directory, images)
        write(directory.answers, describe_answers(images.validation.images, answers[FILE], dense))
        with open_archive(directory.file) as archive:
            sizes = {record.name: record.length for record in archive.records}
        write(directory.result, _result(job, finished, images, errors, kept, stages, thresholds, file, sizes))
    wait_for_all()
    return directory


def _describe(start: Start, random: Sequence[str]) -> str:
    """Say what a run starts from, which tensors that does not have, and how inputs are scaled for it."""
    said = f"The run starts from {start.source}."
    if random:
        which = f'"{random[0]}"' + (f' to "{random[-1]}"' if len(random) > 1 else "")
        said += f" It lacks {which} for these classes: they are random, and --reference train trains a dense network."
    if start.scaling is not None:
        said += " Inputs are scaled as its weights need, whatever --scaling says."
    return said


def _is_finished(directory: RunDirectory, job: Job, resume: bool) -> bool:
    """Return whether a run is finished; raise if it belongs to another job, or is unfinished without `resume`."""
    exists = directory.result.exists() or directory.has_started
    if exists and directory.read_job() != job:
        raise RunError(f"{directory.path} holds a run with other settings, from an older version: move it away")
    if directory.is_finished:
        return True
    if directory.has_started and not directory.result.exists() and not resume:
        raise RunError(f"{directory.path} holds an unfinished run: add --resume to continue it, or delete it")
    return False


def _begin(directory: RunDirectory, job: Job) -> None:
    """Prepare the directory; stages that a finished run of the first methods has trained are copied from it."""
    if is_main_process():
        directory.sweep()
        write(directory.job, job)
        for outdated in (directory.result, directory.answers, directory.test, directory.speed):
            outdated.unlink(missing_ok=True)
        for number in range(len(job.methods) - 1, 0, -1):
            start = replace(job, methods=job.methods[:number])
            other = RunDirectory(directory.path.parent / run_name(start))
            if not directory.has_started and other.is_finished and other.read_job() == start:
                for path in (*other.logs(), *other.checkpoints()):  # the log first: a checkpoint relies on it
                    write_atomically(directory.path / path.name, path.read_bytes())
    wait_for_all()


def _refuse_guessing(
    directory: RunDirectory, errors: dict[str, float], images: JobImages, stages: list[StageResult]
) -> None:
    """Fail when a trained network does no better than always answering with the most frequent class."""
    reached = last(errors)
    if sum(stage.epochs for stage in stages) and reached >= images.guessing_error:
        raise RunError(
            f"{directory.path}: after training the network is wrong on {reached:.1f} % of the validation images, no "
            "better than guessing: lower the learning rate or rho, prune less, or train for more epochs"
        )


def _write_file(
    directory: RunDirectory, job: Job, model: nn.Module, images: JobImages, errors: dict[str, float]
) -> tuple[FileResult, Answers]:
    """Write the .cut file of a finished network; return its size, and the answers of the network read back from it."""
    header, coding = _header(directory, images, last(errors)), job.coding
    size = save(model, directory.file, codec=coding.codec, metadata=header, sort_units=coding.sort_units)
    result = FileResult(bytes=size, dense_bytes=4 * count(model).whole.weights)
    return result, images.answers(load(directory.file))


def _reference_answers(job: Job, directory: RunDirectory, images: JobImages) -> Answers | None:
    """Return the answers of the dense network that was trained alongside; None if there is none to read."""
    other = trained_reference(job, directory)
    try:
        return None if other is None else images.answers(load_model(other.model)[0])
    except RunError:
        return None


def _header(directory: RunDirectory, images: JobImages, error: float = 10.0) -> dict[str, str]:
    """Return what the file says about its network; the default error is a placeholder of the usual length."""
    return {
        **describe_inputs(images.training.scaling, directory.read_job().data, images.training.images.classes),
        "run": directory.path.name,
        "validation error %": f"{error:.2f}",
        "secateur": versions()["secateur"],
    }


def _result(
    job: Job,
    model: nn.Module,
    images: JobImages,
    errors: dict[str, float],
    kept: dict[str, int],
    stages: list[StageResult],
    thresholds: dict[str, tuple[float, ...]],
    file: FileResult,
    sizes: Mapping[str, int],
) -> RunResult:
    totals = count(model)
    return RunResult(
        job=job,
        errors=errors,
        weights=totals.prunable.weights,
        kept=totals.prunable.kept,
        layers=tuple(
            LayerResult(
                name=tensor.name,
                shape=tuple(tensor.shape),
                weights=tensor.weights,
                kept=tensor.kept,
                bytes=sizes.get(tensor.name, 0),
            )
            for tensor in totals.prunable.tensors
        ),
        kept_by_form=kept,
        thresholds=thresholds,
        parameters=totals.whole.weights,
        parameters_kept=totals.whole.kept,
        stages=tuple(stages),
        file=file,
        training_images=len(images.training),
        validation_images=len(images.validation),
        threads=torch.get_num_threads(),
        versions=versions(),
    )
