"""What every foreign-client test needs: a fresh name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Broker
from tests.differential.peer import Peer


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Return a maker of unused names, because the broker outlives the test."""
    return lambda stem: f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(fresh: Callable[[str], str]) -> str:
    """Return an unused topic name."""
    return fresh("topic")


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    """Open a connection, with an unused prefix for names."""
    made = Peer(broker.port, {}, f"pitfall-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()
