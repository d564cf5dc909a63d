"""Runs one share partition: loads its state, passes requests to its machine, performs writes and lock timers.

A step that fails unexpectedly may have changed the state by half: the share partition is closed, and the next fetch
loads it again. The error is that of a partition that moved, after which every client tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import NamedTuple, Protocol, assert_never

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, KafkaError, NotLeaderOrFollower, error_code_for, error_for
from ottla.core.ids import NO_OFFSET
from ottla.internal_topics.failed_steps import FailedStep
from ottla.internal_topics.machine_events import NO_TICKET
from ottla.internal_topics.waiting_requests import WaitingRequests
from ottla.replication.partition import Partition
from ottla.share_coordinator.coordinator import state_error
from ottla.share_coordinator.machine import StateWrite
from ottla.share_coordinator.persister_port import Persister
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.acknowledgements import AcknowledgementBatch, AcquiredRecords, AcquireMode
from ottla.share_partitions.events import (
    Acknowledge,
    Acquire,
    AvailabilityChanged,
    DeadLetters,
    DeadLettersDone,
    Event,
    LocksDue,
    LogStartMoved,
    NotPersisted,
    Output,
    Persist,
    Persisted,
    Release,
    SharePartitionLimits,
    ShareReply,
    WriteDeadLetters,
)
from ottla.share_partitions.in_flight import InFlightRange
from ottla.share_partitions.machine import NEVER_MS, PartitionMachine
from ottla.share_partitions.offset_reset import LATEST, first_offset
from ottla.share_partitions.record_reading import ReadBatches, read_batches

log = logging.getLogger(__name__)

FENCING = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""Errors of the share coordinator after which the state in memory is invalid."""


class GroupSettings(NamedTuple):
    """Holds the settings of a group that apply to its share partitions."""

    limits: SharePartitionLimits = SharePartitionLimits()
    committed_only: bool = False
    offset_reset: str = LATEST
    dead_letter_topic: str = ""  # without one there is no dead letter queue
    copies_dead_letters: bool = False


class ShareWatcher(Protocol):
    """Waits for records that a share partition may deliver."""

    def share_partition_changed(self) -> None:
        """React to records that became available. Must not raise."""
        ...


