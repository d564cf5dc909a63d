r"""Validates the records of batches before they are appended: of heavy ones off the loop, and always in order.

    arrives --> light: validated and appended at once
            \-> heavy: copied, validated by the executor --> appended on the loop, in the order of arrival

Each partition has a queue. While a batch waits in it, every later batch of that partition waits after it, heavy or not:
the batches of one connection, and so of one producer, keep their order. Between the checks of an append and the append
there is no wait: what the executor returns is a batch, and everything else is checked when its turn has come. Two
things are compared with what they were when the batch arrived: the leader epoch, and the topic's settings. If the
settings have changed, the batch is validated again.

What decompresses to many times its size is validated by one thread of its own, one batch of each partition in turn: a
client that sends such batches leaves the threads, and a processor, to others.

Small uncompressed batches do not pass through here: the log validates them in place (`storage/validation/`).
Comes between steps 4 and 5 on the path of a batch (ARCHITECTURE.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from typing import Final, Protocol

from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, NotLeaderOrFollower, detached
from ottla.core.executors import Executor, Post
from ottla.core.ids import TopicPartition
from ottla.core.runtime import make_executor
from ottla.records.batch import BatchHeader
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.validation.batch_validator import check_client_batch, read_header, validate_batch
from ottla.storage.validation.record_validator import (
    LOOP_RECORDS_MAX,
    NOT_PLAIN,
    RecordValidation,
    required_validation,
    validate_records,
)

logger = logging.getLogger(__name__)

THREADS: Final = 2
BOMB_THREADS: Final = 1
"""Of what decompresses to more than `_decompressed_max`: on two processors, a thread on each would delay the loop."""
_LIKELY_RATIO: Final = 4  # of compression, so that few batches are decompressed on the loop in vain
_DECOMPRESSED_BYTES_MIN: Final = 1 << 20
_RATIO_MAX: Final = 8
_M_MMAP_THRESHOLD: Final = -3  # of mallopt(3)
_LARGE_BYTES: Final = 4 << 20
HELD_BYTES_MAX = 32 << 20
"""Copies held at once; with more, a connection's next request waits until this one is answered."""


class ValidatedBatch:
    """A batch whose turn has come: what to append, or why not.

    A refusal is never raised from here and has no traceback: its frames would keep what the batch was unpacked to, and
    the batch itself, in a reference cycle.
    """

    __slots__ = ("config", "records", "refusal")

    def __init__(self, records: memoryview, config: LogConfig, refusal: BaseException | None = None) -> None:
        self.records = records if refusal is None else _NO_RECORDS
        self.config = config  # the settings that it was validated for
        self.refusal = None if refusal is None else detached(refusal)


_NO_RECORDS: Final = memoryview(b"")


class ValidationListener(Protocol):
    """Receives a batch when it is validated."""

    def batch_validated(self, partition: Partition, part: object, batch: ValidatedBatch) -> None:
        """Take a validated batch, once, in the partition's order of arrival. Must not raise."""
        ...


class _QueuedBatch:
    """A batch in its partition's queue, and the job that validates it."""

    __slots__ = (
        "_queue",
        "_result",
        "_task",
        "config",
        "held_bytes",
        "is_bomb",
        "leader_epoch",
        "listener",
        "outcome",
        "part",
        "partition",
        "records",
    )

    def __init__(
        self,
        queue: RecordValidationQueue,
        partition: Partition,
        records: memoryview,
        config: LogConfig,
        listener: ValidationListener,
        part: object,
    ) -> None:
        self._queue = queue
        self._task: RecordValidation | None = None
        self._result: ValidatedBatch | None = None
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.records = records
        self.config = config
        self.listener = listener
        self.part = part
        self.held_bytes = records.nbytes
        self.is_bomb = False  # as far as is known
        self.outcome: ValidatedBatch | None = None

    def begin(self, task: RecordValidation | None) -> bool:
        """Prepare the validation; False if the batch only waits for those before it."""
        self._task = task
        self.outcome = ValidatedBatch(self.records, self.config) if task is None else None
        return task is not None

    def run(self) -> None:
        """Validate, off the loop."""
        assert self._task is not None
        from ottla.records.codecs import TooMuch  # late: cramjam is needed by few brokers at once

        limit = None if self.is_bomb else _decompressed_max(self.records.nbytes)
        try:
            self._result = ValidatedBatch(validate_records(self.records, self._task, limit=limit), self.config)
        except TooMuch:
            self.is_bomb = True
        except KafkaError as error:
            self._result = ValidatedBatch(self.records, self.config, error)
        except Exception as error:
            logger.exception("the validation of a batch of %s failed", self.partition.topic_partition)
            self._result = ValidatedBatch(self.records, self.config, error)

    def finished(self) -> None:
        """Take the result, on the loop. A thread keeps its last job: it must not keep the batch with it."""
        if self._result is None:
            self._queue.submit(self)
            return
        if self.is_bomb:
            self._queue.begin_next_bomb()
        self.outcome, self._result, self._task = self._result, None, None
        self.records = _NO_RECORDS
        self._queue.advance(self.partition.topic_partition)


