"""Classify pictures with the network in a .cut file."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from secateur import data, networks
from secateur.encode import open_archive
from secateur.files import build_empty, input_shape, is_ours, read_inputs, recorded_shape
from secateur.networks import imported
from secateur.run.load import load_sparse

_STANDARD_INPUT = Path("-")
_MOST_BYTES = 1 << 28  # of a picture from a pipe, which has to be kept whole


@dataclass(frozen=True)
class Guess:
    """A class, what it is called, and its probability according to the network."""

    label: int
    name: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """What a network says of one picture: the likeliest classes first, or else why it says nothing."""

    picture: str  # its name, escaped so that it can be printed
    guesses: tuple[Guess, ...] = ()
    failure: str | None = None  # a sentence that names the picture

    def __str__(self) -> str:
        if self.failure is not None:
            return self.failure
        return f"{self.picture}: " + ", ".join(f"{each.name} ({100 * each.probability:.1f} %)" for each in self.guesses)


def predict(
    path: Path,
    sources: Sequence[Path],
    *,
    top: int = 3,
    invert: bool = False,
    batch: int = 64,
    trust: Collection[str] = (),
) -> Iterator[Answer]:
    """Yield what the network in a .cut file says of pictures, in their order, `batch` of them at a time.

    A source is a picture, a folder, whose pictures are taken by name, or "-", the bytes of one on standard input. A
    picture that cannot be read gives an answer that says so; the others are still answered. `invert` is for
    ink on paper where the network was trained on white strokes on black, as on MNIST. `trust` names the modules that
    may be imported to build a network that is not ours.
    """
    for name, number in (("top", top), ("batch", batch)):
        if number < 1:
            raise ValueError(f"{name} must be ≥ 1, got {number}")
    data.require_pillow()
    shape = _input_shape(path, trust)
    expected = read_inputs(path)
    network: nn.Module | None = None
    pictures = _read_all(sources, shape, invert=invert, crop=expected.crop)
    while together := [*islice(pictures, batch)]:
        # Laid out for as many pictures as come at a time; the first batch is the largest.
        network = network if network is not None else load_sparse(path, batch=len(together), trust=trust)
        found = [picture for _, picture in together if isinstance(picture, Tensor)]
        rows = iter(_probabilities(network, expected.scaling(torch.stack(found)))) if found else iter(())
        for name, picture in together:
            if isinstance(picture, str):
                yield Answer(name, failure=picture)
            else:
                yield _answer(name, next(rows), expected.classes, top)


def _input_shape(path: Path, trust: Collection[str]) -> networks.Shape:
    """Return the shape of a network's inputs; a network that is not ours is looked at, but not yet imported."""
    with open_archive(path) as archive:
        architecture, metadata = archive.architecture, archive.metadata
    if architecture is None or (architecture.is_named and architecture.name not in networks.NETWORKS):
        held = "does not say which network it holds" if architecture is None else f"holds a {architecture.name}"
        raise ValueError(f"{path} {held}: predict runs {', '.join(networks.names())}, load the others in Python")
    if is_ours(architecture):
        return input_shape(build_empty(architecture, path), {}, path)
    imported.require_trusted(architecture.name, trust, path)
    shape = recorded_shape(metadata)
    if shape is None:
        raise ValueError(
            f"{path} holds a {architecture.name} and does not say the shape of its inputs: load it in Python"
        )
    return shape


def _probabilities(network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        return network(inputs).softmax(dim=1)


def _answer(name: str, probabilities: Tensor, classes: Sequence[str], top: int) -> Answer:
    if probabilities.isnan().any():
        return Answer(name, failure=f"{name} gives NaN: the network's weights are broken")
    best = probabilities.topk(min(top, len(probabilities)))
    return Answer(
        name,
        tuple(
            Guess(label, classes[label] if label < len(classes) else str(label), probability)
            for probability, label in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ),
    )


def _read_all(
    sources: Sequence[Path], shape: tuple[int, int, int], *, invert: bool, crop: data.CropKind | None
) -> Iterator[tuple[str, Tensor | str]]:
    """Yield the name of every picture, and the picture or a sentence that says why it cannot be read."""
    for source in sources:
        paths = [source]
        try:
            if source != _STANDARD_INPUT and source.is_dir():
                paths = [*data.find_pictures(source)]
        except OSError as error:
            yield data.printable(source), f"{data.printable(source)} cannot be read: {error.strerror or error}"
            continue
        if not paths:
            name = data.printable(source)
            yield name, f"{name} is a folder without pictures ({', '.join(data.picture_suffixes())})"
        for path in paths:
            name = "standard input" if path == _STANDARD_INPUT else data.printable(path)
            yield name, _read(path, name, shape, invert, crop)


def _read(path: Path, name: str, shape: tuple[int, int, int], invert: bool, crop: data.CropKind | None) -> Tensor | str:
    try:
        with _open(path, name) as file:
            return data.read_picture(file, name, shape, invert=invert, crop=crop)
    except data.DataError as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"


def _open(path: Path, name: str) -> BinaryIO:
    if path != _STANDARD_INPUT:
        return path.open("rb")
    content = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise data.DataError(f"{name} brings more than the {_MOST_BYTES:,} bytes that are read: give a file")
    return io.BytesIO(content)
