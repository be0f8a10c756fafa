"""The network whose features are compared: that of a run or a .cut file, a pretrained one, or one that is imported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from os import sep
from pathlib import Path
from typing import NamedTuple

from torch import nn

from secateur import networks
from secateur.data import Scaling
from secateur.experiments.directory import RunDirectory
from secateur.experiments.models import read_recorded
from secateur.experiments.subject import subject
from secateur.files import read_inputs
from secateur.nearest import require_one_of
from secateur.networks import Shape, imported
from secateur.pretrained import BY_NAME, PRETRAINED, read_start
from secateur.results import RunError
from secateur.transfer.features import FeatureNetwork

IMAGENET = Scaling((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of pixels from 0 to 1


class Source(NamedTuple):
    """A network as a user names it: where it comes from, and what tables call it."""

    name: str
    text: str


def parse_sources(words: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources of words such as `pruned=runs/a/model.cut` or `runs/a`, with different names.

    Without a name it is that of the run or of the file, or the whole word where two would have the same.
    """
    found = []
    for word in words:
        name, equals, text = word.partition("=")
        is_named = bool(equals) and not Path(word).exists()
        if is_named and not (name and text):
            raise ValueError(f'"{word}" is not NAME=SOURCE: write a name, =, and a network')
        found.append(Source(name, text) if is_named else Source("", word))
    short = [source.name or _short_name(source.text) for source in found]
    named = tuple(
        Source(name if source.name or short.count(name) == 1 else source.text, source.text)
        for name, source in zip(short, found, strict=True)
    )
    twice = [source.name for index, source in enumerate(named) if source.name in {each.name for each in named[:index]}]
    if twice:
        raise ValueError(f'two networks are called "{twice[0]}": choose names by NAME=SOURCE')
    return named


def _short_name(source: str) -> str:
    """Return the name of a run's directory, or that of a file without its suffix."""
    if not _is_path(source):
        return source
    path = Path(source)
    return path.absolute().name if path.is_dir() else path.name.removesuffix(".cut")


def require_source(source: str, layer: str | None = None) -> None:
    """Raise a ValueError unless a source is a file, a run, a pretrained network or an import path."""
    if _is_path(source) or networks.is_import_path(source):
        return
    require_one_of("file, run or pretrained network", source, PRETRAINED)
    left_out = PRETRAINED[source].left_out
    if left_out and (layer is None or layer.startswith(left_out)):
        parts = ", ".join(left_out)
        raise ValueError(f"the pretrained {source} has no weights for {parts}: name an earlier layer with --layer")


def feature_network(
    source: str | Source,
    *,
    layer: str | None = None,
    is_sparse: bool = False,
    trust: Collection[str] = (),
    root: Path | None = None,
) -> FeatureNetwork:
    """Return the network of a run's directory, of a .cut file, the pretrained one of a name, or the one imported.

    Where no scaling is recorded, that of the pretrained weights of the same network is used, or else the mean and
    standard deviation of ImageNet. Pretrained weights are kept below `root`.
    """
    name, source = source if isinstance(source, Source) else (source, source)
    require_source(source, layer)
    model: nn.Module
    shape: Shape | None
    scaling: Scaling | None = None
    if _is_path(source):
        found = subject(source, trust=trust)
        channels, height, width = found.sample_shape
        model, shape, scaling = found.model, (channels, height, width), _recorded_scaling(Path(source))
        known = found.network
    elif networks.is_import_path(source):
        model, known = networks.build(source, seed=0, trust=trust), source
        shape = imported.shape_of(model) or networks.usual_shape(source, trust)
    else:
        model, known = networks.build(source, seed=0), source
        shape, start = networks.usual_shape(source), read_start(BY_NAME, source, root)
        assert start is not None
        start.fill(model)
    if shape is None:
        raise ValueError(f"{source} has no attribute input_shape, such as (3, 224, 224): give the module one")
    return FeatureNetwork(name, model, shape, scaling or _usual_scaling(known, shape), layer, is_sparse)


def _recorded_scaling(path: Path) -> Scaling | None:
    """Return the scaling in a run's directory or in a .cut file, if it is recorded."""
    run = RunDirectory(path)
    if path.is_dir() and run.model.exists():
        return read_recorded(run.model).scaling
    file = run.file if path.is_dir() else path
    if not file.exists():
        raise RunError(f"{path} has no finished network")
    try:
        return read_inputs(file).scaling
    except ValueError:  # a file that was not written by a run need not say it
        return None


def _usual_scaling(network: str, shape: Shape) -> Scaling:
    if network in PRETRAINED:
        preprocessing = PRETRAINED[network].preprocessing
        return Scaling(preprocessing.mean, preprocessing.std)
    return IMAGENET if shape[0] == 3 else Scaling()


def _is_path(source: str) -> bool:
    is_name = source in PRETRAINED
    return not is_name and (sep in source or source.endswith(".cut") or Path(source).exists())
