"""How old the snapshot may be, by the clock and by what the store confirms."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from ottla.metadata_store.snapshot_age import RETRY_S, SnapshotAge
from ottla.metadata_store.store import SessionLost
from ottla.testing.sim_loop import SimClock

pytestmark = pytest.mark.simulated_time

AGE_MAX_S = 8.0


class Store:
    """Confirms at once, later, or not at all."""

    def __init__(self) -> None:
        self.syncs = 0
        self.takes_s = 0.0
        self.error: Exception | None = None

    async def sync(self) -> None:
        self.syncs += 1
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def age(store: Store) -> AsyncIterator[SnapshotAge]:
    made = SnapshotAge(SimClock(asyncio.get_running_loop()), AGE_MAX_S, store.sync)
    made.start()
    yield made
    await made.close()


async def test_it_is_confirmed_several_times_within_its_greatest_age(age: SnapshotAge, store: Store) -> None:
    await asyncio.sleep(10 * AGE_MAX_S)
    assert not age.is_too_old()
    assert 35 <= store.syncs <= 45


@pytest.mark.parametrize("error", [SessionLost("/"), RuntimeError("a bug")])
async def test_it_is_too_old_without_a_confirmation_until_there_is_one(
    age: SnapshotAge, store: Store, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.sleep(0.1)
    store.error = error
    await asyncio.sleep(AGE_MAX_S - 1)
    assert not age.is_too_old()
    await asyncio.sleep(4)
    with caplog.at_level(logging.WARNING):
        assert age.is_too_old() and age.is_too_old()
        store.error = None
        await asyncio.sleep(2 * RETRY_S)
        assert not age.is_too_old()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("has confirmed nothing" in line for line in lines) == 1
    assert sum("clients are served again" in line for line in lines) == 1


async def test_what_a_late_answer_confirms_is_what_was_committed_before_the_question(
    age: SnapshotAge, store: Store
) -> None:
    await asyncio.sleep(0.1)
    store.takes_s = AGE_MAX_S + 3  # more than it may be old
    await asyncio.sleep(4 * AGE_MAX_S)
    assert age.is_too_old()
    store.takes_s = 0.0
    await asyncio.sleep(2 * AGE_MAX_S)
    assert not age.is_too_old()
