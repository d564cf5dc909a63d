"""What every foreign-client test needs: a fresh name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Broker
from tests.differential.peer import Peer


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Names nobody used before, because the broker outlives the test."""
    return lambda stem: f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(fresh: Callable[[str], str]) -> str:
    """A topic name nobody used before."""
    return fresh("topic")


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    """A connection, and a stem nobody used before."""
    made = Peer(broker.port, {}, f"trap-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()
