"""One run from end to end: train a sibling, cut it, fine-tune what is left; or train the dense reference alike."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import data, models
from secateur.atomic import write_atomically
from secateur.experiments.rundir import RunDirectory, RunError
from secateur.measure import count, error_rate
from secateur.prune import keep_zeros, prune
from secateur.sibling import SiblingConfig, build_sibling
from secateur.threshold import learned_thresholds
from secateur.train import checkpoint
from secateur.train.loop import Observer, Record, TrainConfig, fit, is_main_process, wait_for_all

_LONGEST_NAME = 200  # bytes; file systems take 255, and the seed and names of files come after
_COPIES = 6  # distorted copies of each training image that augmentation draws from


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run. A default changes nothing, so fields may be added without renaming old runs."""

    network: str
    data: str = "mnist"
    method: Literal["prune", "dense", "han2015"] = "prune"
    seed: int = 0
    sibling: SiblingConfig = field(default_factory=SiblingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def name(self) -> str:
        """A readable name, which is also the run's directory: what differs from the defaults, and the seed."""
        parts = [self.network, self.data]
        if self.method != "prune":
            parts.append(self.method)
        for config, default in ((self.sibling, SiblingConfig()), (self.train, TrainConfig())):
            for entry in fields(config):
                value = getattr(config, entry.name)
                if value != getattr(default, entry.name):
                    parts.append(f"{entry.name}={short(value)}")
        name = "-".join(parts)
        if len(name) > _LONGEST_NAME:  # a file system would refuse it
            name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return f"{name}-seed={self.seed}"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """Read a job back."""
        plain = dict(content)
        return cls(**plain | {"sibling": SiblingConfig(**plain["sibling"]), "train": TrainConfig(**plain["train"])})


def dense_job(job: Job) -> Job:
    """Return the dense reference of a job: the same optimizer, schedule, decay and number of epochs in all.

    What only thresholds obey has its default, so that jobs which differ in nothing else share their reference.
    """
    usual = {name: getattr(TrainConfig(), name) for name in ("fine_tune_lr", "rho", "lambda_t", "cutoff")}
    epochs = job.train.epochs + job.train.fine_tune_epochs
    train = replace(job.train, epochs=epochs, fine_tune_epochs=0, **usual)
    return replace(job, method="dense", sibling=SiblingConfig(), train=train)


def short(value: object) -> str:
    """Write a float with six digits, or with all of them where six would make two runs share a name."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


@dataclass(frozen=True)
class TrainingImages:
    """Training images in memory, as inputs, with distorted copies to draw from."""

    inputs: Tensor
    labels: Tensor
    scaling: data.Scaling
    copies: Tensor | None
    augment: float

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and labels, a share of the inputs replaced by one of their copies."""
        inputs = self.inputs[indices]
        if self.copies is not None:
            replaced = (torch.rand(len(indices), generator=generator) < self.augment).nonzero().squeeze(1)
            which = torch.randint(len(self.copies), (len(replaced),), generator=generator)
            inputs[replaced] = self.scaling(self.copies[which, indices[replaced]])
        return inputs, self.labels[indices]


def run(
    job: Job,
    root: Path,
    *,
    data_root: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> RunDirectory:
    """Carry out a job in a directory of its own below `root`; a finished one is returned as it is.

    Reads training files only: the test set is for `evaluate`.
    """
    if job.method == "han2015":
        raise ValueError("han2015 goes in rounds of cutting and retraining: secateur reproduce rival runs it")
    directory = RunDirectory(root / job.name)
    if (directory.result.exists() or directory.has_started) and read_job(directory) != job:
        raise RunError(f"{directory.path} holds a run with other settings, of an older version: move it away")
    if directory.result.exists():
        return directory
    if directory.has_started and not resume:
        raise RunError(f"{directory.path} holds an unfinished run: add --resume to go on with it, or delete it")
    model, images, (inputs, labels) = begin(job, directory, data_root)
    facts: Record = {"prunable": count(model).prunable.weights}
    phases: Record = {}

    def fit_phase(model: nn.Module, phase: Literal["train", "fine-tune"]) -> None:
        phases[phase] = fit(
            model,
            images,
            job.train,
            phase=phase,
            seed=job.seed,
            measure=lambda model: progress(model, inputs, labels, job.train.cutoff),
            journal=directory.journal(phase),
            observer=observer,
        )

    if job.method == "prune":
        build_sibling(model, job.sibling)
    fit_phase(model, "train")
    if job.method == "prune":
        facts["validation"] = error_of_each_form(model, inputs, labels, job.train.cutoff)
        facts["thresholds"] = {name: f.threshold.flatten().tolist() for name, f in learned_thresholds(model).items()}
        model = prune(model, job.train.cutoff)
        if job.train.fine_tune_epochs:
            fit_phase(keep_zeros(model), "fine-tune")
            model = prune(model)
    else:
        facts["validation"] = {}
    facts["validation"]["final"] = error_rate(model, inputs, labels)
    facts |= {
        **what_is_left(model),
        "training_images": len(images),
        "validation_images": len(labels),
        "seconds": phases,
        "threads": torch.get_num_threads(),
    }
    if is_main_process():
        _save_model(directory.model, model, job, images.scaling)
        directory.write(directory.result, {"job": asdict(job), **facts, "versions": versions()})
    wait_for_all()
    return directory


def evaluate(directory: RunDirectory, *, data_root: Path | None = None) -> Record:
    """Read the test set, once, and write the errors of a finished run beside it."""
    if directory.test.exists():
        return directory.read(directory.test)
    directory.read(directory.result)  # a run that is not finished is not judged
    job = read_job(directory)
    model, scaling = load_model(directory.model)
    test = data.load(job.data, "test", data_root)
    refuse_other_shapes(job, model, test)
    inputs, labels = scaling(test.images), test.labels
    errors: Record = {}
    if job.method == "prune":
        errors = error_of_each_form(load_sibling(directory, job), inputs, labels, job.train.cutoff)
    errors["final"] = error_rate(model, inputs, labels)
    directory.write(directory.test, {"error": errors, "test_images": len(labels)})
    return {"error": errors, "test_images": len(labels)}


def read_job(directory: RunDirectory) -> Job:
    """Return what a run was asked to do."""
    try:
        return Job.from_json(directory.read(directory.job))
    except (TypeError, ValueError) as error:
        raise RunError(f"{directory.job} is damaged ({error}): delete the directory and run again") from error


def load_sibling(directory: RunDirectory, job: Job) -> nn.Module:
    """Return the trained sibling of a finished run, as it was before the cut."""
    path = directory.journal("train").checkpoint
    sibling = build_sibling(models.build(job.network, seed=job.seed), job.sibling)
    if job.train.epochs == 0:  # no epoch, no checkpoint
        return sibling
    try:
        sibling.load_state_dict(checkpoint.load_model(path))
    except RuntimeError as error:
        raise RunError(f"{path} does not hold the {job.network} that {directory.job} speaks of") from error
    return sibling


def validation_by_cutoff(directory: RunDirectory, cutoffs: Iterable[float], data_root: Path | None = None) -> Record:
    """Cut a finished run's sibling at several γ and judge each on the validation images."""
    job = read_job(directory)
    sibling = load_sibling(directory, job)
    _, validation, scaling = load_images(job, models.build(job.network, seed=0), data_root)
    inputs, answers = scaling(validation.images), {}
    for cutoff in cutoffs:
        plain = prune(sibling, cutoff, allow_empty=True)
        error = error_rate(plain, inputs, validation.labels)
        answers[f"{cutoff:g}"] = {"ratio": count(plain).prunable.ratio, "error": error}
    return answers


def error_of_each_form(sibling: nn.Module, inputs: Tensor, labels: Tensor, cutoff: float) -> Record:
    """Return the error of the sibling and of both readings of the paper's N_p: survivors keep θ(w), or raw w."""
    return {
        "sibling": error_rate(sibling, inputs, labels),
        "theta": error_rate(prune(sibling, cutoff), inputs, labels),
        "raw": error_rate(prune(sibling, cutoff, survivors="raw"), inputs, labels),
    }


def load_model(path: Path) -> tuple[nn.Module, data.Scaling]:
    """Return a finished run's network and the scaling its inputs need."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
        model = models.build(header["network"])
        model.load_state_dict(state)
        return model, data.Scaling(float(header["mean"]), float(header["std"]))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: give the directory of a finished run") from None
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} is not a model written by a run: {str(error).splitlines()[0]}") from error


def versions() -> dict[str, str]:
    """Name the software and the machine that a number was made with."""
    return {
        "secateur": _version("secateur"),
        "torch": str(torch.__version__),  # which names the build; what is installed may be called by its number alone
        "accelerate": _version("accelerate"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # imported from a source tree


def begin(
    job: Job, directory: RunDirectory, data_root: Path | None
) -> tuple[nn.Module, TrainingImages, tuple[Tensor, Tensor]]:
    """Make the directory of a run ready; return its network, the images to train on, and those to choose by."""
    if is_main_process():
        directory.sweep()
    # Convolutions train 1.6 times as fast with the channels of a pixel side by side (LeNet-5, batch 128, one thread).
    model = models.build(job.network, seed=job.seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
    images, validation, scaling = load_images(job, model, data_root)
    directory.write(directory.job, asdict(job))
    return model, images, (scaling(validation.images), validation.labels)


def load_images(job: Job, model: nn.Module, root: Path | None) -> tuple[TrainingImages, data.ImageSet, data.Scaling]:
    """Return the images to train on, those to choose by, and how pixels become inputs."""
    everything = data.load(job.data, "train", root)
    refuse_other_shapes(job, model, everything)
    train, validation = data.split_validation(everything, min(5000, len(everything) // 5))
    scaling = data.Scaling.fit(train.images, job.train.scaling)
    copies = data.augmented_copies(train.images, _COPIES, seed=job.seed) if job.train.augment else None
    return (
        TrainingImages(scaling(train.images), train.labels, scaling, copies, job.train.augment),
        validation,
        scaling,
    )


def refuse_other_shapes(job: Job, model: nn.Module, images: data.ImageSet) -> None:
    """Say so when a network cannot read a data set's images."""
    wanted, got = tuple(model.input_shape), tuple(images.images.shape[1:])  # type: ignore[arg-type]  # ours have it
    if wanted != got:
        raise ValueError(f"{job.network} takes images of shape {wanted}, {job.data} has {got}: choose another data set")


def progress(model: nn.Module, inputs: Tensor, labels: Tensor, cutoff: float) -> Record:
    """Measure a network in training: a sibling is judged by what it would be if it were cut now."""
    functions = learned_thresholds(model)
    plain = prune(model, cutoff, allow_empty=True) if functions else model
    totals = count(plain)
    record: Record = {
        "error": error_rate(plain, inputs, labels),
        "ratio": totals.prunable.ratio,
        "kept": totals.prunable.kept,
    }
    if functions:
        record["sibling_error"] = error_rate(model, inputs, labels)
        record["thresholds"] = {name: f.threshold.mean().item() for name, f in functions.items()}
    record["kept_per_layer"] = {tensor.name: tensor.kept for tensor in totals.prunable.tensors}
    return record


def what_is_left(model: nn.Module) -> Record:
    """Return the counts that every result holds."""
    totals = count(model)
    return {
        "kept": totals.prunable.kept,
        "ratio": totals.prunable.ratio,
        "layers": [
            {"name": t.name, "shape": list(t.shape), "weights": t.weights, "kept": t.kept}
            for t in totals.prunable.tensors
        ],
        "parameters": totals.whole.weights,
        "parameters_kept": totals.whole.kept,
    }


def _save_model(path: Path, model: nn.Module, job: Job, scaling: data.Scaling) -> None:
    header = {"network": job.network, "data": job.data, "mean": repr(scaling.mean), "std": repr(scaling.std)}
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    write_atomically(path, _with_sorted_header(safetensors.torch.save(state, metadata=header)))


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file whose header is in one order: the library writes metadata in another each time."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[start:]
