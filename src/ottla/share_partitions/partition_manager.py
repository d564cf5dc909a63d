"""Holds the share partitions that consumers of this broker use, and the consumers' sessions.

A share partition is loaded with the first fetch and unloaded with the last session of its group, or when another state
applies: another leader, or offsets that were altered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, KafkaError, NotCoordinator, error_code_for
from ottla.core.events import EventKind, EventLog
from ottla.core.repeated_failures import RepeatedFailures
from ottla.internal_topics.failed_steps import FailedStep
from ottla.replication.partition import Partition
from ottla.share_coordinator.persister_port import Persister
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.acknowledgements import AcknowledgementBatch
from ottla.share_partitions.config import ShareConfig
from ottla.share_partitions.dead_letters import DeadLetterQueues
from ottla.share_partitions.events import DeadLetters
from ottla.share_partitions.sessions import SessionPartition, ShareSession, ShareSessions
from ottla.share_partitions.share_partition import GroupSettings, SharePartition

log = logging.getLogger(__name__)

_SHOWN_MAX = 5


class AcknowledgeResult(NamedTuple):
    """Holds the result of the acknowledgements of one partition."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class SharePartitionManager:
    """Serves ShareFetch and ShareAcknowledge; one per broker."""

    def __init__(
        self,
        config: ShareConfig,
        *,
        persister: Persister,
        dead_letters: DeadLetterQueues,
        clock: Clock,
        settings: Callable[[str], GroupSettings],
        events: EventLog | None = None,
    ) -> None:
        self._events = events
        self.sessions = ShareSessions(config.max_sessions)
        self._persister, self._clock, self.settings = persister, clock, settings
        self._dead_letters = dead_letters
        self._dead_letter_writes: set[asyncio.Task[None]] = set()
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = RepeatedFailures()

    def __len__(self) -> int:
        """Return how many share partitions are in use."""
        return len(self._partitions)

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """Return a share partition that is in use; None if there is none."""
        return self._partitions.get(key)

    def find_or_load(self, key: SharePartitionKey, partition: Partition) -> SharePartition:
        """Return a share partition, which may have to be loaded yet."""
        found = self._partitions.get(key)
        if found is None or found.failure is not None:
            last = self._failures.find(key)
            delay_s = 0.0 if last is None else last.until_s - asyncio.get_running_loop().time()
            found = self._partitions[key] = SharePartition(
                key,
                partition,
                persister=self._persister,
                clock=self._clock,
                settings=self.settings,
                on_closed=self._closed,
                on_failed=lambda step: self._step_failed(key, step),
                on_dead_letters=self._begin_dead_letters,
                load_delay_s=delay_s,
                on_locks_expired=partial(self._record_expired, key, partition.topic_partition.topic),
            )
        return found

    def _step_failed(self, key: SharePartitionKey, step: FailedStep) -> None:
        """Log a failed step; a share partition that fails again and again is loaded later and later."""
        now_s = asyncio.get_running_loop().time()
        failure = self._failures.note(key, now_s)
        if failure.times > 1:
            text = "share partition %s failed again, %d times now: %r; it is loaded again after %d s"
            log.error(text, key.text, failure.times, step.error, round(failure.until_s - now_s))
        else:
            text = "a step of share partition %s failed: the next fetch loads it again. Please report this as a bug: %s"
            log.error(text, key.text, step.description, exc_info=step.error)

    def _record_expired(self, key: SharePartitionKey, topic: str, count: int) -> None:
        if self._events is not None:
            self._events.record(
                EventKind.LOCKS_EXPIRED,
                "members did not acknowledge records within group.share.record.lock.duration.ms: they are delivered "
                "again",
                topic=topic,
                partition=key.partition,
                group=key.group_id,
                numbers={"records": count},
            )

    def _closed(self, closed: SharePartition) -> None:
        if self._partitions.get(closed.key) is closed:
            del self._partitions[closed.key]

    async def acknowledge(
        self, session: ShareSession, batches: Mapping[SessionPartition, Sequence[AcknowledgementBatch]]
    ) -> dict[SessionPartition, AcknowledgeResult]:
        """Acknowledge records of several partitions; returns once that is durable or has failed."""
        results = await asyncio.gather(
            *(self._acknowledge(session, partition, content) for partition, content in batches.items())
        )
        return dict(zip(batches, results, strict=True))

    async def _acknowledge(
        self, session: ShareSession, partition: SessionPartition, batches: Sequence[AcknowledgementBatch]
    ) -> AcknowledgeResult:
        found = self.find(SharePartitionKey(session.group_id, *partition))
        if found is None:
            return AcknowledgeResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            await found.acknowledge(session.member_id, batches)
        except KafkaError as error:
            return AcknowledgeResult(error_code_for(error), error.message)
        return AcknowledgeResult()

    async def end_session(self, session: ShareSession) -> None:
        """End a session; what its member holds is released."""
        if not self.sessions.is_open(session):
            return
        self.sessions.remove(session)
        keys = [SharePartitionKey(session.group_id, *partition) for partition in session.partitions]
        await asyncio.gather(
            *(found.release(session.member_id) for key in keys if (found := self.find(key)) is not None),
            return_exceptions=True,
        )
        if not self.sessions.has_group(session.group_id):
            idle = [key for key, partition in self._partitions.items() if not partition.dead_letter_writes]
            self.unload(key for key in idle if key.group_id == session.group_id)

    def connection_lost(self, connection_id: int) -> None:
        """End the sessions that a connection opened; its client has disconnected."""
        for session in self.sessions.of_connection(connection_id):
            self._run(self.end_session(session))

    # ---- Dead letters

    def _begin_dead_letters(self, partition: SharePartition, letters: tuple[DeadLetters, ...]) -> None:
        partition.dead_letter_writes += 1
        if self._events is not None:
            causes = sorted({one.cause for one in letters})
            self._events.record(
                EventKind.DEAD_LETTER,
                f"records became dead letters: {'; '.join(causes[:3])}",
                topic=partition.partition.topic_partition.topic,
                partition=partition.key.partition,
                group=partition.key.group_id,
                numbers={"records": sum(one.last - one.first + 1 for one in letters), "first": letters[0].first},
            )
        task = asyncio.get_running_loop().create_task(self._write_dead_letters(partition, letters))
        self._dead_letter_writes.add(task)
        task.add_done_callback(self._dead_letter_writes.discard)

    async def _write_dead_letters(self, partition: SharePartition, letters: tuple[DeadLetters, ...]) -> None:
        """Write dead letters and archive them, also if the write is given up. Meanwhile their states stay loaded."""
        key = partition.key
        places = ", ".join(f"{one.first} to {one.last}" for one in letters[:_SHOWN_MAX])
        try:
            await self._dead_letters.write(key, partition.partition, letters)
        except Exception as error:  # noqa: BLE001  # whatever it is, the records are archived
            text = "records of %s that group %s archived are not all in its dead letter queue (offsets %s%s): %s"
            more = ", ..." if len(letters) > _SHOWN_MAX else ""
            reason = error.message if isinstance(error, KafkaError) else repr(error)
            log.error(text, partition.partition.topic_partition, key.group_id, places, more, reason)  # noqa: TRY400
        try:
            await partition.archive(letters)
        except KafkaError as error:  # after the next load they are written again
            text = "dead letters of %s are written, and could not be archived (offsets %s): %s"
            log.warning(text, key.text, places, error.message)
        partition.dead_letter_writes -= 1
        if not partition.dead_letter_writes and not self.sessions.has_group(key.group_id):
            partition.close(NotCoordinator("The share partition is unloaded."))

    # ---- Unloading

    def unload(self, keys: Iterable[SharePartitionKey]) -> None:
        """Unload share partitions; the next fetch loads their state again."""
        for key in list(keys):
            found = self._partitions.get(key)
            if found is not None:
                found.close(NotCoordinator("The share partition is unloaded."))

    async def close(self) -> None:
        """Unload all share partitions. Dead letters that are not written are written after the next load."""
        self.unload(list(self._partitions))
        for task in tuple(self._dead_letter_writes):
            task.cancel()
        while self._tasks or self._dead_letter_writes:
            await asyncio.gather(*self._tasks, *self._dead_letter_writes, return_exceptions=True)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
