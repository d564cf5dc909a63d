r"""Batches that must be looked into before they can be appended: in a thread where that is long, in order always.

    arrives --> light: inspected and appended at once
            \-> heavy: copied, inspected in a thread --> appended on the loop, in the order of arrival

Each partition has a lane. While something waits in it, whatever comes for that partition waits behind it, heavy or not:
the batches of one connection, and so of one producer, keep their order. Between the checks of an append and the append
there is no wait: what a thread gives back is a batch, and everything else is checked when its turn has come. Two things
are compared with what they were when the batch arrived: the leader epoch, and the topic's settings. If the settings
have changed, it is looked into again.

Lies between stations 4 and 5 of a batch's journey, for those few that need it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.core.clock import Clock
from ottla.core.errors import CorruptMessage, KafkaError, NotLeaderOrFollower
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES, BatchHeader, max_timestamp_of
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.validation.batch_validator import check_client_batch, validate_batch
from ottla.storage.validation.record_validator import RecordValidation, required_validation, validate_records

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

THREADS = 2
HELD_BYTES_MAX = 32 << 20
"""Copies held at once; with more, a connection's next request waits until this one is answered."""


@dataclass(slots=True)
class Inspected:
    """A batch whose turn has come: what to append, or why not."""

    records: memoryview
    config: LogConfig | None  # the settings it was looked into for; None if nobody had to
    refusal: BaseException | None = None


Done = Callable[[Inspected], None]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A batch in its partition's lane."""

    partition: Partition
    leader_epoch: int
    records: memoryview
    done: Done
    config: LogConfig
    held_bytes: int
    outcome: Inspected | None = None


@dataclass(slots=True)
class Inspections:
    """All lanes of one broker."""

    clock: Clock
    held_bytes: int = 0
    _closed: bool = False
    _lanes: dict[TopicPartition, deque[_Waiting]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor | None = None

    @property
    def is_full(self) -> bool:
        """Whether so much is held that clients must not send more before they are answered."""
        return self.held_bytes > HELD_BYTES_MAX

    def may_concern(self, partition: Partition, records: memoryview, *, now_ms: int) -> bool:
        """Whether a client's batch must come through here: almost none must, and this is all that those pay."""
        config = partition.log.config
        return (
            config.requires_record_validation
            or bool(self._lanes)
            or (
                records.nbytes >= HEADER_BYTES and max_timestamp_of(records, 0) > now_ms + config.timestamp_after_max_ms
            )
        )

    def begin(self, partition: Partition, records: memoryview, done: Done, *, now_ms: int) -> None:
        """Look into a client's batch if it must be; `done` is called once, now or when its turn has come.

        `records` may be changed in place and is not kept. Raises the KafkaError to answer with.
        """
        partition.check_serving()
        config = partition.log.config
        task = self._task(records, config, now_ms)
        lane = self._lanes.get(partition.topic_partition)
        if lane is None:
            if task is None:
                done(Inspected(records, config))
                return
            if (light := _inspected_here(records, task, config)) is not None:
                done(light)
                return
        waiting = _Waiting(
            partition, partition.leader_epoch, memoryview(bytearray(records)), done, config, records.nbytes
        )
        self.held_bytes += waiting.held_bytes
        self._lanes.setdefault(partition.topic_partition, deque()).append(waiting)
        self._inspect(waiting, task)

    def close(self) -> None:
        """Stop the threads; what still waits is never appended, nor answered."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()

    @staticmethod
    def _task(records: memoryview, config: LogConfig, now_ms: int) -> RecordValidation | None:
        """What is to be done, if the batch is worth it: everything its header can be refused for comes first."""
        if records.nbytes < HEADER_BYTES:
            raise CorruptMessage(f"{records.nbytes} bytes are no record batch")
        header = BatchHeader(records, 0)
        validate_batch(header, records, config)
        check_client_batch(header)
        return required_validation(header, config, now_ms=now_ms)

    def _inspect(self, waiting: _Waiting, task: RecordValidation | None) -> None:
        """In a thread; what only waits behind others needs none."""
        waiting.outcome = None
        if task is None:
            waiting.outcome = Inspected(waiting.records, waiting.config)
            return
        loop = asyncio.get_running_loop()
        future = self._threads().submit(validate_records, waiting.records, task)
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._returned, waiting, done))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="inspection")
        return self._pool

    def _returned(self, waiting: _Waiting, done: Future[memoryview]) -> None:
        if self._closed:
            return
        error = done.exception()
        records = done.result() if error is None else waiting.records
        waiting.outcome = Inspected(records, waiting.config, error)
        self._advance(waiting.partition.topic_partition)

    def _advance(self, topic_partition: TopicPartition) -> None:
        """Let go all at the head of a lane that are ready."""
        lane = self._lanes.get(topic_partition)
        while lane and (outcome := lane[0].outcome) is not None:
            waiting = lane[0]
            if not self._still_holds(waiting, outcome):
                break
            lane.popleft()
            self.held_bytes -= waiting.held_bytes
            if not lane:
                del self._lanes[topic_partition]
            waiting.done(outcome)

    def _still_holds(self, waiting: _Waiting, outcome: Inspected) -> bool:
        """Whether what was found counts under the rules of this moment; if not, it is looked into again."""
        partition, config = waiting.partition, waiting.partition.log.config
        if partition.leader_epoch != waiting.leader_epoch or not partition.leads:
            outcome.refusal = NotLeaderOrFollower()
        if outcome.refusal is not None or config is waiting.config:
            return True
        waiting.records, waiting.config = outcome.records, config
        try:
            self._inspect(waiting, self._task(waiting.records, config, self.clock.wall_ms()))
        except KafkaError as error:
            waiting.outcome = Inspected(waiting.records, config, error)
        return waiting.outcome is not None and self._still_holds(waiting, waiting.outcome)


def _inspected_here(records: memoryview, task: RecordValidation, config: LogConfig) -> Inspected | None:
    """A light batch, done on the loop; None if it turns out not to be light."""
    if records.nbytes > task.loop_bytes_max:
        return None
    from ottla.records.codecs import TooMuch

    try:
        return Inspected(validate_records(records, task, limit=task.loop_bytes_max), config)
    except TooMuch:
        return None
