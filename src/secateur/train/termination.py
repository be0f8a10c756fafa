"""Notices that the system asks a training to end, so that it ends between two steps and keeps what it has done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Termination:
    """Whether this process was asked to end."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, *_: object) -> None:
        """Take note of it."""
        self.is_asked = True


@contextmanager
def noticing_sigterm() -> Iterator[Termination]:
    """Take note of SIGTERM instead of ending at once; a handler of the caller's own is left alone."""
    found = Termination()
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield found
        return
    signal.signal(signal.SIGTERM, found.ask)
    try:
        yield found
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
