"""What several commands leave behind: the page of a run."""

from __future__ import annotations

from rich.console import Console

from secateur.cli.complaints import sentence
from secateur.experiments.rundir import RunDirectory, RunError
from secateur.report.terminal import say


def leave_page(console: Console, directory: RunDirectory) -> None:
    """Write the page of a run; what keeps it from being written is said, and is no failure of the run."""
    from secateur.report.page import write_page

    try:
        write_page([directory], directory.page)
    except (ModuleNotFoundError, OSError, RunError) as error:
        say(console, f"No page was written ({sentence(error)}); later: secateur report {directory.path}")
