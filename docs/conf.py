"""How the site is built: `make docs` turns these pages into build/docs/index.html, warnings being errors.

Nothing is fetched, neither while it is built nor while it is read: no fonts, no scripts, no analytics.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "secateur"
author = "the secateur authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = "secateur"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options: dict[str, Any] = {"footer_icons": []}
pygments_style, pygments_dark_style = "default", "monokai"
# `code` in a docstring is code; names in signatures are as a user writes them.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
myst_heading_anchors = 3
# A page links to a line as ../src/…#L12, which a forge understands; here that is a page with the source in it.
myst_url_schemes = {"http": None, "https": None, "source": "source/{{path}}.html#L-{{fragment}}"}

_SOURCE_LINK = re.compile(r"\]\(\.\./((?:src|native|tests|examples|benchmarks)/[\w./-]+)(?:#L(\d+))?\)")
_linked: set[str] = set()


def link_to_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Turn links to files of the project into links to pages that show them, and remember which."""

    def replaced(match: re.Match[str]) -> str:
        _linked.add(match[1])
        return f"](source:{match[1]}#{match[2] or 1})"

    content[0] = _SOURCE_LINK.sub(replaced, content[0])


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Make a page of every source file that is linked to, each line with an anchor."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True)
    for path in sorted(_linked):
        code = (ROOT / path).read_text()
        body = f"<h1>{path}</h1>{highlight(code, get_lexer_for_filename(path), formatter)}"
        yield f"source/{path}", {"title": path, "body": body}, "page.html"


def as_rst(app: Sphinx, what: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Make reStructuredText of our docstrings: bars are bars, indented lines are formulas, fields have their help."""
    written: list[str] = []
    for line in lines:
        if line.startswith("    ") and (not written or not written[-1].strip()):
            written += ["::", ""]
        in_code = line.startswith("    ")
        parts = line.split("`")
        parts[::2] = [part if in_code else re.sub(r"([|*\\])", r"\\\1", part) for part in parts[::2]]
        written.append("`".join(parts))
    if inspect.isclass(target) and is_dataclass(target):
        written += ["", *_field_list(target)]
    lines[:] = written


def _field_list(target: type) -> Iterator[str]:
    hints = get_type_hints(target, include_extras=True)
    for field in fields(target):
        if field.name.startswith("_"):
            continue
        notes = [getattr(note, "documentation", note) for note in getattr(hints[field.name], "__metadata__", ())]
        kind = "" if notes else f": {field.type}"
        default = "" if field.default is MISSING else f" = {field.default!r}"
        yield f"``{field.name}{kind}{default}``"
        if notes:
            escaped = re.sub(r"([|*\\`])", r"\\\1", notes[0])
            yield f"    {escaped}"
        yield ""


def short_signature(
    app: Sphinx, what: str, name: str, target: object, options: object, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Leave a dataclass's signature to the list of its fields."""
    return ("", None) if inspect.isclass(target) and is_dataclass(target) else None


def skip_fields(app: Sphinx, what: str, name: str, target: object, skip: bool, options: object) -> bool | None:
    """Leave out attributes without a docstring of their own: the list of fields has them."""
    return None if callable(target) or isinstance(target, property) or inspect.ismodule(target) else True


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("source-read", link_to_source)
    app.connect("html-collect-pages", source_pages)
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-skip-member", skip_fields)