class SharePartition:
    """Holds one share partition that this broker leads. `loaded` must be awaited before it is used."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        *,
        persister: Persister,
        clock: Clock,
        settings: Callable[[str], GroupSettings],
        on_closed: Callable[[SharePartition], None],
        on_failed: Callable[[FailedStep], None],
        on_dead_letters: Callable[[SharePartition, tuple[DeadLetters, ...]], None],
        load_delay_s: float = 0.0,
        on_locks_expired: Callable[[int], None] | None = None,
    ) -> None:
        self.key, self.partition = key, partition
        self.watchers: dict[ShareWatcher, None] = {}
        self._persister, self._clock, self._settings, self._on_closed = persister, clock, settings, on_closed
        self._on_failed, self._on_dead_letters = on_failed, on_dead_letters
        self._on_locks_expired = on_locks_expired
        self.dead_letter_writes = 0  # that have begun, and whose records are not archived yet
        self._leader_epoch = partition.leader_epoch
        self._state_epoch = 0
        self._machine: PartitionMachine | None = None
        self._failure: KafkaError | None = None
        self._requests = WaitingRequests[ShareReply]()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._tasks: set[asyncio.Task[None]] = set()
        self._delayed: asyncio.TimerHandle | None = None
        if load_delay_s > 0:
            self._delayed = asyncio.get_running_loop().call_later(load_delay_s, lambda: self._run(self._load()))
        else:
            self._run(self._load())

    # ---- Loading and closing

    @property
    def is_loaded(self) -> bool:
        """Return whether its state is loaded."""
        return self._machine is not None

    @property
    def failure(self) -> KafkaError | None:
        """Return why it cannot be used: loading failed, or another state applies now."""
        if self._failure is None and not self._is_led:
            self.close(NotLeaderOrFollower())
        return self._failure

    @property
    def _is_led(self) -> bool:
        return self.partition.is_serving and self.partition.leader_epoch == self._leader_epoch

    async def _load(self) -> None:
        try:
            result = await self._persister.read(self.key, self._leader_epoch)
            if result.error is not ErrorCode.NONE:
                raise error_for(state_error(result.error), result.message)
            assert result.state is not None
            settings = self._settings(self.key.group_id)
            start = result.state.start_offset
            if start == NO_OFFSET:
                start = first_offset(self.partition, settings.offset_reset, now_wall_ms=self._clock.wall_ms())
            self._state_epoch = result.state.state_epoch
            machine = self._machine = PartitionMachine(start, result.state.batches, settings.limits)
        except KafkaError as error:
            self.close(error_for(state_error(error.code), error.message) if error.retriable else error)
            return
        except Exception as failed:  # the next fetch loads it again
            log.exception("share partition %s cannot be loaded", self.key.text)
            self.close(error_for(error_code_for(failed), str(failed)))
            return
        letters = machine.unwritten_dead_letters()
        if letters:  # another leader, or this broker before a restart, may not have written them
            self._on_dead_letters(self, letters)
        self._notify()

    def close(self, error: KafkaError) -> None:
        """Stop: waiting requests fail, and nothing is written any more."""
        if self._failure is not None:
            return
        self._failure = error
        if self._delayed is not None:
            self._delayed.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._requests.refuse(lambda: error_for(error.code, error.message))
        self._on_closed(self)
        self._notify()

    def _fail(self, event: object, error: Exception) -> None:
        """Stop, because a step failed: the next fetch loads the state again."""
        machine, self._machine = self._machine, None
        if self._failure is None:
            before = None if machine is None else (machine.start_offset, machine.end_offset)
            self._on_failed(FailedStep(self.key.text, event, before, error))
        self.close(NotLeaderOrFollower("The share partition is being loaded again."))

    # ---- Fetching

    def fetch_batches(self, max_bytes: int) -> ReadBatches | None:
        """Read what a fetch may acquire; None if there is nothing now. Raises KafkaError."""
        machine = self._machine
        if machine is None:
            return None
        machine.limits = self._settings(self.key.group_id).limits
        log_start = self.partition.log.log_start_offset
        if log_start > machine.start_offset:
            self._feed(LogStartMoved(log_start))
        if self._machine is None or not machine.can_acquire:
            return None
        committed_only = self._settings(self.key.group_id).committed_only
        return read_batches(
            self.partition, machine.next_fetch_offset, max_bytes=max_bytes, committed_only=committed_only
        )

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return the start offset, and how many offsets from it on are done; None before it is loaded."""
        machine = self._machine
        return None if machine is None else (machine.start_offset, machine.delivery_complete_count)

    def ranges(self) -> list[InFlightRange]:
        """Return the states of all offsets in flight, for descriptions; none before it is loaded."""
        return [] if self._machine is None else self._machine.ranges()

    @property
    def next_fetch_offset(self) -> int:
        """Return the offset from which `fetch_batches` reads; -1 before it is loaded."""
        return NO_OFFSET if self._machine is None else self._machine.next_fetch_offset

    def acquire(
        self, member_id: str, read: ReadBatches, *, max_records: int, batch_size: int, mode: AcquireMode
    ) -> list[AcquiredRecords]:
        """Acquire records of what was read just before, for a member; nothing if the state is not there any more."""
        if self._machine is None:
            return []
        request = Acquire(
            member=member_id,
            fetch_offset=read.offset,
            batches=read.batches,
            max_records=max_records,
            batch_size=max(batch_size, 1),
            mode=mode,
            aborted=read.aborted,
        )
        try:
            acquired, outputs = self._machine.acquire(request, now_ms=self._now_ms())
            self._perform(outputs)
        except Exception as error:  # noqa: BLE001  # it is logged there
            self._fail(request, error)
            return []
        return acquired

    # ---- The end of a delivery

    async def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch]) -> None:
        """Acknowledge records; returns once that is durable. Raises KafkaError."""
        await self._ask(Acknowledge(member=member_id, batches=batches))

    async def release(self, member_id: str) -> None:
        """Release what a member holds; returns once that is durable. Raises KafkaError."""
        await self._ask(Release(member_id))

    async def archive(self, letters: tuple[DeadLetters, ...]) -> None:
        """Archive what the dead letter queue has; returns once that is durable. Raises KafkaError."""
        await self._ask(DeadLettersDone(letters))

    async def _ask(self, event: Event) -> None:
        if self.failure is not None:
            raise error_for(self.failure.code, self.failure.message)
        reply = await self._requests.ask(lambda ticket: self._feed(event, ticket))
        if reply.error is not ErrorCode.NONE:
            raise error_for(reply.error, reply.message)

    # ---- The machine

    def _feed(self, event: Event, ticket: int = NO_TICKET, *, at_least_ms: int = 0) -> None:
        if self._machine is None:  # nothing is acquired yet
            self._perform([ShareReply(ticket, ErrorCode.INVALID_RECORD_STATE)])
            return
        now_ms = max(self._now_ms(), at_least_ms)
        self._machine.limits = self._settings(self.key.group_id).limits
        try:
            self._perform(self._machine.step(event, now_ms=now_ms, ticket=ticket))
        except Exception as error:  # noqa: BLE001  # it is logged there
            self._fail(event, error)

    def _perform(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case ShareReply(ticket):
                    self._requests.answer(ticket, output)
                case Persist():
                    self._run(self._persist(output))
                case WriteDeadLetters(letters):
                    self._on_dead_letters(self, letters)
                case AvailabilityChanged():
                    self._notify()
                case _:
                    assert_never(output)
        self._arm()

    async def _persist(self, output: Persist) -> None:
        write = StateWrite(
            self._state_epoch, self._leader_epoch, output.start_offset, output.delivery_complete_count, output.batches
        )
        try:
            result = await self._persister.write(self.key, write)
            error, message = result.error, result.message
        except Exception as failed:  # noqa: BLE001  # the waiting request gets the error
            error, message = error_code_for(failed), str(failed)
        if self._failure is not None:
            return
        if error is ErrorCode.NONE:
            self._feed(Persisted(output.write))
            return
        error = state_error(error)
        self._feed(NotPersisted(output.write, error, message))
        if error in FENCING:
            self.close(error_for(error, message))

    def _arm(self) -> None:
        """Set the timer to the next lock that expires."""
        machine = self._machine
        at_ms = NEVER_MS if machine is None or self._failure is not None else machine.next_expiry_ms
        if at_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = at_ms
        if at_ms != NEVER_MS:
            delay_s = max(0, at_ms - self._now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._locks_due, at_ms)

    def _locks_due(self, at_ms: int) -> None:
        self._timer, self._timer_ms = None, NEVER_MS
        if self._on_locks_expired is not None and self._machine is not None:
            expired = self._machine.count_expired(max(self._now_ms(), at_ms))
            if expired:
                self._on_locks_expired(expired)
        # The loop's clock and ours may differ by rounding; a timer that fired is due.
        self._feed(LocksDue(), at_least_ms=at_ms)

    def _notify(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.share_partition_changed()

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"share partition {self.key.text}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
