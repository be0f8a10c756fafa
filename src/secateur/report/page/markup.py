"""Sentences as HTML."""

from __future__ import annotations

from markupsafe import Markup, escape


def with_code(text: str) -> Markup:
    """Return a sentence as HTML, with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick too many: nothing is between them
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
