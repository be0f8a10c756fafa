"""Deep Compression, the rival: Han et al.'s rounds with our loop and our data, every gradient step counted.

The quality parameter is searched on seed 0 and on validation images only, and the search is part of the cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from secateur import data, models
from secateur.encode import load, save
from secateur.experiments.job import (
    Job,
    begin,
    load_images,
    progress,
    read_job,
    refuse_other_shapes,
    versions,
    what_is_left,
)
from secateur.experiments.rundir import RunDirectory, RunError, publish, read_published
from secateur.measure import count, error_rate
from secateur.methods import DeepCompression, Han2015, Method
from secateur.methods.han2015 import kinds
from secateur.train.loop import Observer, Record, TrainConfig, fit

# Optimizer, batch, decay and data are the paper preset's, so that only the method differs. Han et al. publish neither
# the epochs of the dense network nor those of a round; a tenth of the learning rate is theirs (section 4.1).
_TRAIN = {
    "lenet-300-100": TrainConfig(epochs=20, fine_tune_epochs=6, fine_tune_lr=1e-4),
    "lenet-5": TrainConfig(epochs=12, fine_tune_epochs=3, fine_tune_lr=1e-4),
}
_QUALITIES = (0.6, 0.7, 0.8, 0.9, 1.0)
_MOST_ROUNDS = 8
_TOLERATED = 0.1  # points of validation error above the dense network's, what the paper allows itself
# Values that a linear layer shares, as published: 6 bits and 5 bits (arXiv 1510.00149, tables 2 and 3).
_FC_LEVELS = {"lenet-300-100": 64, "lenet-5": 32}


@dataclass(frozen=True)
class Point:
    """Where a method stands after a stage: its network, and what it took to get there."""

    model: nn.Module
    record: Record


def job(network: str, seed: int = 0, data_set: str = "mnist") -> Job:
    """Return the training that Han et al.'s rounds are made of."""
    if network not in _TRAIN:
        raise ValueError(f'the rival has settings for {", ".join(_TRAIN)}, not for "{network}"')
    return Job(network=network, data=data_set, method="han2015", seed=seed, train=_TRAIN[network])


def points(
    job: Job, method: Method, runs: Path, *, data_root: Path | None = None, observer: Observer | None = None
) -> Generator[Point, None, nn.Module]:
    """Carry out a method stage by stage, yield where it stands after each, and return the finished network.

    Stages that are done are read from their checkpoints, so methods that begin alike share their beginning, and one
    that was killed goes on. Steps and seconds add up from the first stage on. Reads training files only.
    """
    directory = RunDirectory(runs / job.name)
    if directory.job.exists() and read_job(directory) != job:
        raise RunError(f"{directory.path} holds a run with other settings, of an older version: move it away")
    model, images, (inputs, labels) = begin(job, directory, data_root)
    steps, seconds, number, stages = 0, 0.0, 0, method.stages(model)
    while True:
        try:
            stage = next(stages)
        except StopIteration as end:
            finished: nn.Module = end.value
            return finished
        error_before = error_rate(stage.model, inputs, labels)
        seconds += fit(
            stage.model,
            images,
            job.train,
            phase=stage.phase,
            seed=job.seed + 1000 * number,  # every stage sees the images in an order of its own
            measure=lambda model: progress(model, inputs, labels, job.train.cutoff),
            journal=directory.journal(stage.name),
            observer=observer,
        )
        epochs = job.train.epochs if stage.phase == "train" else job.train.fine_tune_epochs
        steps += epochs * steps_per_epoch(job, len(images))
        totals = count(stage.model).prunable
        record = {
            "stage": stage.name,
            "error_before": error_before,
            "error": error_rate(stage.model, inputs, labels),
            "kept": totals.kept,
            "ratio": totals.ratio,
            "steps": steps,
            "seconds": seconds,
        }
        yield Point(stage.model, record)
        number += 1


def steps_per_epoch(job: Job, training_images: int) -> int:
    """Return the number of gradient steps that a pass over the training images takes."""
    return math.ceil(training_images / job.train.batch_size)


