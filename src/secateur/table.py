"""Tables of entries by name (networks, data sets, …), which other packages can extend through entry points."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

from secateur.nearest import require_one_of


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...


Entry = TypeVar("Entry", bound=Named)


class Table(MutableMapping[str, Entry]):
    """A mapping from names to entries: the built-in ones, then those that other packages register.

    A package registers an entry, an object of `entry_type`, as an entry point of `group`. Entry points are loaded when
    a name is looked up that is not built in, or when the whole table is listed; one that cannot be loaded is skipped
    with a warning.
    """

    def __init__(self, kind: str, group: str, entry_type: type[Any], entries: Iterable[Entry]) -> None:
        self.kind, self.group, self._type = kind, group, entry_type
        self._entries = {entry.name: entry for entry in entries}
        self._has_loaded = False

    def find(self, name: str) -> Entry:
        """Return an entry; a ValueError names the nearest one if there is none of that name."""
        if name not in self:
            require_one_of(self.kind, name, self)
        return self[name]

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            self._load_registered()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        built_in = tuple(self._entries)
        yield from built_in
        self._load_registered()
        yield from [name for name in self._entries if name not in built_in]

    def __len__(self) -> int:
        self._load_registered()
        return len(self._entries)

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def _load_registered(self) -> None:
        if self._has_loaded:
            return
        self._has_loaded = True
        for point in entry_points(group=self.group):
            fault = self._load(point)
            if fault is not None:
                package = point.dist.name if point.dist is not None else "a package"
                warnings.warn(
                    f"the {self.kind} {point.name} that {package} registers as {point.value} is skipped: {fault}",
                    stacklevel=4,
                )

    def _load(self, point: EntryPoint) -> str | None:
        """Add the entry of an entry point, or return in a few words why that failed."""
        try:
            entry = point.load()
        except Exception as error:  # importing another package's module can raise anything
            said = str(error).strip().partition("\n")[0]
            return f"{type(error).__name__}: {said}" if said else type(error).__name__
        if not isinstance(entry, self._type):
            return f"it is of type {type(entry).__name__}, not {self._type.__name__}"
        if not isinstance(getattr(entry, "name", None), str):
            return "it has no name"
        if entry.name in self._entries:
            return f'the name "{entry.name}" is already taken'
        self._entries[entry.name] = entry
        return None
