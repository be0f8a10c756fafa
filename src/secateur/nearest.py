"""A name that is not known is answered with the nearest one that is."""

from collections.abc import Iterable
from difflib import get_close_matches


def require_one_of(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError that suggests the nearest name, unless `name` is one of those known."""
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"it is one of {', '.join(names)}"
        raise ValueError(f'there is no {kind} "{name}": {hint}')
