"""Requests that wait: each completes once, at its deadline at the latest, and leaves no state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.broker import delayed_operations
from ottla.broker.delayed_operations import DelayedOperation, DelayedOperations
from ottla.net.connection import PendingResponse
from ottla.testing.sim_loop import SimLoop
from ottla.wire.errors import MalformedRequest
from tests.support.hot_messages import CollectedResponse

pytestmark = [pytest.mark.simulated_time, pytest.mark.plain_form("its operations are subclasses of a compiled class")]


class Operation(DelayedOperation):
    """Notes when it responded, or raises."""

    def __init__(self, collected: CollectedResponse, error: Exception | None = None) -> None:
        super().__init__(collected.pending)
        self.error = error
        self.responded_at: float | None = None
        self.on_response: Callable[[], None] = lambda: None
        self.expired = False

    def respond(self, response: PendingResponse) -> None:
        if self.error is not None:
            raise self.error
        self.responded_at = asyncio.get_running_loop().time()
        response.send((b"done",))
        self.on_response()

    def expire(self) -> None:
        self.expired = True
        self.complete()


async def test_each_operation_expires_at_its_own_deadline_whatever_the_order_of_arrival() -> None:
    delayed, seconds = DelayedOperations(), [5.0, 1.0, 3.0, 1.0, 0.0, 4.0]
    operations = [Operation(CollectedResponse()) for _ in seconds]
    for operation, timeout in zip(operations, seconds, strict=True):
        delayed.add(operation, timeout)
    await asyncio.sleep(10)
    assert [operation.responded_at for operation in operations] == seconds
    assert len(delayed) == 0


async def test_a_completed_operation_does_not_expire_and_the_next_one_still_does() -> None:
    delayed = DelayedOperations()
    early, late = Operation(CollectedResponse()), Operation(CollectedResponse())
    delayed.add(early, 1)
    delayed.add(late, 2)
    early.complete()
    early.complete()
    await asyncio.sleep(5)
    assert (early.expired, late.expired) == (False, True)
    assert (early.responded_at, late.responded_at) == (0, 2)


async def test_an_operation_that_is_added_by_the_end_of_another_one_holds_up_none_that_waits() -> None:
    """The response to a request makes room for the next one of its connection, which may wait much longer."""
    delayed = DelayedOperations()
    first, second, added = (Operation(CollectedResponse()) for _ in range(3))
    first.on_response = lambda: delayed.add(added, 60)
    delayed.add(first, 1)
    delayed.add(second, 2)
    await asyncio.sleep(100)
    assert (first.responded_at, second.responded_at, added.responded_at) == (1, 2, 61)


async def test_an_operation_that_cannot_expire_holds_up_none_that_waits() -> None:
    class Broken(Operation):
        def expire(self) -> None:
            raise ValueError("a bug")

    delayed, second = DelayedOperations(), Operation(CollectedResponse())
    delayed.add(Broken(CollectedResponse()), 1)
    delayed.add(second, 2)
    await asyncio.sleep(100)
    assert second.responded_at == 2
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    (failed,) = loop.unseen
    assert isinstance(failed["exception"], ValueError)
    loop.unseen.clear()


async def test_completed_operations_keep_no_connection_and_do_not_pile_up() -> None:
    delayed = DelayedOperations()
    waiting = [Operation(CollectedResponse()) for _ in range(10)]
    for operation in waiting:
        delayed.add(operation, 60)
    for _ in range(20 * delayed_operations._PURGE_AT):
        done = Operation(CollectedResponse())
        delayed.add(done, 30)
        done.complete()
        assert done.response is None
    assert len(delayed) <= delayed_operations._PURGE_AT + 1
    await asyncio.sleep(100)
    assert {operation.responded_at for operation in waiting} == {60}


async def test_an_error_of_one_response_closes_its_connection_and_no_other() -> None:
    delayed = DelayedOperations()
    for error in (MalformedRequest("no"), ValueError("a bug")):
        bad, good = CollectedResponse(), CollectedResponse()
        delayed.add(Operation(bad, error), 1)
        delayed.add(Operation(good), 1)
        await asyncio.sleep(2)
        assert bad.is_closed
        assert bad.pending.parts == ()
        assert not good.is_closed
        assert await good.pending_bytes() == b"done"
