"""Checks of names and settings against the allowed ones."""

from collections.abc import Iterable
from difflib import get_close_matches


def require_choices(config: object, **choices: Iterable[str]) -> None:
    """Raise a ValueError that names the first setting outside its allowed values."""
    for name, known in choices.items():
        value, listed = getattr(config, name), tuple(known)
        if value not in listed:
            raise ValueError(f"{name} must be one of {', '.join(listed)}, got {value!r}")


def require_one_of(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError that suggests the nearest known name, unless `name` is known."""
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"it is one of {', '.join(names)}"
        raise ValueError(f'there is no {kind} "{name}": {hint}')
