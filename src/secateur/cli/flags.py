"""The flags of a command are the fields of a dataclass; tyro parses them, and its messages are reworded."""

from __future__ import annotations

import io
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import redirect_stderr
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args

import tyro
from typing_extensions import Doc, Self

from secateur.cli.complaints import UsageError, usage
from secateur.nearest import require_one_of


class Command(ABC):
    """A dataclass whose fields are flags and whose docstring is their help; an instance is called."""

    interrupted: ClassVar[str] = "interrupted"  # the message after Ctrl-C

    @classmethod
    def parsed(cls, words: list[str]) -> Self:
        """Return the command with the flags that the user typed."""
        return parse(cls, words)

    @abstractmethod
    def __call__(self) -> int:
        """Carry the command out and return its exit code."""


Chosen = TypeVar("Chosen", bound=Command)


def named(placeholder: str) -> Any:
    """Set the name of a positional argument in the help."""
    return tyro.conf.arg(metavar=placeholder)


def optional(placeholder: str, *, flag: str | None = None) -> Any:
    """Set the name of an argument in the help whose text explains its default; `flag` is its own if not the field's."""
    return tyro.conf.arg(metavar=placeholder, help_behavior_hint="", name=flag)


# Flags that mean the same in several commands.
DataRoot = Annotated[Path | None, optional("PATH"), Doc("where data sets are kept, instead of the user's cache")]
Json = Annotated[bool, Doc("print JSON and nothing else")]
KeptIn = Annotated[Path, Doc("where runs are kept")]
NewestOf = Annotated[Path, Doc("where to look for the newest run")]
Trust = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    optional("MODULE"),
    Doc(
        "import this module, and those of the package if it is one, to build a network that is not ours; may be given "
        "several times"
    ),
]
Classes = Annotated[int | None, optional("INT"), Doc("number of classes to build the network for, instead of its own")]
InputShape = Annotated[
    tuple[int, int, int] | None,
    optional("C H W"),
    Doc("channels, height and width of inputs to build the network for, instead of its own"),
]
FileOrRun = Annotated[
    tyro.conf.Positional[Path | None],
    optional("[FILE_OR_RUN]"),
    Doc("a .cut file or the directory of a run; none: the newest finished run"),
]


def allow_imports(trust: Collection[str]) -> tuple[str, ...]:
    """Return the modules that the user trusts; if there are any, the current directory is searched, as by python -m."""
    from secateur.networks.imported import require_module_names

    with usage():
        require_module_names(trust)
    here = str(Path.cwd())
    if trust and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return tuple(trust)


def file_of(chosen: Path | None, runs: Path) -> Path:
    """Return the .cut file that the user chose: the file itself, that of a run, or that of the newest finished run."""
    from secateur.experiments.directory import RunDirectory, newest_finished

    if chosen is None:
        return newest_finished(runs).file
    return RunDirectory(chosen).file if chosen.is_dir() else chosen


def model_of(chosen: Path) -> Path:
    """Return the safetensors file that a user means: the file itself, or the finished network of a run."""
    from secateur.experiments.directory import RunDirectory

    run = RunDirectory(chosen)
    return run.model if run.job.exists() else chosen


def parse(command: type[Chosen], words: list[str], default: Chosen | None = None) -> Chosen:
    """Parse a command's flags; an unknown word is a UsageError."""
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
        # If an argument is optional, tyro takes an unknown flag for it and reports another error.
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
        if entry.default_factory is not MISSING and is_dataclass(nested := entry.default_factory()):
            found += flags(type(nested))
        elif "Positional" not in str(entry.type):
            # A field that ends in an underscore has a name that is a keyword of Python.
            found.append(f"--{entry.name.removesuffix('_').replace('_', '-')}")
    return found


def _strangers(command: type, words: list[str]) -> list[str]:
    """Return the words that look like flags but are unknown in every spelling (--data_root, --no-json)."""
    known = {spelling for flag in flags(command) for spelling in (flag, flag.replace("--", "--no-", 1))}
    typed = [word for word in words if word.startswith("--")]
    return [word for word in typed if word.split("=")[0].replace("_", "-") not in known]


_NUMBERS = tyro.constructors.ConstructorRegistry()


@_NUMBERS.primitive_rule
def _number_or_none(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Show an optional number as INT or FLOAT in the help, and its absence as none; tyro shows {None}|FLOAT."""
    if set(get_args(info.type)) == {tuple[int, int, int], type(None)}:
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=3,
            metavar="INT INT INT",
            instance_from_str=lambda words: tuple(map(int, words)),
            is_instance=lambda value: value is None or isinstance(value, tuple),
            str_from_instance=lambda value: ["none"] if value is None else [*map(str, value)],
        )
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
    """Turn tyro's boxed error into one line: the text between its first two rules."""
    said = [*re.split("[─-]{4,}", complaint), complaint][1]
    said = re.sub(r"[│╮\s]+", " ", said).strip()
    for pattern, ours in _REWORDED:
        said = re.sub(pattern, ours, said)
    return said


# tyro's messages, and ours in their place.
_REWORDED = (
    (r"^Error parsing (--\S+): .*?'(.*)'\]?$", r'\1 cannot be "\2"'),
    (r"^Error parsing (?!-)\S+: ", ""),
    (r"^invalid choice '(.*)' for argument '(\S+)'\. Expected one of \('(.*)'\)\.$", r'\2 cannot be "\1", but \3'),
    (r"(?<=\w)', '(?=\w)", ", "),
    (r"^Missing value for argument '(\S+)'.*$", r"\1 needs a value"),
    (r"^Missing from secateur \w+: (\S+) (.*?) \(required\).*$", r"\1 is missing: \2"),
)
