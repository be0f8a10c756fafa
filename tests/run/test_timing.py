"""Calls are timed fairly."""

import pytest

from secateur.run import timing

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def test_no_call_loses_because_of_the_one_it_follows(monkeypatch):
    # What comes after another call finds nothing in the cache and takes two seconds; after itself it takes one.
    now, before = [0.0], [None]

    def call(name):
        def run():
            now[0] += 1 if before[0] == name else 2
            before[0] = name

        return run

    monkeypatch.setattr(timing, "clock", lambda: now[0])
    assert timing.race([call(name) for name in "abc"], budget_ms=1e6, most=6) == [1e3, 1e3, 1e3]
