"""The network to benchmark: that of a run, one from a file, or one of ours with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import sep
from pathlib import Path

import torch
from torch import nn

from secateur import networks
from secateur.experiments.directory import RunDirectory
from secateur.experiments.models import load_model
from secateur.files import load
from secateur.nearest import require_one_of
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


def require_subject(source: str, *, density: float | None = None, run: Path | None = None) -> None:
    """Raise a ValueError if a source is no file, directory or network of ours, or if it would ignore a setting."""
    if not _is_path(source):
        require_one_of("file, run or network", source, networks.NETWORKS)
        if run is not None:
            raise ValueError(f"{source} would have random weights, which do not belong to {run}: give a .cut file")
    elif density is not None:
        raise ValueError(f"{source} has its own weights: density is for networks by name, whose weights are random")
    if density is not None:
        _require_density(density)


def subject(source: str, *, density: float | None = None, run: Path | None = None) -> Subject:
    """Return the network of a run's directory, of a .cut file, or the one of ours by that name.

    The result of a file belongs to `run`, if that is given.
    """
    require_subject(source, density=density, run=run)
    if not _is_path(source):
        density = DENSITY if density is None else density
        model = random_zeros_(networks.build(source, seed=0), density)
        return Subject(source, source, model.eval(), _sample_shape(model, source), density)
    path, directory = Path(source), None if run is None else RunDirectory(run)
    if path.is_dir():
        directory = directory or RunDirectory(path)
        own = RunDirectory(path)
        model = load(own.file) if _has_only_file(own) else load_model(own.model)[0]
    else:
        model = load(path)
    if directory is not None and not directory.path.is_dir():
        raise RunError(f"{directory.path} is not a directory: give the directory of a run")
    network, _ = networks.name_of(model) or (type(model).__name__, {})
    return Subject(source, network, model.float().eval(), _sample_shape(model, source), directory=directory)


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


def _sample_shape(model: nn.Module, source: str) -> tuple[int, ...]:
    shape = getattr(model, "input_shape", None)
    if shape is None:
        raise ValueError(f"{source} holds a {type(model).__name__}, which has no attribute input_shape")
    return tuple(shape)


def _require_density(density: float) -> None:
    if not 0 <= density <= 1:
        raise ValueError(f"density must lie between 0 and 1, got {density:g}")
