"""What every foreign-client test needs: a fresh name."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Names nobody used before, because the broker outlives the test."""
    return lambda stem: f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(fresh: Callable[[str], str]) -> str:
    """A topic name nobody used before."""
    return fresh("topic")
