"""What a layer of a network answers to pictures: computed once, kept on the disk and memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from secateur.data import DataError, Inputs, Scaling
from secateur.data.features import PICTURES_AT_A_TIME, Extraction, FeatureType, cached_together
from secateur.data.images import Shape
from secateur.data.pictures import printable
from secateur.data.streams import PictureStream, Place
from secateur.graph.trace import UntraceableError, trace
from secateur.nearest import require_one_of
from secateur.run.compile import compile_sparse
from secateur.run.plan import Plan
from secateur.transfer.shared import sharing
from secateur.transfer.task import Picture

FeatureMatrix: TypeAlias = npt.NDArray[Any]  # (pictures, features)
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class FeatureNetwork:
    """A network with what turns pictures into its inputs, and the layer whose output is used.

    Without a layer, features are what the last linear layer reads. With `is_sparse`, the network up to the layer runs
    on `compile_sparse`.
    """

    name: str
    model: nn.Module
    input_shape: Shape
    scaling: Scaling
    layer: str | None = None
    is_sparse: bool = False

    def __post_init__(self) -> None:
        self.model.eval()
        self.read_module()

    @cached_property
    def digest(self) -> str:
        """A name for the network, its weights, its layer and its inputs."""
        found = hashlib.sha256()
        settings = [self.layer, self.input_shape, self.scaling.as_text(), self.is_sparse]
        found.update(json.dumps([type(self.model).__qualname__, *settings]).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    @cached_property
    def features(self) -> int:
        """How many features a picture has."""
        with outputs_of(self) as features:
            return features(torch.zeros(1, *self.input_shape)).shape[1]

    def read_module(self) -> nn.Module:
        """Return the module whose output, or input if no layer was named, is used; a ValueError says what is wrong."""
        modules: dict[str, nn.Module] = dict(self.model.named_modules())
        if self.layer is not None:
            modules.pop("")
            require_one_of(f"layer of {self.name}", self.layer, modules)
            return modules[self.layer]
        linear = [module for module in modules.values() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(f"{self.name} has no linear layer, whose input is used by default: name another layer")
        return linear[-1]

    def stream(self, pictures: Sequence[Picture]) -> PictureStream:
        """Return pictures that are cut to their boxes and stretched to the network's inputs; all must be readable."""
        places = [Place(str(picture.path), box=picture.box) for picture in pictures]
        labels = torch.zeros(len(places), dtype=torch.int64)
        return PictureStream(places, labels, ("picture",), self.input_shape, crop=None, most_unreadable=0.0)


def extract(
    network: FeatureNetwork,
    pictures: Sequence[Picture],
    cache: Path,
    *,
    dtype: FeatureType = "float32",
    progress: Progress = lambda done, total: None,
) -> FeatureMatrix:
    """Return the features of pictures (pictures, features), from a file in `cache` that is written first if missing.

    The file is named after a digest of the weights, the layer, the pictures and how they are read. A file that was
    interrupted is continued and ends with the same bits.
    """
    [found] = extract_together([network], pictures, cache, dtype=dtype, progress=progress)
    return found


def extract_together(
    networks: Sequence[FeatureNetwork],
    pictures: Sequence[Picture],
    cache: Path,
    *,
    dtype: FeatureType = "float32",
    progress: Progress = lambda done, total: None,
) -> list[FeatureMatrix]:
    """Return the features of pictures by several networks, as `extract` does for one, in one pass over the pictures.

    First layers that networks have in common are computed once. All need the same inputs.
    """
    if not pictures:
        return [np.empty((0, network.features), dtype) for network in networks]
    wanted = []
    with ExitStack() as stack:
        for network in networks:
            path = cache / f"{digest_of(network, pictures, dtype)}.features"
            features = stack.enter_context(reading(network, path.with_suffix(".plan.json")))
            wanted.append(Extraction(features, (network.features, 1, 1), path))
        stack.enter_context(sharing([network.model for network in networks if not network.is_sparse]))
        inputs = Inputs(networks[0].stream(pictures), networks[0].scaling)
        found = cached_together(wanted, inputs, dtype=dtype, progress=progress)
    return [each.rows["values"].reshape(len(pictures), -1) for each in found]