class RecordValidationQueue:
    """The queues of all partitions of one broker."""

    def __init__(self, clock: Clock, executor: Executor, for_bombs: Executor) -> None:
        self._clock = clock
        self._executor, self._for_bombs = executor, for_bombs
        self._bombs: OrderedDict[TopicPartition, deque[_QueuedBatch]] = OrderedDict()  # the next one's turn first
        self._validates_bomb = False
        self._closed = False
        self._has_heavy = False  # a batch has come that is validated in a thread
        self._queues: dict[TopicPartition, deque[_QueuedBatch]] = {}
        self.held_bytes = 0

    @classmethod
    def with_threads(cls, clock: Clock, post: Post) -> RecordValidationQueue:
        """Return queues with threads of their own."""
        return cls(
            clock,
            make_executor("record-validation", post, threads=THREADS),
            make_executor("record-bombs", post, threads=BOMB_THREADS),
        )

    @property
    def is_full(self) -> bool:
        """Whether so much is held that clients must not send more before they are answered."""
        return self.held_bytes > HELD_BYTES_MAX

    def is_required(self, partition: Partition, header: BatchHeader | None, now_ms: int) -> bool:
        """Return whether a client's batch must pass through here and not be validated in place by the log."""
        if self._queues:
            return True
        config = partition.log.config
        if header is None or not (
            header.attributes & NOT_PLAIN or config.target_codec or header.record_count > LOOP_RECORDS_MAX
        ):
            return False
        return config.requires_record_validation or header.max_timestamp > now_ms + config.timestamp_after_max_ms

    def validate(
        self, partition: Partition, records: memoryview, listener: ValidationListener, part: object, now_ms: int
    ) -> None:
        """Validate a client's batch if it needs it; `listener.batch_validated` is called once, now or in its turn.

        `records` may be changed in place and is not kept. Raises the KafkaError to respond with.
        """
        partition.check_serving()
        config = partition.log.config
        header = read_header(records)
        task = _task_of(header, records, config, now_ms)
        queue = self._queues.get(partition.topic_partition)
        if queue is None:
            if task is None:
                listener.batch_validated(partition, part, ValidatedBatch(records, config))
                return
            if (light := _validated_on_loop(header, records, task, config)) is not None:
                listener.batch_validated(partition, part, light)
                return
        batch = _QueuedBatch(self, partition, memoryview(bytearray(records)), config, listener, part)
        self.held_bytes += batch.held_bytes
        self._queues.setdefault(partition.topic_partition, deque()).append(batch)
        if batch.begin(task):
            if not self._has_heavy:
                self._has_heavy = True
                _return_large_buffers()
            self.submit(batch)

    def submit(self, batch: _QueuedBatch) -> None:
        """Have a batch validated in a thread."""
        if self._closed:
            return
        if not batch.is_bomb:
            self._executor.submit(batch)
            return
        self._bombs.setdefault(batch.partition.topic_partition, deque()).append(batch)
        if not self._validates_bomb:
            self.begin_next_bomb()

    def begin_next_bomb(self) -> None:
        """Begin with the bomb whose turn it is, if there is one; others of its partition come after those of others."""
        self._validates_bomb = bool(self._bombs) and not self._closed
        if self._validates_bomb:
            topic_partition, waiting = self._bombs.popitem(last=False)
            self._for_bombs.submit(waiting.popleft())
            if waiting:
                self._bombs[topic_partition] = waiting

    async def close(self) -> None:
        """Stop the executors; batches that still wait are neither appended nor answered."""
        self._closed = True
        for executor in (self._executor, self._for_bombs):
            await asyncio.to_thread(executor.close)

    def advance(self, topic_partition: TopicPartition) -> None:
        """Release all batches at the head of a queue that are ready."""
        queue = self._queues.get(topic_partition)
        while not self._closed and queue and (outcome := queue[0].outcome) is not None:
            batch = queue[0]
            if not self._is_still_valid(batch, outcome):
                break
            queue.popleft()
            batch.outcome = None
            self.held_bytes -= batch.held_bytes
            if not queue:
                del self._queues[topic_partition]
            batch.listener.batch_validated(batch.partition, batch.part, outcome)

    def _is_still_valid(self, batch: _QueuedBatch, outcome: ValidatedBatch) -> bool:
        """Return whether the outcome holds under the settings of this moment; if not, the batch is validated again."""
        partition, config = batch.partition, batch.partition.log.config
        if partition.leader_epoch != batch.leader_epoch or not partition.leads:
            outcome.refusal = NotLeaderOrFollower()
            return True
        if outcome.refusal is not None or config is batch.config:
            return True
        batch.records, batch.config = outcome.records, config
        try:
            if batch.begin(_task_of(read_header(batch.records), batch.records, config, self._clock.wall_ms())):
                self.submit(batch)
        except KafkaError as error:
            batch.outcome = ValidatedBatch(batch.records, config, error)
        return batch.outcome is not None and self._is_still_valid(batch, batch.outcome)


def _task_of(header: BatchHeader, records: memoryview, config: LogConfig, now_ms: int) -> RecordValidation | None:
    """Return the validation that a batch needs. Everything that its header can be refused for is checked first."""
    validate_batch(header, records, config)
    check_client_batch(header)
    return required_validation(header, config, now_ms=now_ms)


def _decompressed_max(compressed_bytes: int) -> int:
    """Return how much an ordinary batch of so many bytes decompresses to at most."""
    return max(_DECOMPRESSED_BYTES_MIN, _RATIO_MAX * compressed_bytes)


def _validated_on_loop(
    header: BatchHeader, records: memoryview, task: RecordValidation, config: LogConfig
) -> ValidatedBatch | None:
    """Validate a light batch; None if it is likely to be heavy, or turns out to be."""
    limit = task.loop_bytes_max(header.record_count)
    if records.nbytes * (_LIKELY_RATIO if header.codec else 1) > limit:
        return None
    from ottla.records.codecs import TooMuch

    try:
        return ValidatedBatch(validate_records(records, task, limit=limit), config)
    except TooMuch:
        return None


def _return_large_buffers() -> None:
    """Have buffers of 4 MiB or more mapped one by one. Does nothing where the C library has no such setting.

    By default glibc raises the limit to the largest buffer freed so far. Then such buffers come from the heaps of the
    threads, which keep about twice that size each.
    """
    import ctypes  # late: few brokers need it

    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    except (AttributeError, OSError, TypeError):
        return