def search_quality(network: str, *, results: Path, runs: Path, data_root: Path | None) -> Path:
    """Publish the search for the quality parameter, as somebody without thresholds that learn has to make it.

    The dense network is trained once; every quality then goes on, round by round, until it has lost too much.
    """
    path = search_path(results, network)
    if path.exists():
        return path
    torch.set_num_threads(1)
    wanted, history = job(network), []
    stages_per_round = len(kinds(models.build(network, seed=0)))
    dense: Record = {}
    steps, seconds = 0, 0.0
    for quality in _QUALITIES:
        record: Record = {}
        for number, point in enumerate(
            points(wanted, Han2015(quality=quality, rounds=_MOST_ROUNDS), runs, data_root=data_root)
        ):
            record = point.record
            dense = dense or record
            if number and number % stages_per_round == 0:
                history.append({"quality": quality, "rounds": number // stages_per_round, **record})
                if record["error"] > _limit(dense):
                    break
        steps += record["steps"] - dense["steps"]
        seconds += record["seconds"] - dense["seconds"]
    fitting = [entry for entry in history if entry["error"] <= _limit(dense)]
    if not fitting:
        raise RunError(f"no quality of {_QUALITIES} keeps {network} within {_TOLERATED} points: try smaller ones")
    best = min(fitting, key=lambda entry: (entry["kept"], entry["error"]))
    content = {
        "rule": f"the fewest weights at no more than {_TOLERATED} points above the dense network's error, "
        "on validation images, seed 0; a quality goes on for more rounds until it is above",
        "chosen": {"quality": best["quality"], "rounds": best["rounds"]},
        "job": asdict(wanted),
        "dense": dense,
        "steps": dense["steps"] + steps,
        "seconds": dense["seconds"] + seconds,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "history": history,
    }
    return publish(path, content)


def _limit(dense: Record) -> float:
    """Return the largest error that is not too much, without the dust that adding decimal fractions leaves."""
    return round(float(dense["error"]) + _TOLERATED, 6)


def search_path(results: Path, network: str) -> Path:
    """Where the search for the quality parameter is published."""
    return results / network / "han2015" / "search.json"


def chosen_method(results: Path, network: str) -> Han2015:
    """Return the quality and the rounds that the search has chosen."""
    path = search_path(results, network)
    if not path.exists():
        raise RunError(f"{path} does not exist: secateur reproduce rival --seeds 1 makes the search first")
    return Han2015(**read_published(path)["chosen"])


def run_and_publish(job: Job, path: Path, *, results: Path, runs: Path, data_root: Path | None) -> Path:
    """Carry out the chosen rounds with one seed, read the test set once, and publish what came out."""
    method = chosen_method(results, job.network)
    reached = [
        Point(copy.deepcopy(point.model), point.record) for point in points(job, method, runs, data_root=data_root)
    ]
    dense, pruned = reached[0], reached[-1]
    images, validation, scaling = load_images(job, dense.model, data_root)
    test = data.load(job.data, "test", data_root)
    refuse_other_shapes(job, dense.model, test)
    errors = {
        name: error_rate(model, scaling(test.images), test.labels)
        for name, model in (("dense", dense.model), ("pruned", pruned.model))
    }
    content = {
        "job": asdict(job),
        "method": asdict(method),
        "prunable": count(dense.model).prunable.weights,
        "validation": {
            name: point.record["error"] for name, point in (("dense", dense), ("pruned", pruned), ("final", pruned))
        },
        **what_is_left(pruned.model),
        "training_images": len(images),
        "validation_images": len(validation.labels),
        "steps": pruned.record["steps"],
        "seconds": pruned.record["seconds"],
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "test": {"error": errors | {"final": errors["pruned"]}, "test_images": len(test.labels)},
        "stages": [point.record for point in reached],
    }
    return publish(path, content)


def add_sharing_and_coding(path: Path, *, runs: Path, data_root: Path | None) -> Record:
    """Go on from a published seed: share weights, train the shared values, code them, and publish error and bytes.

    Pruning is read from the run's checkpoints. The error after coding is that of the network read back from the file.
    """
    content: Record = read_published(path)
    if "bytes" in content:
        return content
    torch.set_num_threads(1)
    wanted = Job.from_json(content["job"])
    method = DeepCompression(**content["method"], fc_levels=_FC_LEVELS[wanted.network])
    stages = points(wanted, method, runs, data_root=data_root)
    last: Record = {}
    while True:
        try:
            last = next(stages).record
        except StopIteration as end:
            shared: nn.Module = end.value
            break
    packed = RunDirectory(runs / wanted.name).packed
    size = save(shared, packed, codec="huffman")
    networks = {"shared": shared, "coded": load(packed)}
    _, validation, scaling = load_images(wanted, shared, data_root)
    test = data.load(wanted.data, "test", data_root)
    for name, network in networks.items():
        content["validation"][name] = error_rate(network, scaling(validation.images), validation.labels)
        content["test"]["error"][name] = error_rate(network, scaling(test.images), test.labels)
    content |= {"stages": [*content["stages"], last], "bytes": size}
    publish(path, content)
    return content
