"""What the table of pretrained weights knows about each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from secateur.data.downloads import cache_directory
from secateur.data.fetch import fetch
from secateur.data.files import DataFile
from secateur.data.homes import Home
from secateur.networks.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Weights of a network by name: the files they are in, where these can be downloaded, and how they are read.

    `read` maps the content of the files, by name, to tensors under the network's own names. Tensors whose names begin
    with one of `left_out` are not in the files, and stay random.
    """

    name: str  # of the network
    source: str  # who trained them, in a few words
    files: tuple[DataFile, ...]
    homes: tuple[Home, ...]  # tried in this order
    read: Callable[[Mapping[str, bytes]], dict[str, Tensor]]
    preprocessing: Preprocessing
    left_out: tuple[str, ...] = ()

    def load(self, root: Path | None = None) -> dict[str, Tensor]:
        """Return the tensors, from files in `root`/pretrained/`name` that are downloaded if they are missing.

        The default for `root` is the user's cache directory.
        """
        directory = (cache_directory() if root is None else root) / "pretrained" / self.name
        if any(file.find([directory]) is None for file in self.files):
            names = " and ".join(file.name for file in self.files)
            remedy = f"put {names} into {{directory}}, or give a file with --from PATH"
            fetch(f"the pretrained {self.name}", self.files, self.homes, directory, remedy=remedy)
        found = {file: file.find([directory]) or directory / file.name for file in self.files}
        return self.read({file.name: file.read(path) for file, path in found.items()})
