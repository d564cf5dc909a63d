"""Runs one transactional id: passes events to its state machine and performs the outputs (answers, writes, markers).

Events enter the machine one at a time with no `await` in between. An answer is sent only after the records before it
are durable, because the machine orders its outputs so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import NamedTuple, Protocol, assert_never

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, NotCoordinator, error_code_for
from ottla.internal_topics.waiting_requests import WaitingRequests
from ottla.internal_topics.write_errors import coordinator_write_error
from ottla.internal_topics.writer import PartitionWriter
from ottla.transactions import records
from ottla.transactions.events import (
    NO_TICKET,
    AllocateProducerId,
    Answer,
    Event,
    Loaded,
    MarkersSent,
    NotStored,
    Output,
    Remove,
    Reply,
    Retry,
    RetryTimer,
    SendMarkers,
    Store,
    Stored,
)
from ottla.transactions.machine import Machine
from ottla.transactions.markers import MarkerSender, TransactionMarker
from ottla.transactions.metadata import TransactionMetadata

log = logging.getLogger(__name__)


NAME_SHOWN_MAX = 100
"""Characters of a transactional id in a log line."""

WRITE_TIMEOUT_MS_MIN = 5_000
"""A write may take as long as the transactions of its id, but at least so long: the timeout may be a millisecond."""


class ProducerIds(Protocol):
    """Port: allocates producer ids that are unique in the cluster."""

    async def allocate(self) -> int:
        """Return a new id. Raises KafkaError."""
        ...


class Environment(NamedTuple):
    """Holds what the transactional ids of one partition share."""

    writer: PartitionWriter  # its leader epoch is the coordinator epoch
    clock: Clock
    markers: MarkerSender
    producer_ids: ProducerIds
    remove: Callable[[str], None]


class TransactionRuntime:
    """Holds one transactional id of this coordinator: its machine, waiting requests and tasks."""

    def __init__(self, transactional_id: str, metadata: TransactionMetadata, environment: Environment) -> None:
        self.transactional_id = transactional_id
        self.machine = Machine(metadata)
        self._environment = environment
        self._is_open = True
        self._requests = WaitingRequests[Answer]()
        self._storing: dict[int, asyncio.TimerHandle] = {}  # by store: the timeout of its write
        self._failed: dict[str, str] = {}  # markers that were not written, with the error
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._settling: asyncio.Future[None] | None = None

    @property
    def metadata(self) -> TransactionMetadata:
        """Return the durable state."""
        return self.machine.metadata

    async def ask(self, event: Event) -> Answer:
        """Pass a request to the machine and wait for its answer. Raises NotCoordinator."""
        if not self._is_open:
            raise NotCoordinator
        return await self._requests.ask(lambda ticket: self.feed(event, ticket))

    async def wait_until_settled(self, within_ms: int) -> bool:
        """Wait until no transition is in progress; returns False when the time is over."""
        if self._settling is None:
            self._settling = asyncio.get_running_loop().create_future()
        settled, _ = await asyncio.wait([self._settling], timeout=within_ms / 1000)
        return bool(settled)

    def feed(self, event: Event, ticket: int = NO_TICKET) -> None:
        """Do one step of the machine and perform its outputs."""
        if not self._is_open:
            return
        for output in self.machine.step(event, now_ms=self._environment.clock.wall_ms(), ticket=ticket):
            self._perform(output)
        if self._settling is not None and self.machine.pending is None:
            if not self._settling.done():
                self._settling.set_result(None)
            self._settling = None

    def loaded(self) -> None:
        """Complete a transaction that was decided before the state was read from the log."""
        self.feed(Loaded())

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed id have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Stop: cancel timers and tasks and fail the waiting requests."""
        self._is_open = False
        for handle in self._storing.values():
            handle.cancel()
        self._storing.clear()
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        self._requests.refuse(NotCoordinator)
        if self._settling is not None and not self._settling.done():
            self._settling.set_result(None)  # who waits finds out that the id is not here any more

    # ---- Outputs

    def _perform(self, output: Output) -> None:
        match output:
            case Reply(ticket, answer):
                self._requests.answer(ticket, answer)
            case Store(store, metadata):
                self._store(store, metadata)
            case SendMarkers():
                self._run(self._send_markers(output))
            case Retry(delay_ms):
                self._retry = asyncio.get_running_loop().call_later(delay_ms / 1000, self.feed, RetryTimer())
            case AllocateProducerId():
                self._run(self._allocate(output))
            case Remove():
                self.close()
                self._environment.remove(self.transactional_id)
            case _:
                assert_never(output)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _store(self, store: int, metadata: TransactionMetadata | None) -> None:
        timeout_s = max(self.metadata.timeout_ms, WRITE_TIMEOUT_MS_MIN) / 1000
        self._storing[store] = asyncio.get_running_loop().call_later(
            timeout_s, self._written, store, ErrorCode.REQUEST_TIMED_OUT
        )
        value = None if metadata is None else records.transaction_value(metadata)
        pair = (records.transaction_key(self.transactional_id), value)
        self._environment.writer.write([pair], lambda error: self._written(store, error))

    def _written(self, store: int, error: ErrorCode) -> None:
        handle = self._storing.pop(store, None)
        if handle is None:  # it timed out, or the id is closed
            return
        handle.cancel()
        self.feed(Stored(store) if error is ErrorCode.NONE else NotStored(store, coordinator_write_error(error)))

    async def _send_markers(self, output: SendMarkers) -> None:
        marker = TransactionMarker(
            producer_id=output.producer_id,
            producer_epoch=output.producer_epoch,
            committed=output.committed,
            coordinator_epoch=self._environment.writer.leader_epoch,
            version=output.version,
        )
        results = await self._environment.markers.send(marker, output.partitions)
        failed = {str(where): error.name for where, error in results.items() if error is not ErrorCode.NONE}
        if failed and failed != self._failed:  # once, not at every retry
            log.warning(
                "markers of transactional id %r are not written yet: %s", self.transactional_id[:NAME_SHOWN_MAX], failed
            )
        self._failed = failed
        self.feed(MarkersSent(results))

    async def _allocate(self, output: AllocateProducerId) -> None:
        try:
            producer_id = await self._environment.producer_ids.allocate()
        except Exception as error:  # noqa: BLE001  # the request must get the error
            if output.ticket != NO_TICKET:
                self._perform(Reply(output.ticket, Answer(error_code_for(error))))
            return
        self.feed(replace(output.event, new_producer_id=producer_id), output.ticket)
