"""A coordinator whose process was stopped for longer than its session answers nothing from before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from ottla.core.errors import NotCoordinator
from ottla.internal_topics.session_check import SessionCheck
from ottla.metadata_store.store import OutcomeUnknown, SessionLost
from ottla.testing.sim_loop import SimClock, SimLoop
from tests.unit.internal_topics.test_terms import ANOTHER, NODE, OffsetsPartitionHarness, written_elsewhere

pytestmark = pytest.mark.simulated_time

SESSION_S = 6.0


class Paused:
    """A coordinator with a check, whose process a test can stop."""

    def __init__(self, harness: OffsetsPartitionHarness) -> None:
        self.harness = harness
        self.confirmations: list[Callable[[], None]] = []  # what each learns, the next one first; it may raise
        self.confirmed = 0
        self.check = SessionCheck(SimClock(), SESSION_S, self._confirm)
        harness.coordinator.led.session_check = self.check
        self.check.start()

    async def _confirm(self) -> None:
        await asyncio.sleep(0.2)
        if self.confirmations:
            self.confirmations.pop(0)()
        self.confirmed += 1

    def stop(self, seconds: float) -> None:
        """Let time pass in which nothing runs."""
        cast("SimLoop", asyncio.get_running_loop()).advance(seconds)

    def refused(self) -> None:
        with pytest.raises(NotCoordinator):
            self.harness.committed()


@pytest.fixture
async def paused() -> AsyncIterator[Paused]:
    harness = OffsetsPartitionHarness()
    harness.elect(NODE, 0)
    await harness.coordinator.led.wait_until_loaded()
    paused = Paused(harness)
    await harness.commit(1)
    yield paused
    await paused.check.close()
    await harness.coordinator.close()


async def test_offsets_that_another_broker_has_replaced_meanwhile_are_never_answered(paused: Paused) -> None:
    harness = paused.harness
    paused.confirmations.append(lambda: harness.elect(ANOTHER, 1))
    harness.log.put(0, written_elsewhere(2))
    paused.stop(SESSION_S + 1)
    paused.refused()  # although it does not know of the other one yet
    await asyncio.sleep(0.1)
    paused.refused()
    await asyncio.sleep(1)
    paused.refused()
    assert paused.confirmed == 1
    harness.elect(NODE, 2)
    await harness.loaded()
    assert harness.committed() == 2


async def test_a_session_that_is_alive_is_used_again(paused: Paused) -> None:
    paused.stop(SESSION_S - 1)  # the last sign of life may have been sent long before
    paused.refused()
    await asyncio.sleep(1)
    assert paused.harness.committed() == 1
    assert paused.confirmed == 1


async def test_short_stalls_and_idle_times_are_no_gap(paused: Paused) -> None:
    for _ in range(5):
        paused.stop(SESSION_S / 3)
        assert paused.harness.committed() == 1
        await asyncio.sleep(10 * SESSION_S)
        assert paused.harness.committed() == 1
    assert paused.confirmed == 0


async def test_a_lost_session_is_followed_by_another_one_and_a_second_gap_by_another_confirmation(
    paused: Paused,
) -> None:
    def fail(error: Exception) -> Callable[[], None]:
        def raise_it() -> None:
            raise error

        return raise_it

    paused.confirmations += [fail(SessionLost("/")), fail(OutcomeUnknown("/"))]
    paused.confirmations += [lambda: paused.stop(2 * SESSION_S), paused.refused]
    paused.stop(2 * SESSION_S)
    paused.refused()
    await asyncio.sleep(5)  # which the second gap ends
    paused.refused()
    await asyncio.sleep(1)
    assert paused.harness.committed() == 1
    assert paused.confirmed == 2, "the first of them was from before the second gap"
    assert not paused.confirmations
