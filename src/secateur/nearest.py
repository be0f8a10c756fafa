"""Names and choices that are not known are refused, with those that are."""

from collections.abc import Iterable
from difflib import get_close_matches


def require_choices(config: object, **choices: Iterable[str]) -> None:
    """Raise a ValueError for a setting that is none of its choices, which types cannot keep out."""
    for name, known in choices.items():
        value, listed = getattr(config, name), tuple(known)
        if value not in listed:
            raise ValueError(f"{name} must be one of {', '.join(listed)}, got {value!r}")


def require_one_of(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError that suggests the nearest name, unless `name` is one of those known."""
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"it is one of {', '.join(names)}"
        raise ValueError(f'there is no {kind} "{name}": {hint}')
