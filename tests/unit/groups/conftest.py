"""Holds the state of coordinators of groups equal to a replay of their records, after every step of every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.replayed import Replicas, hold_equal_to_replay


@pytest.fixture(autouse=True)
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    """The replicas of all shards of the test."""
    found = hold_equal_to_replay(monkeypatch)
    yield found
    assert not found.differences, found.differences[0]
