"""What a file says about the inputs of its network: their shape, scaling and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from secateur.encode import open_archive
from secateur.networks import Shape, imported

if TYPE_CHECKING:
    from secateur.data import CropKind, Scaling

SHAPE = "input_shape"  # in the metadata of a file, and as an argument of our networks
LONGEST_SIDE = 1 << 16  # above any that makes sense: a file must not ask for absurd sizes


def input_shape(model: nn.Module, metadata: Mapping[str, str], path: str | PathLike[str]) -> Shape:
    """Return the shape of one input of a file's network: the one in its metadata, or the network's `input_shape`."""
    shape = recorded_shape(metadata) or imported.shape_of(model)
    if shape is None:
        raise ValueError(
            f"{path} holds a {type(model).__name__} and does not say the shape of its inputs: give the class an "
            'attribute input_shape, or save with metadata={"input_shape": "3 32 32"}'
        )
    return shape


def recorded_shape(metadata: Mapping[str, str]) -> Shape | None:
    """Return the input shape that the metadata of a file gives; files of our own networks need none."""
    sides = metadata.get(SHAPE, "").split()
    if len(sides) != 3 or not all(side.isascii() and side.isdecimal() for side in sides):
        return None
    channels, height, width = map(int, sides)
    return (channels, height, width) if all(is_count(side, LONGEST_SIDE) for side in map(int, sides)) else None


def describe_inputs(
    scaling: Scaling,
    data: str,
    classes: Sequence[str],
    *,
    crop: CropKind = "centre",
    input_shape: Shape | None = None,
) -> dict[str, str]:
    """Return the metadata that `read_inputs` reads; a named data set knows its classes itself.

    The input shape is for networks that are not ours.
    """
    from secateur.data import DATA_SETS
    from secateur.data.crops import needs_pictures

    known = {} if data in DATA_SETS else {"classes": "\n".join(classes)}
    if input_shape is not None:
        known[SHAPE] = " ".join(map(str, input_shape))
    if needs_pictures(crop):  # the others show the centre without a margin
        known["crop"] = crop
    return {"data": data if data in DATA_SETS else Path(data).name, **known, **scaling.as_text()}


class FileInputs(NamedTuple):
    """What a file says about the inputs of its network."""

    scaling: Scaling
    data: str
    classes: tuple[str, ...]
    crop: CropKind | None  # how pictures of all sizes were cut; None: they are stretched to the size of the data set


def read_inputs(path: Path) -> FileInputs:
    """Return the scaling that the inputs of a file's network need, the name of its data set, and the classes."""
    from secateur.data import CROPS, DATA_SETS, Scaling, is_cut  # here, so that importing secateur loads no data sets

    with open_archive(path) as archive:
        metadata = archive.metadata
    try:
        data = metadata["data"]
        named = DATA_SETS[data].classes if data in DATA_SETS else ()
        classes = tuple(metadata["classes"].split("\n")) if "classes" in metadata else named
        was_cut = "classes" in metadata or (data in DATA_SETS and is_cut(data))
        crop = CROPS[CROPS.index(metadata.get("crop", "centre"))] if was_cut else None
        return FileInputs(Scaling.from_text(metadata), data, classes, crop)
    except (KeyError, ValueError):
        raise ValueError(f"{path} does not say how its inputs are scaled: pack the model of a run") from None


def is_count(value: object, most: int) -> bool:
    """Return whether a value from a file is a whole number from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
