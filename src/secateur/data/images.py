"""Labelled images: a protocol for sets of any size, and sets that are held in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width
Split: TypeAlias = Literal["train", "test"]

_CHUNK_BYTES = 1 << 24  # of images read at a time when a whole set is traversed


class DataError(Exception):
    """A file of a data set is missing or broken; one sentence names it, what is wrong, and the remedy."""


@runtime_checkable
class Images(Protocol):
    """Labelled images of one shape, in memory or read when they are asked for."""

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; labels are positions in it."""
        ...

    @property
    def labels(self) -> Tensor:
        """All labels (images,), int64, without reading an image."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return images (indices, channels, height, width) of uint8 and their labels (indices,).

        A set that varies its images at random draws from the generator.
        """
        ...


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (images, channels, height, width) of uint8 with labels (images,) of int64, in memory.

    Without names, the classes are called by their numbers, up to the largest label. `unreadable` says why images were
    left out that could not be read, one sentence each.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            got = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise ValueError(f"images must be uint8 (images, channels, height, width), got {got}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            got = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise ValueError(f"labels must be int64, one for each of {len(self.images)} images, got {got}")
        least, most = (int(self.labels.min()), int(self.labels.max())) if len(self.labels) else (0, -1)
        if not self.classes:
            object.__setattr__(self, "classes", tuple(str(label) for label in range(most + 1)))
        if least < 0 or most >= len(self.classes):
            raise ValueError(f"labels must lie in 0…{len(self.classes) - 1}, got {least}…{most}")

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the images and labels at `indices`."""
        return self.images[indices], self.labels[indices]


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the images of another set, by their indices; nothing is copied."""

    whole: Images
    indices: Tensor

    @property
    def shape(self) -> Shape:
        """Channels, height and width of every image."""
        return self.whole.shape

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the whole set."""
        return self.whole.classes

    @property
    def labels(self) -> Tensor:
        """The labels of these images."""
        return self.whole.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the images and labels at `indices` of this subset."""
        return self.whole.batch(self.indices[indices], generator)


@runtime_checkable
class Stream(Images, Protocol):
    """Images that are read when they are asked for, and can be read ahead in other processes."""

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What is wrong with the images that could not be read so far, one sentence each."""
        ...

    def read(self, batches: Sequence[Tensor], seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of images by their indices, in this order; a seed varies them at random, each in its own way.

        The seed alone determines the images, whatever the number of processes.
        """
        ...

    def split(self, at: int) -> tuple[Stream, Stream]:
        """Return the images before an index and those from it on, which are read as they are in the whole stream."""
        ...


def unreadable_of(images: Images) -> tuple[str, ...]:
    """Return what is wrong with those of a whole set's images that could not be read so far, one sentence each."""
    while isinstance(images, Subset):
        images = images.whole
    return images.unreadable if isinstance(images, ImageSet | Stream) else ()


def stream_of(images: Images) -> Stream | None:
    """Return the stream that images are a part of, if they are read when they are asked for."""
    while isinstance(images, Subset):
        images = images.whole
    return images if isinstance(images, Stream) else None


def read_batches(images: Images, batches: Sequence[Tensor], seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of images and labels by their indices, in this order; those of a stream are read ahead."""
    while isinstance(images, Subset):
        batches, images = [images.indices[batch] for batch in batches], images.whole
    if isinstance(images, Stream):
        yield from images.read(batches, seed)
    else:
        yield from map(images.batch, batches)


def chunks(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all images and labels in their order, a few megabytes at a time."""
    return read_batches(images, torch.arange(len(images)).split(_chunk_length(images.shape)))


def _chunk_length(shape: Shape) -> int:
    return max(1, _CHUNK_BYTES // max(1, math.prod(shape)))


def in_memory(images: Images) -> ImageSet:
    """Return a set whose images are all in memory: the set itself, or a copy of what it reads."""
    if isinstance(images, ImageSet):
        return images
    pixels, labels = images.batch(torch.arange(len(images)))
    return ImageSet(pixels, labels, images.classes)


def split_validation(train: Images, size: int = 5000) -> tuple[Images, Images]:
    """Split a training set into the images to train on and the validation images, its last `size`.

    The split is fixed, so that runs are compared on the same images. Nothing is copied.
    """
    if not 0 < size < len(train):
        raise ValueError(f"a validation set must have from 1 to {len(train) - 1} images, got {size}")
    if isinstance(train, Stream):
        return train.split(len(train) - size)
    kept, validation = torch.arange(len(train)).split([len(train) - size, size])
    return Subset(train, kept), Subset(train, validation)
