"""Holds the share partitions that consumers of this broker use, and the consumers' sessions.

A share partition is loaded with the first fetch and unloaded with the last session of its group, or when another state
applies: another leader, or offsets that were altered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, KafkaError, NotCoordinator, error_code_for
from ottla.core.repeated_failures import RepeatedFailures
from ottla.internal_topics.failed_steps import FailedStep
from ottla.replication.partition import Partition
from ottla.share.config import ShareConfig
from ottla.share.persister import Persister
from ottla.share.sessions import SessionPartition, ShareSession, ShareSessions
from ottla.share.share_partition import GroupSettings, SharePartition
from ottla.share.state_records import SharePartitionKey
from ottla.share.states import AcknowledgementBatch

log = logging.getLogger(__name__)


class AcknowledgeResult(NamedTuple):
    """Holds the result of the acknowledgements of one partition."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class SharePartitionManager:
    """Serves ShareFetch and ShareAcknowledge; one per broker."""

    def __init__(
        self, config: ShareConfig, *, persister: Persister, clock: Clock, settings: Callable[[str], GroupSettings]
    ) -> None:
        self.sessions = ShareSessions(config.max_sessions)
        self._persister, self._clock, self.settings = persister, clock, settings
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = RepeatedFailures()

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
                load_delay_s=delay_s,
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
            self.unload(key for key in self._partitions if key.group_id == session.group_id)

    def connection_lost(self, connection_id: int) -> None:
        """End the sessions that a connection opened; its client has disconnected."""
        for session in self.sessions.of_connection(connection_id):
            self._run(self.end_session(session))

    def unload(self, keys: Iterable[SharePartitionKey]) -> None:
        """Unload share partitions; the next fetch loads their state again."""
        for key in list(keys):
            found = self._partitions.get(key)
            if found is not None:
                found.close(NotCoordinator("The share partition is unloaded."))

    async def close(self) -> None:
        """Unload all share partitions."""
        self.unload(list(self._partitions))
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
