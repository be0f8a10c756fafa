"""AlexNet's linear layers pruned on features of its pretrained convolutions, then the whole network end to end.

The convolutions are run once over the pictures, and fc6–fc8, which hold 96 % of the weights, are trained on what they
answer: dense, to several budgets, and by Deep Compression. The layers of the first budget and the convolutions together
are then trained for a short while on the pictures themselves, where the convolutions are pruned too; so are the dense
layers, without pruning, to compare with. Pictures are enlarged to the size that the convolutions were trained on. Every
run of linear layers leaves the whole network in a file as well, with the convolutions as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import data, networks
from secateur.atomic import write_atomically
from secateur.data import Inputs, Scaling, Split
from secateur.data.downloads import cache_directory
from secateur.data.features import Features, cached_features
from secateur.experiments.directory import RunDirectory
from secateur.experiments.given_data import GivenData, batches_of, given_data
from secateur.experiments.models import load_state
from secateur.experiments.outcome import FILE
from secateur.experiments.presets import run_name
from secateur.experiments.runner import carry_out, is_finished, run
from secateur.experiments.studies.feature_summary import NETWORK, FeatureStudy, classifier_path, whole_path
from secateur.experiments.studies.grid import Places, to_publish
from secateur.experiments.studies.published import read_history
from secateur.files import describe_inputs, load, save
from secateur.job import Job
from secateur.networks import Shape
from secateur.networks.seeding import seeded
from secateur.pretrained import BY_NAME, Start, read_start
from secateur.results import EvaluationResult, PublishedRun, write
from secateur.train.observers import Observer
from secateur.train.task import Task
from secateur.weights.reading import copied

Part: TypeAlias = Literal["all", "features", "dense", "longer", "scratch", "pruned", "rival", "whole"]

WHOLE_FILE = "whole.cut"  # in the directory of a run of linear layers

_MOST_VALIDATION = 5000


def run_feature_study(
    study: FeatureStudy,
    places: Places,
    *,
    part: Part = "all",
    observer: Observer | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Path]:
    """Compute the features, train what is missing, and yield the path of each new result.

    One part alone may run at the same time as others once there are features; "pruned" and "rival" continue the dense
    layers, each ratio but the first the layers of the one before, and "whole" those of the first ratio.
    """
    torch.set_num_threads(1)
    start = read_start(BY_NAME, NETWORK, places.data_root)
    assert start is not None
    train, test = (_features(study, split, start, places, progress) for split in ("train", "test"))
    wanted: list[tuple[Part, Job]] = [
        ("dense", study.dense_job),
        ("longer", study.longer_job),
        ("scratch", study.scratch_job),
        *(("pruned", study.pruned_job(ratio)) for ratio in study.ratios),
        ("rival", study.rival_job),
    ]
    for name, job in wanted:
        path = classifier_path(places.results, study, job)
        if part in ("all", name) and not path.exists():
            directory = RunDirectory(places.runs / run_name(job))
            earlier = [(one, RunDirectory(places.runs / run_name(one))) for one in _earlier(study, job)]
            published = _train_classifier(job, directory, train, test, earlier, observer)
            _save_whole(study, start, train.classes, directory)
            yield write(path, published)
    if part in ("all", "whole"):
        for layers, whole_job in (
            (study.pruned_job(study.ratios[0]), study.whole_job),
            (study.dense_job, study.dense_whole_job),
        ):
            path = whole_path(places.results, whole_job(Path()))
            if not path.exists():
                job = whole_job(_joined(start, RunDirectory(places.runs / run_name(layers))))
                finished = run(job, places.runs, data_root=places.data_root, resume=True, observer=observer)
                yield write(path, _without_place(to_publish(finished, places.data_root)))


def _without_place(published: PublishedRun) -> PublishedRun:
    """Name the run that another one started from, and its file, but not where they are on this machine."""
    job = published.result.job
    job = replace(job, start="/".join(Path(job.start).parts[-2:]))
    return replace(published, result=replace(published.result, job=job))


def convolutions_of(start: Start, classes: int, input_shape: Shape) -> tuple[Callable[[Tensor], Tensor], Shape]:
    """Return the pretrained convolutions as a function of inputs, and the shape of what they answer."""
    model = networks.build(NETWORK, seed=0, classes=classes, input_shape=input_shape)
    start.fill(model)
    layers = nn.Sequential(model.get_submodule("features"), model.get_submodule("avgpool")).eval()
    layers = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs
    with torch.no_grad():
        _, channels, height, width = layers(torch.zeros(1, *input_shape)).shape
    return lambda x: layers(x.to(memory_format=torch.channels_last)).contiguous(), (channels, height, width)


class Classifier(nn.Module):
    """The linear layers of torchvision's AlexNet alone, under their own names."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classifier = networks.build(NETWORK, classes=classes).get_submodule("classifier")

    def forward(self, x: Tensor) -> Tensor:
        """Map features (pictures, 256, 6, 6) to logits (pictures, classes)."""
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


