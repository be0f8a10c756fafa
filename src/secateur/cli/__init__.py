"""The command line: parsing only, each command is one call into the library."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence

from secateur.cli.complaints import UsageError, complain, sentence, show_warning, usage
from secateur.cli.files import Inspect, Pack, Sizes, Unpack, Verify
from secateur.cli.flags import Command, parse
from secateur.cli.paper import Reproduce
from secateur.cli.running import Bench, Predict
from secateur.cli.runs import Evaluate, Report, Watch
from secateur.cli.training import Compress, Prune, Summary, Training, parse_on_preset
from secateur.nearest import require_one_of

# Every command, in the order in which they are listed. A new one is a class, and a word here.
COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind
    for kind in (
        Compress,
        Prune,
        Summary,
        Evaluate,
        Watch,
        Reproduce,
        Report,
        Pack,
        Unpack,
        Inspect,
        Verify,
        Sizes,
        Predict,
        Bench,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for a failure, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        if not words or words[0] in ("-h", "--help"):
            _print_commands()
            _flush()
            return 0 if words else 2
        if words[0] == "--version":
            from secateur.experiments.job import versions

            print(f"secateur {versions()['secateur']}")
            _flush()
            return 0
        with usage():
            require_one_of("command", words[0], COMMANDS)
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            code = _chosen(COMMANDS[words[0]], words[1:])()
            _flush()
            return code
    except UsageError as error:
        return complain(str(error), 2)
    except KeyboardInterrupt:
        return complain(COMMANDS.get(words[0], Command).interrupted, 130)
    except BrokenPipeError:  # whoever reads has seen enough, as in `secateur inspect FILE | head`
        _forget_output()
        return 1
    except Exception as error:  # the outermost frame: one line for the user, the trace on request
        if debug:
            traceback.print_exc()
        try:
            _flush()
        except OSError:
            _forget_output()
        return complain(sentence(error), 1)


def _flush() -> None:
    """Write all output: what cannot be written is to be known before the end."""
    if sys.stdout is not None:  # which it is where whoever started us has closed it
        sys.stdout.flush()


def _forget_output() -> None:
    """Send output nowhere, or Python says once more that it cannot be written when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _chosen(kind: type[Command], words: list[str]) -> Command:
    return parse_on_preset(kind, words) if issubclass(kind, Training) else parse(kind, words)


def _print_commands() -> None:
    print("secateur shrinks PyTorch networks while they train.\n\ncommands:")
    for name, kind in COMMANDS.items():
        print(f"  {name:10} {kind.__doc__}")
    print("\nsecateur COMMAND --help shows a command's flags; --debug shows the trace of a failure.")
