"""Writes the security audit log or the events of a broker to an internal topic, as an output of them.

A broker appends to a partition that it leads itself: no request can write to the topic, not even of another broker. The
topic has more partitions than a cluster has brokers, so that each leads some. Entries wait, up to a number, while this
broker leads none; then they are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from ottla.broker.internal_topic_creation import create_if_absent
from ottla.core.entry_queue import EntryQueue
from ottla.core.errors import KafkaError, RequestTimedOut
from ottla.core.ids import TopicPartition
from ottla.records.builder import NewRecord, build_batch
from ottla.replication.high_watermark_waiters import FutureWaiter
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.broker.services import Services

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause before another attempt, while the topic does not exist or this broker leads no partition of it."""
REPLICATED_WITHIN_S = 30.0
CLOSE_WITHIN_S = 1.0
ENTRIES_PER_BATCH = 256
"""A batch has to be smaller than `max.message.bytes`; texts of a client are cut at 1,024 characters."""

E = TypeVar("E", bound=Hashable)

_ALL_ACKS = -1


class EntryTopic(Generic[E]):
    """Appends entries to a partition of the topic that this broker leads. `what` names them in log lines."""

    def __init__(self, services: Services, topic: str, queue: EntryQueue[E], what: str) -> None:
        self._services, self._topic, self._what = services, topic, what
        self.queue = queue
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False

    def put(self, entry: E, now_ms: int) -> None:
        """Have the entry written soon."""
        self.queue.put(entry, now_ms)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name=f"write the {self._what}")

    async def _write_all(self) -> None:
        while len(self.queue):
            try:
                partition = await self._own_partition()
                if partition is not None:
                    await self._write(partition)
                    continue
                reason = "this broker leads no partition of it"
            except KafkaError as error:
                reason = error.message
            except Exception as error:
                log.exception("unexpected error while the %s was written to %s", self._what, self._topic)
                reason = repr(error)
            if not self._is_failing:
                text = "the %s cannot be written to %s, and its entries wait: %s"
                log.warning(text, self._what, self._topic, reason)
            self._is_failing = True
            await asyncio.sleep(RETRY_S)

    async def _own_partition(self) -> Partition | None:
        """Return a partition that this broker leads; creates the topic if there is none. Raises KafkaError."""
        services = self._services
        if self._topic not in services.cluster.current.topics:
            await create_if_absent(services, self._topic)
        topic = services.cluster.current.topics.get(self._topic)
        for state in () if topic is None else topic.partitions:
            if state.leader == services.node_id:
                partition = services.replicas.partitions.get(TopicPartition(self._topic, state.index))
                if partition is not None and partition.is_serving:
                    return partition
        return None

    async def _write(self, partition: Partition) -> None:
        """Append a batch; returns once it is replicated. Raises KafkaError, after which its entries are dropped."""
        now_ms = self._services.clock.wall_ms()
        lines, events = self.queue.take(self._services.node_id, ENTRIES_PER_BATCH)
        try:
            batch = build_batch([NewRecord(value=line, timestamp_ms=now_ms) for line in lines])
            appended = partition.append_as_leader(memoryview(bytearray(batch)), acks=_ALL_ACKS, now_ms=now_ms)
            replicated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            partition.waiters.add(appended.last_offset + 1, FutureWaiter(), replicated)
            await asyncio.wait_for(replicated, REPLICATED_WITHIN_S)
        except TimeoutError:
            self.queue.note_dropped(events, now_ms)
            raise RequestTimedOut(f"its records are not replicated within {REPLICATED_WITHIN_S:g} s") from None
        except Exception:
            self.queue.note_dropped(events, now_ms)
            raise
        if self._is_failing:
            log.info("the %s is written to %s again", self._what, self._topic)
        self._is_failing = False

    async def close(self) -> None:
        """Write what waits, if that is possible soon, and end."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing], timeout=CLOSE_WITHIN_S if not self._is_failing else 0)
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
