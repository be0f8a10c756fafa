"""Decide in place of timing what runs sparse."""

import pytest
from compiled import decide

from secateur.run import selection


@pytest.fixture(params=["samples", "panels"])
def sparse_wins(request, monkeypatch):
    decide(monkeypatch, 0.1, prefer_last=request.param == "panels")


@pytest.fixture
def dense_wins(monkeypatch):
    monkeypatch.setattr(selection, "WIN", 1e9)
