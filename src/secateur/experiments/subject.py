"""The network to benchmark: that of a run, one from a file, or one by its name with random weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from os import sep
from pathlib import Path

import torch
from torch import nn

from secateur import networks
from secateur.encode import open_archive
from secateur.experiments.directory import RunDirectory
from secateur.experiments.models import load_model, read_recorded
from secateur.files import input_shape as shape_in_file
from secateur.files import load
from secateur.nearest import require_one_of
from secateur.networks import Shape, imported
from secateur.plain_data import from_plain
from secateur.results import RunError, SpeedResult, write
from secateur.run.bench import Bench

DENSITY = 0.1  # of random weights, where none is given


@dataclass(frozen=True)
class Subject:
    """A network with its name, the shape of its samples, and its source.

    With `density`, its weights are random; `directory` is that of the run it belongs to.
    """

    source: str
    network: str
    model: nn.Module
    sample_shape: tuple[int, ...]
    density: float | None = None
    directory: RunDirectory | None = None


def require_subject(
    source: str,
    *,
    density: float | None = None,
    run: Path | None = None,
    classes: int | None = None,
    input_shape: Shape | None = None,
) -> None:
    """Raise a ValueError if a source is no file, directory or name of a network, or if it would ignore a setting."""
    if not _is_path(source):
        if not networks.is_import_path(source):
            require_one_of("file, run or network", source, networks.NETWORKS)
        if run is not None:
            raise ValueError(f"{source} would have random weights, which do not belong to {run}: give a .cut file")
    elif density is not None:
        raise ValueError(f"{source} has its own weights: density is for networks by name, whose weights are random")
    elif classes is not None or input_shape is not None:
        raise ValueError(f"{source} has its own sizes: classes and input-shape are for networks by name")
    if density is not None:
        _require_density(density)


def subject(
    source: str,
    *,
    density: float | None = None,
    run: Path | None = None,
    classes: int | None = None,
    input_shape: Shape | None = None,
    trust: Collection[str] = (),
) -> Subject:
    """Return the network of a run's directory, of a .cut file, or the one of that name.

    The result of a file belongs to `run`, if that is given. A network that is not ours is imported if `trust` has the
    name of its module. `classes` and `input_shape` are for networks by name, instead of their usual ones.
    """
    require_subject(source, density=density, run=run, classes=classes, input_shape=input_shape)
    if not _is_path(source):
        density = DENSITY if density is None else density
        model = networks.build(source, seed=0, classes=classes, input_shape=input_shape, trust=trust)
        model = random_zeros_(model, density)
        shape = input_shape or imported.shape_of(model) or networks.usual_shape(source, trust)
        if shape is None:
            raise ValueError(f"{source} has no attribute input_shape: add --input-shape CHANNELS HEIGHT WIDTH")
        return Subject(source, source, model.eval(), shape, density)
    path, directory = Path(source), None if run is None else RunDirectory(run)
    if path.is_dir():
        directory = directory or RunDirectory(path)
        own = RunDirectory(path)
        found = _of_file(own.file, trust) if _has_only_file(own) else _of_run(own, trust)
    else:
        found = _of_file(path, trust)
    if directory is not None and not directory.path.is_dir():
        raise RunError(f"{directory.path} is not a directory: give the directory of a run")
    network, model, shape = found
    return Subject(source, network, model.float().eval(), shape, directory=directory)


def _of_run(run: RunDirectory, trust: Collection[str]) -> tuple[str, nn.Module, Shape]:
    """Return the finished network of a run with its name and the shape of its inputs."""
    network, shape, _ = read_recorded(run.model)
    model = load_model(run.model, trust)
    if shape is None:
        raise RunError(f"{run.path} holds a network whose inputs are no images: time it in Python, secateur.run.bench")
    return network, model, shape


def _of_file(path: Path, trust: Collection[str]) -> tuple[str, nn.Module, Shape]:
    """Return the network of a .cut file with its name and the shape of its inputs."""
    model = load(path, trust=trust)
    with open_archive(path) as archive:
        architecture, metadata = archive.architecture, archive.metadata
    assert architecture is not None  # or it could not have been loaded
    name = (networks.name_of(model) or (architecture.name,))[0]
    return name, model, shape_in_file(model, metadata, path)


def named_modules(source: str) -> tuple[str, ...]:
    """Return the modules that a source itself asks to import: none, unless it is the import path of a network."""
    return () if _is_path(source) else networks.modules_of(source)


def _has_only_file(run: RunDirectory) -> bool:
    """Return whether the network of a run cannot be built by name: at best its file says how to build it."""
    try:
        is_given = run.read_job().is_given
    except RunError:  # it has none, or one of another version
        is_given = False
    return run.file.exists() and (is_given or not run.model.exists())


def write_speed(directory: RunDirectory, found: Bench) -> Path:
    """Write the part of a benchmark that reports show into the run's directory."""
    summary, known = found.summary(), {entry.name for entry in fields(SpeedResult)}
    speed = from_plain(SpeedResult, {key: value for key, value in summary.items() if key in known})
    return write(directory.speed, speed)


def random_zeros_(
    model: nn.Module,
    density: float,
    kinds: Sequence[type[nn.Module]] = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear),
    seed: int = 0,
) -> nn.Module:
    """Keep each weight of the layers of these `kinds` with probability `density`, set the others to zero.

    The choice depends on the seed only, and a smaller density keeps a subset of the weights that a larger one keeps.
    Biases and other layers stay as they are. Returns the model.
    """
    _require_density(density)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, tuple(kinds)):
                weight = layer.get_parameter("weight")
                weight.masked_fill_(torch.rand(weight.shape, generator=generator) >= density, 0.0)
    return model


def _is_path(source: str) -> bool:
    return source not in networks.NETWORKS and (sep in source or source.endswith(".cut") or Path(source).exists())


def _require_density(density: float) -> None:
    if not 0 <= density <= 1:
        raise ValueError(f"density must lie between 0 and 1, got {density:g}")
