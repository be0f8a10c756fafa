"""The flags of a command are the fields of a dataclass: tyro reads the words, and what it says is put in ours."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from contextlib import redirect_stderr
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args

import tyro
from typing_extensions import Doc

from secateur.cli.complaints import UsageError, usage
from secateur.nearest import require_one_of


class Command(ABC):
    """A dataclass whose fields are flags and whose docstring is their help; what was chosen is called."""

    interrupted: ClassVar[str] = "interrupted"  # what is said after Ctrl-C

    @abstractmethod
    def __call__(self) -> int:
        """Carry the command out and return its exit code."""


Chosen = TypeVar("Chosen", bound=Command)


def named(placeholder: str) -> Any:
    """Say what a positional argument is called in the help."""
    return tyro.conf.arg(metavar=placeholder)


def optional(placeholder: str) -> Any:
    """Say what an argument is called in the help whose text says what happens without it."""
    return tyro.conf.arg(metavar=placeholder, help_behavior_hint="")


# Flags that mean the same in several commands.
DataRoot = Annotated[Path | None, optional("PATH"), Doc("where data sets are kept, instead of the user's cache")]
Json = Annotated[bool, Doc("print JSON and nothing else")]
KeptIn = Annotated[Path, Doc("where runs are kept")]
NewestOf = Annotated[Path, Doc("where the newest run is looked for")]


def parse(command: type[Chosen], words: list[str], default: Chosen | None = None) -> Chosen:
    """Read a command's flags; a word that has no place among them is a UsageError."""
    options: dict[str, Any] = {} if default is None else {"default": default}
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint), _NUMBERS:
            parsed, unknown = tyro.cli(
                command,
                args=words,
                prog=f"secateur {command.__name__.lower()}",
                config=(tyro.conf.OmitArgPrefixes,),
                return_unknown_args=True,
                **options,
            )
    except SystemExit as end:
        if not end.code:
            raise  # --help
        # Where an argument may be left out, tyro takes an unknown flag for it and complains of something else.
        parsed, unknown = None, _strangers(command, words)
        if not unknown:
            raise UsageError(_unboxed(complaint.getvalue())) from None
    if unknown and not unknown[0].startswith("-"):
        raise UsageError(f'there is no place for "{unknown[0]}": secateur {command.__name__.lower()} --help')
    with usage():
        for word in unknown[:1]:
            require_one_of("flag", word.split("=")[0], flags(command))
    return cast(Chosen, parsed)


def flags(command: type) -> list[str]:
    """Return every flag of a command, those of nested configurations included."""
    found = []
    for entry in fields(command):
        if isinstance(entry.default_factory, type):
            found += flags(entry.default_factory)
        elif "Positional" not in str(entry.type):
            found.append(f"--{entry.name.replace('_', '-')}")
    return found


def _strangers(command: type, words: list[str]) -> list[str]:
    """Return the words that look like flags and are none, in any spelling: --data_root, --no-json."""
    known = {spelling for flag in flags(command) for spelling in (flag, flag.replace("--", "--no-", 1))}
    typed = [word for word in words if word.startswith("--")]
    return [word for word in typed if word.split("=")[0].replace("_", "-") not in known]


_NUMBERS = tyro.constructors.ConstructorRegistry()


@_NUMBERS.primitive_rule
def _number_or_none(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Call a number that may be absent INT or FLOAT in the help, and its absence none; tyro says {None}|FLOAT."""
    kind = next((kind for kind in (int, float) if set(get_args(info.type)) == {kind, type(None)}), None)
    if kind is None:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if words[0].lower() == "none" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, (int, kind)),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def _unboxed(complaint: str) -> str:
    """Turn the box that tyro draws around a complaint into one line: the text between its first two rules."""
    said = [*re.split("[─-]{4,}", complaint), complaint][1]
    said = re.sub(r"[│╮\s]+", " ", said).strip()
    for pattern, ours in _REWORDED:
        said = re.sub(pattern, ours, said)
    return said


# What tyro says in the words of Python, in those of the command line.
_REWORDED = (
    (r"^Error parsing (--\S+): .*?'(.*)'\]?$", r'\1 cannot be "\2"'),
    (r"^Error parsing (?!-)\S+: ", ""),
    (r"^invalid choice '(.*)' for argument '(\S+)'\. Expected one of \('(.*)'\)\.$", r'\2 cannot be "\1", but \3'),
    (r"(?<=\w)', '(?=\w)", ", "),
    (r"^Missing value for argument '(\S+)'.*$", r"\1 needs a value"),
    (r"^Missing from secateur \w+: (\S+) (.*?) \(required\).*$", r"\1 is missing: \2"),
)
