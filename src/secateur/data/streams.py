"""Pictures that are read from the disk while a network trains, ahead of it and in several processes."""

from __future__ import annotations

import io
import os
import signal
import stat
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from secateur.data.crops import Box, CropKind, needs_pictures
from secateur.data.images import DataError, ImageSet, Shape
from secateur.data.pictures import printable, read_picture

UNREADABLE = 0.001  # the share of pictures that may be unreadable, one in any case
_MOST_BYTES = 1 << 30  # of one picture
_FEWEST_FOR_PROCESSES = 200  # pictures: fewer are read before the processes have started
_MOST_PROCESSES = 16
_PICTURES_AT_A_TIME = 64  # where all of a set are read
_BATCHES_AHEAD = 2  # for each process


class Place(NamedTuple):
    """Where the bytes of a picture are: a file, or a part of one. With a box, only that part is shown."""

    path: str
    offset: int = 0
    size: int = -1  # −1: to the end of the file
    box: Box | None = None

    def __str__(self) -> str:
        where = printable(self.path)
        return where if self.size < 0 else f"{where} (byte {self.offset:,})"

    def read(self) -> bytes:
        """Return the bytes; a DataError says why there are none."""
        try:
            status = os.stat(self.path)  # noqa: PTH116  (as below; before opening, which waits for ever at a pipe)
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{self} is not a regular file: remove it")
            size = status.st_size - self.offset if self.size < 0 else self.size
            if size > _MOST_BYTES:
                raise DataError(f"{self} has {size:,} bytes, more than the {_MOST_BYTES:,} that are read: remove it")
            with open(self.path, "rb") as file:  # noqa: PTH123  (a million Path objects take half a gigabyte)
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise DataError(f"{self} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, eq=False)
class PictureStream:
    """Pictures that are read when asked for and cut to a shape: at the centre or, for training, at random.

    Without a crop they are stretched to the shape.

    A picture that cannot be read is replaced by the next one that can, with that one's label, and a warning names it.
    A share of `most_unreadable`, at least one picture unless it is 0, may be unreadable; more raise a DataError.
    `processes` read ahead in `read`; without a number, one for each core that there is for this process. `first` is the
    number of the first picture in the set that this is a part of: how a picture is cut depends on its number there.
    """

    places: Sequence[Place]
    labels: Tensor
    classes: tuple[str, ...]
    shape: Shape
    crop: CropKind | None = "centre"
    most_unreadable: float = UNREADABLE
    processes: int | None = None
    first: int = 0
    _faults: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What is wrong with the pictures that could not be read so far, one sentence each."""
        return tuple(self._faults.values())

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Read the pictures at `indices`; return them with their labels. A generator varies them at random."""
        seed = None
        if generator is not None and self.crop is not None and needs_pictures(self.crop):
            seed = int(torch.randint(2**62, (), generator=generator))
        [found] = self.read([indices], seed)
        return found

    def read(self, batches: Sequence[Tensor], seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of pictures and labels by their indices; other processes read them ahead.

        A seed varies the pictures at random, each by the seed and its number in the set alone.
        """
        reader = _Reader(self.shape, self.crop)
        for used, pixels, faults in self._results(reader, batches, seed):
            for position, reason in faults.items():
                used[position] = self._replace(pixels[position], used[position], reason, seed, reader)
            yield pixels, self.labels[torch.tensor(used, dtype=torch.int64)]

    def split(self, at: int) -> tuple[PictureStream, PictureStream]:
        """Return the pictures before an index and those from it on; neither part replaces a picture by the other's."""
        before = replace(self, places=self.places[:at], labels=self.labels[:at])
        return before, replace(self, places=self.places[at:], labels=self.labels[at:], first=self.first + at)

    def read_all(self) -> ImageSet:
        """Read all pictures into memory; unreadable ones are left out, with a warning."""
        pixels = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        is_readable = torch.ones(len(self), dtype=torch.bool)
        reasons: list[str] = []
        for used, found, faults in self._results(
            _Reader(self.shape, self.crop), torch.arange(len(self)).split(_PICTURES_AT_A_TIME)
        ):
            pixels[used] = found
            is_readable[[used[position] for position in faults]] = False
            reasons += faults.values()
        require_few(reasons, len(self), self.most_unreadable)
        for reason in reasons:
            warnings.warn(f"a picture is left out: {reason}", stacklevel=4)
        return ImageSet(
            pixels[is_readable] if reasons else pixels, self.labels[is_readable], self.classes, tuple(reasons)
        )

    def _results(
        self, reader: _Reader, batches: Sequence[Tensor], seed: int | None = None
    ) -> Iterator[tuple[list[int], Tensor, dict[int, str]]]:
        """Yield the indices, the pictures and the faults of batches, read here or, if that is faster, elsewhere."""
        tasks = _Tasks(self, batches, seed)
        processes = min(_processes() if self.processes is None else self.processes, len(batches))
        if self.processes is None and sum(map(len, batches)) < _FEWEST_FOR_PROCESSES:
            processes = 0
        if processes:
            loader: DataLoader[_Read] = DataLoader(
                reader,
                batch_sampler=tasks,  # of pictures, not of indices: the processes need no list of them all
                num_workers=processes,
                collate_fn=_as_it_is,
                prefetch_factor=_BATCHES_AHEAD,
                generator=torch.Generator(),  # the loader draws from torch's global one otherwise
                worker_init_fn=_ignore_sigterm,
            )
            done: Iterator[_Read] = iter(loader)
        else:
            done = map(reader.__getitems__, tasks)
        for pixels, faults in done:
            yield tasks.sent.popleft(), pixels, faults

    def readable(self, index: int) -> int:
        """Return the first index, from this one on, of a picture that is not known to be unreadable."""
        while index in self._faults:
            index = (index + 1) % len(self)
        return index

    def _replace(self, place: Tensor, index: int, reason: str, seed: int | None, reader: _Reader) -> int:
        """Read the next picture that can be read in place of one that cannot; return its index."""
        while True:
            self._skip(index, reason)
            index = self.readable(index)
            try:
                place.copy_(reader.read(_task(self, index, seed)))
                return index
            except DataError as error:
                reason = str(error)

    def _skip(self, index: int, reason: str) -> None:
        if index in self._faults:
            return
        self._faults[index] = reason
        require_few(list(self._faults.values()), len(self), self.most_unreadable)
        warnings.warn(f"a picture is replaced by the next one: {reason}", stacklevel=5)


def require_few(reasons: Sequence[str], total: int, share: float) -> None:
    """Raise a DataError if more pictures are unreadable than can be skipped, or all of them."""
    if share == 0 and reasons:
        raise DataError(reasons[0])
    allowed = min(max(1, int(total * share)), total - 1)
    if len(reasons) > allowed:
        raise DataError(f"more than {allowed:,} of {total:,} pictures cannot be read; the first: {reasons[0]}")


class _Task(NamedTuple):
    """One picture to read."""

    place: Place
    seed: int | None


def _task(stream: PictureStream, index: int, seed: int | None) -> _Task:
    return _Task(stream.places[index], None if seed is None else (seed << 40) + stream.first + index)


_Read = tuple[Tensor, dict[int, str]]  # pixels, and why some of them could not be read


@dataclass(frozen=True)
class _Reader(Dataset["_Read"]):
    """Reads pictures in whatever process it is called."""

    shape: Shape
    crop: CropKind | None

    def __getitems__(self, tasks: Sequence[_Task]) -> _Read:
        pixels, faults = torch.empty(len(tasks), *self.shape, dtype=torch.uint8), {}
        for position, task in enumerate(tasks):
            try:
                pixels[position] = self.read(task)
            except DataError as error:
                faults[position] = str(error)
        return pixels, faults

    def read(self, task: _Task) -> Tensor:
        """Return a picture; a DataError names it and says why it cannot be read."""
        content, name = io.BytesIO(task.place.read()), str(task.place)
        return read_picture(content, name, self.shape, crop=self.crop, seed=task.seed, box=task.place.box)


@dataclass(frozen=True)
class _Tasks:
    """The batches to read as lists of tasks, looked up when their turn comes."""

    stream: PictureStream
    batches: Sequence[Tensor]
    seed: int | None
    sent: deque[list[int]] = field(default_factory=deque)  # the indices of those that are being read

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[_Task]]:
        for indices in self.batches:
            self.sent.append([self.stream.readable(index) for index in indices.tolist()])
            yield [_task(self.stream, index, self.seed) for index in self.sent[-1]]


def _as_it_is(found: Any) -> Any:  # which the loader believes to be a list of samples
    return found


def _ignore_sigterm(_: int) -> None:
    """Go on when a scheduler asks all processes of a job to end: the one that trains ends its readers itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _processes() -> int:
    """Return how many processes may read for this one: as many as it has cores, shared with others of a torchrun."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_PROCESSES, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