def _features(
    study: FeatureStudy, split: Split, start: Start, places: Places, progress: Callable[[int, int], None]
) -> Features:
    images = data.load(study.data, split, places.data_root, study.input_shape)
    convolutions, shape = convolutions_of(start, len(images.classes), study.input_shape)
    digest = hashlib.sha256()
    for name in sorted(start.state):
        digest.update(name.encode() + start.state[name].numpy().tobytes())
    root = cache_directory() if places.data_root is None else places.data_root
    name = f"{study.data}-{split}-{NETWORK}-{study.input_shape[-1]}px-{digest.hexdigest()[:12]}.f16"
    assert start.scaling is not None
    inputs = Inputs(images, start.scaling)
    return cached_features(convolutions, shape, inputs, root / "features" / name, progress=progress)


def _earlier(study: FeatureStudy, job: Job) -> list[Job]:
    """Return the runs whose layers a run may continue, the longest first."""
    if job.methods[0].trains_dense:
        return [study.dense_job]
    return [replace(job, methods=job.methods[:number]) for number in range(len(job.methods) - 1, 0, -1)]


def _train_classifier(
    job: Job,
    directory: RunDirectory,
    train: Features,
    test: Features,
    earlier: Sequence[tuple[Job, RunDirectory]],
    observer: Observer | None,
) -> PublishedRun:
    """Train linear layers on features; what earlier runs have trained is not trained again."""
    with seeded(job.seed):
        model = Classifier(len(train.classes))
    workload = _workload(model, train)
    if not is_finished(directory, job, resume=True):
        carry_out(job, directory, copied(model), workload, earlier=earlier, observer=observer)
    unseen = replace(workload, validation=batches_of(test, "test"))
    found = unseen.evaluate(load(directory.file, model))
    assert found.answers is not None
    top5 = found.answers.top5_error
    evaluated = EvaluationResult(
        errors={FILE: found.error}, images=len(test), top5_errors={} if top5 is None else {FILE: top5}
    )
    write(directory.test, evaluated)
    return PublishedRun(result=directory.read_result(), test=evaluated, history=read_history(directory))


def _workload(model: nn.Module, train: Features) -> GivenData:
    return given_data(model, *train.split(min(_MOST_VALIDATION, len(train) // 5)), task=Task())


def _save_whole(study: FeatureStudy, start: Start, classes: Sequence[str], directory: RunDirectory) -> None:
    """Write the pretrained convolutions with the linear layers of a finished run to a file that names the network."""
    model = networks.build(NETWORK, classes=len(classes), input_shape=study.input_shape)
    model.load_state_dict({**start.state, **load_state(directory.model)})
    assert isinstance(start.scaling, Scaling)
    save(model, directory.path / WHOLE_FILE, metadata=describe_inputs(start.scaling, study.data, classes))


def _joined(start: Start, directory: RunDirectory) -> Path:
    """Write the convolutions and the linear layers of a finished run to one file, and return its path."""
    path = directory.path / "whole.safetensors"
    if not path.exists():
        state = {**start.state, **load_state(directory.model)}
        assert isinstance(start.scaling, Scaling)
        write_atomically(path, safetensors.torch.save(state, metadata=start.scaling.as_text()))
    return path
