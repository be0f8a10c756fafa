"""The one driver: trains the stages of a job, evaluates every form of its network, and leaves a result and a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from secateur import networks
from secateur.atomic import write_atomically
from secateur.experiments.directory import RunDirectory
from secateur.experiments.images import load_images
from secateur.experiments.imported_data import load_parts, sizes_of, workload_of
from secateur.experiments.models import architecture, build
from secateur.experiments.outcome import Outcome
from secateur.experiments.pipeline import pipeline
from secateur.experiments.presets import run_name
from secateur.experiments.training import train_stage
from secateur.experiments.workload import Workload
from secateur.files import GivenArchitecture
from secateur.job import Job
from secateur.methods import Aids, Cautious
from secateur.networks import Shape
from secateur.pretrained import Start, read_start
from secateur.results import RunError, write
from secateur.train.observers import Observer, Silent
from secateur.train.processes import is_main_process, join_processes, wait_for_all
from secateur.train.source import some_batches
from secateur.train.stage import Stage
from secateur.train.task import moved


def run(
    job: Job,
    root: Path,
    *,
    data_root: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    trust: Collection[str] = (),
    keep_guessing: bool = False,
) -> RunDirectory:
    """Carry out a job in a directory of its own below `root`; a finished run is returned as it is.

    Reads training files only: the test set is for `evaluate`. A network that is not ours is imported if `trust` has the
    name of its module. A network no better than guessing is an error, unless `keep_guessing` makes it a result.
    """
    directory = RunDirectory(root / run_name(job))
    if is_finished(directory, job, resume=resume):
        return directory
    start = read_start(job.start, job.network, data_root)
    model, workload, sizes = _prepared(job, data_root, trust, start)
    random = () if start is None else start.left_random(model)
    if start is not None and observer is not None and not directory.has_started:
        observer.note(_describe(start, random))
    shorter = [replace(job, methods=job.methods[:number]) for number in range(len(job.methods) - 1, 0, -1)]
    carry_out(
        job,
        directory,
        model,
        workload,
        architecture=architecture(job, *sizes, trust),
        is_trained=start is not None and not random,
        earlier=[(first, RunDirectory(root / run_name(first))) for first in shorter],
        observer=observer,
        trust=trust,
        keep_guessing=keep_guessing,
    )
    return directory


def _prepared(
    job: Job, data_root: Path | None, trust: Collection[str], start: Start | None
) -> tuple[nn.Module, Workload, tuple[int | None, Shape | None]]:
    """Return the untrained network of a job, its data, and the classes and the shape that the network was built for."""
    if networks.is_import_path(job.data):
        parts = load_parts(job.data, trust)
        sizes = sizes_of(parts.train)
        model = build(job, *sizes, trust, start)
        return model, workload_of(parts, model), sizes
    images = load_images(job, data_root, trust, None if start is None else start.scaling)
    seen = images.training.images
    return build(job, len(seen.classes), seen.shape, trust, start), images, (len(seen.classes), seen.shape)


def _describe(start: Start, random: Sequence[str]) -> str:
    """Say what a run starts from, which tensors that does not have, and how inputs are scaled for it."""
    said = f"The run starts from {start.source}."
    if random:
        which = f'"{random[0]}"' + (f' to "{random[-1]}"' if len(random) > 1 else "")
        said += f" It lacks {which} for these classes: they are random, and --reference train trains a dense network."
    if start.scaling is not None:
        said += " Inputs are scaled as its weights need, whatever --scaling says."
    return said


def is_finished(directory: RunDirectory, job: Job, *, resume: bool) -> bool:
    """Return whether a run is finished; raise if it belongs to another job, or is unfinished without `resume`."""
    join_processes()
    exists = directory.result.exists() or directory.has_started
    if exists and directory.read_job() != job:
        raise RunError(f"{directory.path} holds a run with other settings, or from an older version: move it away")
    found = directory.is_finished
    if not found and directory.has_started and not directory.result.exists() and not resume:
        raise RunError(
            f"{directory.path} holds an unfinished run: add --resume (resume=True) to continue it, or delete it"
        )
    wait_for_all()  # before the first process writes: all of them must have seen the same files
    return found


def carry_out(
    job: Job,
    directory: RunDirectory,
    model: nn.Module,
    workload: Workload,
    *,
    architecture: GivenArchitecture | None = None,
    is_trained: bool = False,
    earlier: Sequence[tuple[Job, RunDirectory]] = (),
    observer: Observer | None = None,
    trust: Collection[str] = (),
    keep_guessing: bool = False,
) -> nn.Module:
    """Train a network as a job says, from the checkpoints in the directory on; leave a result and a file, return it.

    `architecture` is what the file says about a network that is not ours. A network that `is_trained` is evaluated as
    the dense one to compare with. `earlier` are runs of the first methods, whose stages are not trained again.
    """
    observer = observer or Silent()
    outcome = Outcome(job, directory, workload, architecture, trust)
    _begin(directory, job, earlier)
    method = job.methods[0]
    if isinstance(method, Cautious) and not directory.has_started:
        said = method.caution(model, job.recipe, len(workload.training))
        if said is not None:
            observer.note(said)

    def train(stage: Stage) -> None:
        if job.inputs.image_order == "run":
            stage = replace(stage, first_epoch=sum(done.epochs for done in outcome.stages))
        outcome.add_stage(train_stage(stage, workload, directory, job.seed, observer), stage.model)

    def error(network: nn.Module) -> float:
        return workload.evaluate(network).error

    def losses(network: nn.Module, samples: int) -> Iterator[Tensor]:
        device = next(network.parameters()).device
        for batch in some_batches(workload.training, samples, job.recipe.batch_size, job.seed):
            yield workload.task(network, moved(batch, device))

    finished, aids = model, Aids(outcome.file_size, error, observer.note, losses)
    for form, network in pipeline(job, model, train, aids, is_trained=is_trained):
        outcome.evaluate(form, network)
        finished = network
    if not keep_guessing:
        outcome.refuse_guessing()
    if is_main_process():
        outcome.leave(finished)
    wait_for_all()
    return finished


def _begin(directory: RunDirectory, job: Job, earlier: Sequence[tuple[Job, RunDirectory]]) -> None:
    """Prepare the directory, and copy the stages that a finished run of the first methods has trained."""
    if is_main_process():
        directory.sweep()
        write(directory.job, job)
        for outdated in (directory.result, directory.answers, directory.test, directory.speed):
            outdated.unlink(missing_ok=True)
        for start, other in earlier:
            if not directory.has_started and other.is_finished and other.read_job() == start:
                for path in (*other.logs(), *other.checkpoints()):  # the log first: a checkpoint relies on it
                    write_atomically(directory.path / path.name, path.read_bytes())
    wait_for_all()
