"""A plan: which layers of a network run sparse, which of them together, and with which kernel."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from secateur.atomic import write_atomically
from secateur.run.kernels.kernel import Kernel

_VERSION = 1


@dataclass(frozen=True)
class Group:
    """Layers that run as one call, or a layer that stays dense if `kernel` is None; with the times that decided."""

    layers: tuple[str, ...]
    kernel: Kernel | None
    dense_ms: float
    sparse_ms: float  # of the best sparse way, even if dense was faster


@dataclass(frozen=True)
class Plan:
    """How a network runs. It names layers, so it holds for networks with the same layers and the same zeros.

    `weights` are the shapes of the layers and how many weights they have, which tell whether a plan is of this network.
    `batch`, `threads` and `lanes` say what it was made for: it holds for others too, but may not be the best there.
    """

    groups: tuple[Group, ...]
    weights: Mapping[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    batch: int = 1
    threads: int = 1
    lanes: int = 8
    dense_ms: float = math.nan  # of the whole network
    compiled_ms: float = math.nan
    dense: Mapping[str, str] = field(default_factory=dict)  # the layers and weights that stay dense, and why

    @property
    def sparse_groups(self) -> tuple[Group, ...]:
        """The groups that run sparse."""
        return tuple(group for group in self.groups if group.kernel is not None)

    def to_json(self) -> str:
        """Return the plan as JSON."""
        data = _without_nan({"version": _VERSION, **asdict(self)})
        return json.dumps(data, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from text that may be anything."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.pop("version", None) != _VERSION:
                raise ValueError("it is of another version")
            groups = tuple(_group(one) for one in data.pop("groups"))
            weights = {
                _text(name): (_shape(shape), _count(count)) for name, (shape, count) in data.pop("weights").items()
            }
            batch, threads, lanes = (_count(data.pop(name)) for name in ("batch", "threads", "lanes"))
            dense_ms, compiled_ms = (_time(data.pop(name)) for name in ("dense_ms", "compiled_ms"))
            dense = {_text(name): _text(why) for name, why in data.pop("dense", {}).items()}  # earlier plans lack it
            if data:
                raise ValueError(f"it has unknown parts: {', '.join(map(str, data))}")
            names = [name for group in groups for name in group.layers]
            if len(set(names)) < len(names) or set(names) != set(weights):
                raise ValueError("its layers are not those it gives the weights of")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"the plan is damaged ({error}): make a new one with compile_sparse") from error
        return cls(groups, weights, batch, threads, lanes, dense_ms, compiled_ms, dense)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan from a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a plan: it is not text") from error
        try:
            return cls.from_json(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def of_file(cls, metadata: Mapping[str, str], path: str | PathLike[str]) -> Plan | None:
        """Return the plan that a .cut file carries in its metadata, or None if there is none."""
        try:
            return cls.from_json(metadata["plan"]) if "plan" in metadata else None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def require_of(self, weights: Mapping[str, tuple[Sequence[int], int]]) -> None:
        """Refuse a plan that was made for other weights."""
        for name in [*weights, *self.weights]:
            own, other = self.weights.get(name), weights.get(name)
            if own is None or other is None or (tuple(own[0]), own[1]) != (tuple(other[0]), other[1]):
                raise ValueError(
                    f'the plan was made for another network: "{name}" has '
                    f"{_describe(own)} in the plan and {_describe(other)} in the network"
                )

    def require_within(self, weights: Mapping[str, tuple[Sequence[int], int]]) -> None:
        """Refuse a plan whose sparse layers cannot be these layers after removing dead units."""
        for name in (name for group in self.sparse_groups for name in group.layers):
            shape, count = self.weights[name]
            whole = weights.get(name)
            fits = (
                whole is not None
                and len(whole[0]) == len(shape)
                and all(own <= other for own, other in zip(shape, whole[0], strict=True))
                and count <= whole[1]
            )
            if not fits:
                raise ValueError(
                    f'the plan was made for another network: "{name}" has '
                    f"{_describe((shape, count))} in the plan and {_describe(whole)} in the network"
                )


def _without_nan(value: Any) -> Any:
    """Replace NaN and infinity by null: JSON has neither."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe(entry: tuple[Sequence[int], int] | None) -> str:
    return "no weights" if entry is None else f"{entry[1]:,} weights of shape {tuple(entry[0])}"


def _group(data: Any) -> Group:
    kernel = data["kernel"]
    if kernel is not None:
        kernel = {"aligned": False, **kernel}  # earlier plans lack it
        if set(kernel) != {"vectors", "spread", "shared", "aligned"}:
            raise ValueError(f"a kernel has vectors, spread, shared and aligned, got {kernel}")
        shared, aligned = _flag(kernel["shared"]), _flag(kernel["aligned"])
        kernel = Kernel(_count(kernel["vectors"]), _count(kernel["spread"]), shared, aligned)
    if not isinstance(data["layers"], list):
        raise ValueError(f"the layers of a group are a list, got {data['layers']!r}")
    layers = tuple(_text(name) for name in data["layers"])
    if not layers:
        raise ValueError("a group has no layers")
    return Group(layers, kernel, _time(data["dense_ms"]), _time(data["sparse_ms"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a name must be text, got {value!r}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"a flag must be true or false, got {value!r}")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise ValueError(f"a count must be a number ≥ 0, got {value!r}")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_count(size) for size in value)


def _time(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e300:
        raise ValueError(f"a time must be ≥ 0, got {value!r}")
    return float(value)
