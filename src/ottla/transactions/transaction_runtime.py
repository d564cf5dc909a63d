"""Runs one transactional id: passes events to its state machine and performs the outputs (answers, writes, markers).

A record that is durable changes the state by the method that loads it (`TransactionShard.apply`), before the machine
learns of it. A write is awaited to its end, also after its timeout, so that the state lacks no record of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import NamedTuple, Protocol, assert_never

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, KafkaError, NotCoordinator, error_code_for
from ottla.internal_topics.failed_steps import FailedStep
from ottla.internal_topics.machine_events import NO_TICKET, NotStored, Reply, Stored
from ottla.internal_topics.machine_runtime import MachineRuntime
from ottla.internal_topics.write_errors import coordinator_write_error
from ottla.internal_topics.writer import PartitionWriter
from ottla.transactions.events import (
    AllocateProducerId,
    Event,
    MarkersSent,
    Output,
    Retry,
    RetryTimer,
    SendMarkers,
    TransactionAnswer,
    WriteMetadata,
    WriteTimedOut,
)
from ottla.transactions.machine import TransactionMachine
from ottla.transactions.marker_port import MarkerSender, TransactionMarker
from ottla.transactions.metadata import TransactionMetadata
from ottla.transactions.records import TransactionRecord, encode

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
    apply: Callable[[TransactionRecord], None]
    on_failed: Callable[[FailedStep], None]


class TransactionRuntime(MachineRuntime[TransactionMachine, Event, TransactionAnswer]):
    """Holds one transactional id of this coordinator: its machine, waiting requests and tasks."""

    def __init__(self, transactional_id: str, metadata: TransactionMetadata, environment: Environment) -> None:
        super().__init__(transactional_id, environment.writer, environment.on_failed)
        self.transactional_id = transactional_id
        self.machine = TransactionMachine(metadata)
        self._environment = environment
        self._failed: dict[str, str] = {}  # markers that were not written, with the error
        self._retry: asyncio.TimerHandle | None = None
        self._write_timeout: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._settling: asyncio.Future[None] | None = None

    @property
    def metadata(self) -> TransactionMetadata:
        """Return the state in the log; that of a new id is not there yet."""
        return self.machine.metadata

    async def wait_until_settled(self, within_ms: int) -> bool:
        """Wait until no transition is in progress; returns False when the time is over."""
        if self._settling is None:
            self._settling = asyncio.get_running_loop().create_future()
        settled, _ = await asyncio.wait([self._settling], timeout=within_ms / 1000)
        return bool(settled)

    def feed(self, event: Event, ticket: int = NO_TICKET) -> None:
        """Do one step of the machine and perform its outputs. It never raises: see `fail`."""
        if not self.is_open:
            return
        before = self.machine.metadata, self.machine.pending
        try:
            for output in self.machine.step(event, now_ms=self._environment.clock.wall_ms(), ticket=ticket):
                self._perform(output)
        except Exception as error:  # noqa: BLE001  # it is logged there
            self.fail(event, before, error)
            return
        if self._settling is not None and self.machine.pending is None:
            if not self._settling.done():
                self._settling.set_result(None)
            self._settling = None

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed id have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self, reason: Callable[[], KafkaError] = NotCoordinator) -> None:
        """Stop: cancel timers and tasks and fail the waiting requests; results of pending writes are ignored."""
        for timer in (self._retry, self._write_timeout):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        super().close(reason)
        if self._settling is not None and not self._settling.done():
            self._settling.set_result(None)  # who waits finds out that the id is not here any more

    # ---- Outputs

    def _perform(self, output: Output) -> None:
        match output:
            case Reply(ticket, answer):
                self._requests.answer(ticket, answer)
            case WriteMetadata(write, metadata):
                self._write(write, TransactionRecord(self.transactional_id, metadata))
            case SendMarkers():
                self._run(self._send_markers(output))
            case Retry(delay_ms):
                self._retry = asyncio.get_running_loop().call_later(delay_ms / 1000, self.feed, RetryTimer())
            case AllocateProducerId():
                self._run(self._allocate(output))
            case _:
                assert_never(output)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _write(self, write: int, record: TransactionRecord) -> None:
        timeout_s = max(self.metadata.timeout_ms, WRITE_TIMEOUT_MS_MIN) / 1000
        self._write_timeout = asyncio.get_running_loop().call_later(timeout_s, self.feed, WriteTimedOut(write))
        self._writer.write([encode(record)], lambda error: self._write_ended(write, record, error))

    def _write_ended(self, write: int, record: TransactionRecord, error: ErrorCode) -> None:
        if not self.is_open:
            return
        if self._write_timeout is not None:
            self._write_timeout.cancel()  # there is one write at a time
        if error is not ErrorCode.NONE:
            self.feed(NotStored(write, coordinator_write_error(error)))
            return
        self._environment.apply(record)
        self.feed(Stored(write))

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
                self._perform(Reply(output.ticket, TransactionAnswer(error_code_for(error))))
            return
        self.feed(replace(output.event, new_producer_id=producer_id), output.ticket)
