"""The command line: parsing only, each command is one call into the library.

Help and version import neither torch nor a command, so they are fast.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from secateur.cli.complaints import UsageError, complain, show_warning, usage
from secateur.cli.streams import write_what_the_terminal_can_show
from secateur.nearest import require_one_of
from secateur.sentences import sentence

if TYPE_CHECKING:
    from secateur.cli.flags import Command


class Listed(NamedTuple):
    """A command: its module and class, and its help in one sentence."""

    module: str
    name: str
    help: str


# Every command, in the order in which they are listed. A new one is a class, and a line here.
COMMANDS = {
    "compress": Listed(
        "training", "Compress", "Prune a network, quantise what is left and write it as one small file."
    ),
    "prune": Listed("training", "Prune", "Train and prune a network, without quantising its weights."),
    "summary": Listed("summary", "Summary", "Show what would be pruned in a network, before training."),
    "evaluate": Listed("runs", "Evaluate", "Evaluate a finished run on its test set, which is read once."),
    "watch": Listed("runs", "Watch", "Show the page of a run in the browser, and update it while the run trains."),
    "report": Listed("runs", "Report", "Write a page about a run, or about several side by side: one HTML file."),
    "reproduce": Listed("reproduce", "Reproduce", "Run what a table or figure of the paper needs, and show it."),
    "compare": Listed(
        "compare", "Compare", "Compare methods at equal initial weights, images, gradient steps and bytes, over seeds."
    ),
    "pack": Listed("files", "Pack", "Write the tensors of a safetensors file to a .cut file, lossless."),
    "unpack": Listed("files", "Unpack", "Write the tensors of a .cut file to a safetensors file."),
    "export": Listed(
        "files", "Export", "Write a .cut file as ONNX, safetensors or a state dict, or a run for the Hugging Face Hub."
    ),
    "inspect": Listed("files", "Inspect", "Show what a .cut file spends on each tensor."),
    "verify": Listed("files", "Verify", "Decode a .cut file and check every bit of it."),
    "sizes": Listed("files", "Sizes", "Compare the size of the same weights in every format, from dense to entropy."),
    "predict": Listed("running", "Predict", "Classify pictures with the network in a .cut file."),
    "transfer": Listed(
        "transfer", "Transfer", "Compare the features of pruned networks with those of a dense one on other tasks."
    ),
    "bench": Listed("running", "Bench", "Time a network sparse and dense, layer by layer, and under other engines."),
}


def load_command(name: str) -> type[Command]:
    """Import the class of a command."""
    listed = COMMANDS[name]
    kind: type[Command] = getattr(import_module(f"secateur.cli.{listed.module}"), listed.name)
    return kind


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C and 143 after SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    interrupted = "interrupted"
    write_what_the_terminal_can_show()
    try:
        if not words or words[0] in ("-h", "--help"):
            _print_commands()
            _flush()
            return 0 if words else 2
        if words[0] == "--version":
            print(f"secateur {_version()}")
            _flush()
            return 0
        with usage():
            require_one_of("command", words[0], COMMANDS)
        kind = load_command(words[0])
        interrupted = kind.interrupted
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            code = kind.parsed(words[1:])()
            _flush()
            return code
    except UsageError as error:
        return complain(str(error), 2)
    except KeyboardInterrupt as error:  # a training that SIGTERM has ended gives its number
        return complain(interrupted, 128 + (error.args[0] if error.args else signal.SIGINT))
    except BrokenPipeError:  # the reader has closed the pipe, as in `secateur inspect FILE | head`
        _forget_output()
        return 1
    except Exception as error:  # the outermost frame: one line for the user; --debug shows the trace
        if debug:
            traceback.print_exc()
        try:
            _flush()
        except OSError:
            _forget_output()
        return complain(sentence(error), 1)


def _version() -> str:
    try:
        return version("secateur")
    except PackageNotFoundError:
        return "not installed"


def _flush() -> None:
    """Write all output now, so that a failure to do so is noticed."""
    if sys.stdout is not None:  # it is None where the parent process has closed it
        sys.stdout.flush()


def _forget_output() -> None:
    """Redirect output to /dev/null, or Python would report the closed pipe again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_commands() -> None:
    print("secateur shrinks PyTorch networks while they train.\n\ncommands:")
    for name, listed in COMMANDS.items():
        print(f"  {name:10} {listed.help}")
    print("\nsecateur COMMAND --help shows a command's flags; --debug shows the trace of a failure.")
