"""Dataclasses to plain data for JSON and back; what does not fit is named by its place."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


class PlainDataError(ValueError):
    """Data that does not have the wanted form; the text names the place, such as `layers[2].kept`."""


def to_plain(value: object) -> Any:
    """Return a value as JSON has it: dataclasses become objects, tuples lists, NaN null and infinity text."""
    if is_dataclass(value) and not isinstance(value, type):
        custom = getattr(value, "to_json", None)
        return custom() if custom else {entry.name: to_plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def from_plain(kind: type[Kind], value: object, place: str = "") -> Kind:
    """Return `value` as an object of `kind`; one that does not fit is a PlainDataError that names the place.

    A field that is missing has its default. Fields that `kind` does not have are refused: they would be lost silently.
    """
    return cast(Kind, _read(kind, value, place))


def _read(kind: Any, value: object, place: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _read(arguments[0], value, place)
    if origin in (Union, types.UnionType):
        return _read_union(arguments, value, place)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(place, f"one of {', '.join(map(str, arguments))}", value)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(place, "a list", value)
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) != len(value):
            raise _wrong(place, f"a list of {len(kinds)}", value)
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(_read(each_kind, each, f"{place}[{index}]") for index, (each_kind, each) in pairs)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(place, "an object", value)
        return {str(key): _read(arguments[1], each, _inside(place, str(key))) for key, each in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_dataclass(kind, value, place)
    return _read_scalar(kind, value, place)


def _read_union(kinds: tuple[Any, ...], value: object, place: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not type(None)]
    for kind in others:
        try:
            return _read(kind, value, place)
        except PlainDataError:
            continue
    return _read(last, value, place)


def _read_dataclass(kind: type, value: object, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(place, "an object", value)
    if hasattr(kind, "from_json"):
        return _called(place, kind.from_json, value)
    hints, known = get_type_hints(kind, include_extras=True), {entry.name: entry for entry in fields(kind)}
    for name in value:
        if name not in known:
            raise PlainDataError(f"{_inside(place, str(name))} is unknown")
    found = {}
    for name, entry in known.items():
        if name in value:
            found[name] = _read(hints[name], value[name], _inside(place, name))
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise PlainDataError(f"{_inside(place, name)} is missing")
    return _called(place, kind, **found)


def _called(place: str, make: Any, *arguments: Any, **settings: Any) -> Any:
    """Construct an object; one that refuses its settings says so with the place."""
    try:
        return make(*arguments, **settings)
    except PlainDataError as error:  # of a part: its place is inside of this one
        raise PlainDataError(_inside(place, str(error))) from None
    except (TypeError, ValueError) as error:
        raise PlainDataError(f"{place}: {error}" if place else str(error)) from error


def _read_scalar(kind: Any, value: object, place: str) -> Any:
    if kind is Any:
        return value
    if kind is float:
        if value is None:
            return math.nan
        if (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("inf", "-inf"):
            return float(value)
        raise _wrong(place, "a number", value)
    words = {int: "a whole number", str: "text", bool: "true or false"}
    if type(value) is not kind:
        raise _wrong(place, words.get(kind, getattr(kind, "__name__", str(kind))), value)
    return value


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _wrong(place: str, wanted: str, value: object) -> PlainDataError:
    shown = repr(value)
    return PlainDataError(f"{place or 'the content'} must be {wanted}, got {shown[:60]}")
