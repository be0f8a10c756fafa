"""What tests of the command line have in common; the fixture `command` is in conftest.py."""

import re


def sentence(complaint: str) -> str:
    """The one line of a complaint, which holds no trace."""
    assert re.fullmatch(r"secateur: [^\n]+\n", complaint), complaint
    return complaint.removeprefix("secateur: ").rstrip("\n")
