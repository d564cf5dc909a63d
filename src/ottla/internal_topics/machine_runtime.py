"""Runs a pure state machine of a coordinator: its waiting requests, and its writes with their timeouts.

Events enter the machine one at a time with no `await` in between. An answer is sent only after the records before it
are durable, because the machine orders its outputs so.

A step that fails unexpectedly may have changed the state by half. The runtime is closed then, and its coordinator loads
the state again (`failed_steps.py`); the waiting requests get an error after which clients try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ottla.core.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError, NotCoordinator
from ottla.internal_topics.failed_steps import FailedStep
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Stored
from ottla.internal_topics.topic_log import KeyValue
from ottla.internal_topics.waiting_requests import WaitingRequests
from ottla.internal_topics.write_errors import coordinator_write_error
from ottla.internal_topics.writer import PartitionWriter

MachineT = TypeVar("MachineT")
EventT = TypeVar("EventT")
AnswerT = TypeVar("AnswerT")


class MachineRuntime(Generic[MachineT, EventT, AnswerT]):
    """Holds the waiting requests and the pending writes of one key of a coordinator: a group, a transactional id."""

    def __init__(self, key: str, writer: PartitionWriter, on_failed: Callable[[FailedStep], None]) -> None:
        self._key, self._writer, self._on_failed = key, writer, on_failed
        self.is_open = True
        self._requests = WaitingRequests[AnswerT]()
        self._storing: dict[tuple[MachineT, int], asyncio.TimerHandle] = {}  # the timeout of each write

    async def ask(self, event: EventT) -> AnswerT:
        """Pass a request to the machine and wait for its answer, which a later event may produce.

        Raises NotCoordinator if the runtime was closed while the request was prepared.
        """
        if not self.is_open:
            raise NotCoordinator
        return await self._requests.ask(lambda ticket: self.feed(event, ticket))

    def feed(self, event: EventT | Stored | NotStored | Loaded, ticket: int = NO_TICKET) -> None:
        """Do one step of the machine and perform its outputs. It never raises: see `fail`."""
        raise NotImplementedError

    def fail(self, event: object, before: object, error: Exception) -> None:
        """Stop, because a step failed and the state may be changed by half; the coordinator loads it again."""
        self.close(CoordinatorLoadInProgress)
        self._on_failed(FailedStep(self._key, event, before, error))

    def loaded(self) -> None:
        """Continue with a state that was read from the log."""
        self.feed(Loaded())

    def close(self, reason: Callable[[], KafkaError] = NotCoordinator) -> None:
        """Stop: fail the waiting requests; results of pending writes are ignored."""
        self.is_open = False
        for timeout in self._storing.values():
            timeout.cancel()
        self._storing.clear()
        self._requests.refuse(reason)

    def _store(self, machine: MachineT, write: int, records: Sequence[KeyValue], timeout_s: float) -> None:
        key = machine, write
        self._storing[key] = asyncio.get_running_loop().call_later(
            timeout_s, self._written, key, records, ErrorCode.REQUEST_TIMED_OUT
        )
        self._writer.write(records, lambda error: self._written(key, records, error))

    def _written(self, key: tuple[MachineT, int], records: Sequence[KeyValue], error: ErrorCode) -> None:
        timeout = self._storing.pop(key, None)
        if timeout is None:  # it timed out, or the runtime is closed
            if error is ErrorCode.NONE and self.is_open:
                self._stored_late(key[0], records)
            return
        timeout.cancel()
        machine, write = key
        if error is ErrorCode.NONE:
            self._feed_result(machine, records, Stored(write))
        else:
            self._feed_result(machine, records, NotStored(write, coordinator_write_error(error)))

    def _stored_late(self, machine: MachineT, records: Sequence[KeyValue]) -> None:
        """Note that the records of a write that timed out are durable all the same."""

    def _feed_result(self, machine: MachineT, records: Sequence[KeyValue], result: Stored | NotStored) -> None:
        """Pass the result of a write of these records to the machine that asked for it."""
        raise NotImplementedError
