"""The networks of a run, read from the files of its directory: the finished one and those of its stages."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import networks
from secateur.atomic import write_atomically
from secateur.data import Scaling
from secateur.experiments.directory import RunDirectory
from secateur.experiments.pipeline import pipeline
from secateur.functions.inputs import restore_inputs
from secateur.job import Job
from secateur.networks import NetworkError, Shape, imported
from secateur.pretrained import Start
from secateur.results import RunError
from secateur.train import checkpoint
from secateur.train.stage import Stage


def build(
    job: Job,
    classes: int | None,
    input_shape: Shape | None,
    trust: Collection[str] = (),
    start: Start | None = None,
) -> nn.Module:
    """Return the network of a job before training, for a number of classes and images of a shape.

    A network that is not ours is imported if `trust` has the name of its module. Its weights are random unless they
    come from a start.

    Convolutions train 1.6 times as fast in channels-last memory format (LeNet-5, batch 128, one thread).
    """
    model = networks.build(job.network, seed=job.seed, classes=classes, input_shape=input_shape, trust=trust)
    if start is not None:
        start.fill(model)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # torch's stubs


def architecture(
    job: Job, classes: int | None, input_shape: Shape | None, trust: Collection[str]
) -> tuple[str, dict[str, Any]] | None:
    """Return what a file says about a network that is not ours, so that it can be built again; None for ours."""
    if not networks.is_import_path(job.network):
        return None
    return job.network, imported.arguments_of(job.network, trust, classes=classes, input_shape=input_shape)


def save_model(path: Path, model: nn.Module, job: Job, sizes: Mapping[str, str]) -> None:
    """Write a network's tensors and what is needed to run it; the same network gives the same bytes."""
    header = {"network": job.network, "data": job.data, **sizes}
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    write_atomically(path, _with_sorted_header(safetensors.torch.save(state, metadata=header)))


def load_model(path: Path, trust: Collection[str] = ()) -> nn.Module:
    """Return a finished run's network."""
    header, state = _read(path)
    try:
        model = networks.build(_trusted(header["network"], trust, path), **_sizes(header), seed=0, trust=trust)
        restore_inputs(model, {name: value.shape for name, value in state.items()})
        model.load_state_dict(state)
        return model
    except NetworkError:
        raise
    except (KeyError, ValueError, RuntimeError) as error:
        raise _not_a_model(path, error) from error


def load_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a finished run's network."""
    return _read(path)[1]


class Recorded(NamedTuple):
    """What a finished run says about its network without building it."""

    network: str
    input_shape: Shape | None  # None: its inputs are no images
    scaling: Scaling | None  # None: its inputs were prepared by other code


def read_recorded(path: Path) -> Recorded:
    """Return the name of a finished run's network, and the shape and the scaling of its inputs; nothing is built."""
    header, _ = _read(path)
    try:
        scaling = Scaling.from_text(header) if "mean" in header else None
        return Recorded(header["network"], _sizes(header)["input_shape"], scaling)
    except (KeyError, ValueError) as error:
        raise _not_a_model(path, error) from error


def build_again(
    directory: RunDirectory, job: Job, trust: Collection[str] = (), start: Start | None = None
) -> nn.Module:
    """Return the network of a finished run as it was before training."""
    header, _ = _read(directory.model)
    _trusted(job.network, trust, directory.path)
    try:
        return build(job, **_sizes(header), trust=trust, start=start)
    except NetworkError:
        raise
    except (KeyError, ValueError) as error:
        raise _not_a_model(directory.model, error) from error


def _trusted(network: str, trust: Collection[str], path: Path) -> str:
    """Return the name of a network that a file gives, if it is ours or its module is trusted."""
    if networks.is_import_path(network):
        imported.require_trusted(network, trust, path)
    return network


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: give the directory of a finished run") from None
    except safetensors.SafetensorError as error:
        raise _not_a_model(path, error) from error


def _sizes(header: Mapping[str, str]) -> _Sizes:
    """Return what a network was built for; data of another package may not tell."""
    shape: Shape | None = None
    if "input_shape" in header:
        sides = tuple(map(int, header["input_shape"].split()))
        shape = sides if len(sides) == 3 else None
    return {"classes": int(header["classes"]) if "classes" in header else None, "input_shape": shape}


class _Sizes(TypedDict):
    classes: int | None
    input_shape: Shape | None


def _not_a_model(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} is not a model written by a run: {str(error).splitlines()[0]}")


def restore(directory: RunDirectory, job: Job, stage: Stage) -> None:
    """Load the checkpoint of a stage into its network."""
    if stage.recipe.epochs == 0:  # no epoch, no checkpoint
        return
    path = directory.journal(stage.name).checkpoint
    try:
        stage.model.load_state_dict(checkpoint.load_model(path))
    except RuntimeError as error:
        raise RunError(f"{path} does not hold the {job.network} that {directory.job} describes") from error


def load_stage(directory: RunDirectory, name: str = "train", trust: Collection[str] = ()) -> nn.Module:
    """Return the trained network of a stage: a sibling still has its thresholds."""
    job = directory.read_job()
    found: list[nn.Module] = []

    def visit(stage: Stage) -> None:
        restore(directory, job, stage)
        if stage.name == name:
            found.append(stage.model)

    for _ in pipeline(job, build_again(directory, job, trust), visit):
        if found:
            return found[0]
    raise RunError(f'{directory.path} has no stage "{name}"')


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file with a sorted header: the library writes metadata in random order."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[start:]
