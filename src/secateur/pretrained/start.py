"""The weights that a run starts from: pretrained ones by name, or those in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from secateur.data import Scaling
from secateur.encode import open_archive
from secateur.pretrained.deep_compression import read_squeezenet
from secateur.pretrained.table import PRETRAINED

BY_NAME = "pretrained"
_SUFFIXES = (".safetensors", ".cut", ".net")  # the last one is Han's SqueezeNet
_CLASSIFIER = 2  # tensors that depend on the number of classes: the last weight and its bias


@dataclass(frozen=True, eq=False)
class Start:
    """Tensors by name, where they are from, and the scaling that their inputs need, if that is known.

    Tensors of the network whose names begin with one of `left_out` may be missing, and stay random.
    """

    source: str
    state: Mapping[str, Tensor]
    scaling: Scaling | None = None
    left_out: tuple[str, ...] = ()

    def left_random(self, model: nn.Module) -> tuple[str, ...]:
        """Name the tensors of a network that stay random; a ValueError says why it is another network.

        Besides what is left out, these are the classifier's if it is for another number of classes.
        """
        wanted = model.state_dict()
        classifier = list(wanted)[-_CLASSIFIER:]
        random = []
        for name, tensor in wanted.items():
            if name not in self.state:
                if not (self.left_out and name.startswith(self.left_out)):
                    raise self._misfit(model, f'it lacks "{name}"')
                random.append(name)
            elif self.state[name].shape != tensor.shape:
                if name not in classifier:
                    own, others = tuple(tensor.shape), tuple(self.state[name].shape)
                    raise self._misfit(model, f'"{name}" has shape {others}, not {own}')
                random.append(name)
        unknown = next((name for name in self.state if name not in wanted), None)
        if unknown is not None:
            raise self._misfit(model, f'it has "{unknown}", which that network does not have')
        return tuple(random)

    def fill(self, model: nn.Module) -> None:
        """Copy the tensors into a network, all of them or, if it is another network, none."""
        random = self.left_random(model)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name not in random:
                    tensor.copy_(self.state[name])

    def _misfit(self, model: nn.Module, why: str) -> ValueError:
        size = f"{type(model).__name__} for {getattr(model, 'classes', '?')} classes"
        return ValueError(f"{self.source} does not hold a {size}: {why}")


def require_start(start: str, network: str) -> None:
    """Raise a ValueError unless `start` is "pretrained", and such weights exist, or a file that can be read."""
    if start == BY_NAME:
        if network not in PRETRAINED:
            known = ", ".join(PRETRAINED)
            raise ValueError(f"there are no pretrained weights of {network}, only of {known}: give a file instead")
        return
    path = Path(start)
    if path.suffix not in _SUFFIXES:
        kinds = f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        raise ValueError(f'a run starts from "{BY_NAME}" or from a file ({kinds}), got {start}')
    if not path.is_file():
        raise ValueError(f"{start} does not exist: give a file, or {BY_NAME}")


def read_start(start: str, network: str, root: Path | None = None) -> Start | None:
    """Return the weights that a run of a network starts from; None if `start` is empty: random ones.

    Pretrained weights are kept below `root`, by default the user's cache directory, and downloaded if they are missing.
    """
    if not start:
        return None
    require_start(start, network)
    if start == BY_NAME:
        entry = PRETRAINED[network]
        scaling = Scaling(entry.preprocessing.mean, entry.preprocessing.std)
        return Start(f"the pretrained {network}", entry.load(root), scaling, entry.left_out)
    path = Path(start)
    if path.suffix == ".net":
        return _read_net(path)
    header, state = _read_cut(path) if path.suffix == ".cut" else _read_safetensors(path)
    try:
        return Start(start, state, Scaling.from_text(header))
    except ValueError:  # a file that was not written by a run need not say it
        return Start(start, state)


def _read_cut(path: Path) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    with open_archive(path) as archive:
        return archive.metadata, {record.name: tensor for record, tensor in archive.read_all()}


def _read_safetensors(path: Path) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {str(error).splitlines()[0]}") from error


def _read_net(path: Path) -> Start:
    preprocessing = PRETRAINED["squeezenet"].preprocessing
    try:
        state = read_squeezenet(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not Han's compressed SqueezeNet: {error}") from error
    return Start(str(path), state, Scaling(preprocessing.mean, preprocessing.std))