def extract_all(
    networks: Sequence[FeatureNetwork],
    pictures: Sequence[Picture],
    cache: Path,
    *,
    dtype: FeatureType = "float32",
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the features that `extract_by_folder` returns, of all networks that have the same inputs together."""
    alike: dict[object, list[FeatureNetwork]] = {}
    for network in networks:
        alike.setdefault((network.input_shape, network.scaling.mean, network.scaling.std), []).append(network)
    done, total = 0, len(pictures) * len(networks)
    for group in alike.values():
        for indices in _parts(pictures):

            def step(part: int, _: int, before: int = done, networks: int = len(group)) -> None:
                progress(before + part * networks, total)

            chosen = [pictures[index] for index in indices]
            extract_together(group, chosen, cache, dtype=dtype, progress=step)
            done += len(indices) * len(group)
            progress(done, total)


def extract_by_folder(
    network: FeatureNetwork, pictures: Sequence[Picture], cache: Path, *, dtype: FeatureType = "float32"
) -> FeatureMatrix:
    """Return the features of pictures as `extract` does, from one file for each part of the data set.

    A part is what is in the same folder two levels up, such as a domain or `train`: tasks that have a part in common
    compute its features once.
    """
    found = np.empty((len(pictures), network.features), dtype)
    for indices in _parts(pictures):
        found[indices] = extract(network, [pictures[index] for index in indices], cache, dtype=dtype)
    return found


def _parts(pictures: Sequence[Picture]) -> list[list[int]]:
    parts: dict[Path, list[int]] = {}
    for index, picture in enumerate(pictures):
        parts.setdefault(picture.path.parent.parent, []).append(index)
    return [*parts.values()]


def normalized(features: FeatureMatrix) -> npt.NDArray[np.float32]:
    """Return rows of length 1 as float32; a row of zeros stays as it is."""
    rows = np.asarray(features, np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled = np.zeros_like(rows)
    np.divide(rows, lengths, out=scaled, where=lengths > 0)
    return scaled


@contextmanager
def outputs_of(network: FeatureNetwork) -> Iterator[Callable[[Tensor], Tensor]]:
    """Give a function that maps inputs to features (inputs, features), read by a hook while the network runs."""
    read: list[Tensor] = []

    def keep(value: object) -> None:
        if not isinstance(value, Tensor):
            raise ValueError(f'layer "{network.layer}" of {network.name} returns a {type(value).__name__}, no tensor')
        read.append(value.detach().flatten(1))

    def features(inputs: Tensor) -> Tensor:
        read.clear()
        with torch.no_grad():
            network.model(inputs)
        if len(read) != 1:
            where = "the last linear layer" if network.layer is None else f'layer "{network.layer}"'
            raise ValueError(f"{where} of {network.name} runs {len(read)} times for an input, not once: name another")
        return read.pop()

    module = network.read_module()
    if network.layer is None:
        handle = module.register_forward_pre_hook(lambda _, given: keep(given[0]))
    else:
        handle = module.register_forward_hook(lambda _, __, answer: keep(answer))
    try:
        yield features
    finally:
        handle.remove()


@contextmanager
def reading(network: FeatureNetwork, plan: Path) -> Iterator[Callable[[Tensor], Tensor]]:
    """Give a function that maps inputs to features.

    What `compile_sparse` decides is kept in a file: another decision could change the last bits of the features.
    """
    if not network.is_sparse:
        with outputs_of(network) as features:
            yield features
        return
    example = torch.zeros(PICTURES_AT_A_TIME, *network.input_shape)
    compiled = compile_sparse(_up_to_layer(network), example, plan=Plan.load(plan) if plan.exists() else None)
    if not plan.exists() and isinstance(found := getattr(compiled, "plan", None), Plan):
        plan.parent.mkdir(parents=True, exist_ok=True)
        found.save(plan)

    def sparse_features(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            answer: Tensor = compiled(inputs)
        return answer.flatten(1)

    yield sparse_features


def _up_to_layer(network: FeatureNetwork) -> nn.Module:
    """Return the part of a network that computes its features."""
    wanted, calls = network.read_module(), list[fx.Node]()
    with suppress(UntraceableError):
        graph = trace(network.model)
        name = next(name for name, module in network.model.named_modules() if module is wanted)
        calls = [node for node in graph.graph.nodes if node.op == "call_module" and node.target == name]
    if len(calls) != 1:
        raise ValueError(f"{network.name} cannot be cut at its layer for sparse kernels: extract without them")
    [call] = calls
    end = call if network.layer is not None else call.args[0]
    [output] = [node for node in graph.graph.nodes if node.op == "output"]
    output.args = (end,)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph.eval()


def digest_of(network: FeatureNetwork, pictures: Sequence[Picture], dtype: FeatureType) -> str:
    """Return a name for everything that features depend on."""
    found = hashlib.sha256(network.digest.encode())
    found.update(json.dumps([dtype, len(pictures)]).encode())
    for picture in pictures:
        try:
            state = picture.path.stat()
        except OSError as error:
            raise DataError(f"{printable(picture.path)} cannot be read: {error.strerror or error}") from error
        content = [printable(picture.path.absolute()), state.st_size, state.st_mtime_ns, picture.box]
        found.update(json.dumps(content, default=float).encode())
    return found.hexdigest()[:32]
