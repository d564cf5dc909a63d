"""Declares the port through which a coordinator reads and writes its internal topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.storage.state.producer_state_manager import VerificationGuard

RECORDS_ON_LOOP_MAX: Final = 500
"""A batch of more records is built in a thread, and loaded in parts."""

KeyValue = tuple[bytes, bytes | None]
"""The key and value of a record; None deletes the key."""


class ProducerIdentity(NamedTuple):
    """Names the producer of transactional records.

    The guard shows that the transaction coordinator has verified the partition (KIP-890); it is needed for the first
    records of a transaction in a partition.
    """

    producer_id: int
    epoch: int
    guard: VerificationGuard | None = None


class LoadedRecords(NamedTuple):
    """Holds records of one batch, or the marker that ends a transaction; a large batch is loaded in parts."""

    records: Sequence[KeyValue] = ()
    producer: ProducerIdentity | None = None  # of transactional records and of a marker
    commits: bool | None = None  # a marker commits or aborts the transaction of its producer; None: not a marker
    base_offset: int = 0  # of the batch


class AppendedBatch(NamedTuple):
    """Holds the place of an appended batch; `replicated` must be awaited once."""

    first_offset: int
    next_offset: int  # of the batch after it
    replicated: Awaitable[None]  # completes once the high watermark has passed the batch; raises KafkaError


class TopicLog(Protocol):
    """Port: reads and appends to one internal topic. `InternalTopic` implements it; tests use lists."""

    @property
    def partitions(self) -> int:
        """Return the number of partitions; 0 before the first use, constant afterwards."""
        ...

    def is_offline(self, partition: int) -> bool:
        """Return whether the partition cannot be read or written because of its disk."""
        ...

    def leader_epoch(self, partition: int) -> int:
        """Return the leader epoch of a partition that this broker leads. Raises KafkaError."""
        ...

    def end_offset(self, partition: int) -> int:
        """Return the offset of the next batch. Raises KafkaError."""
        ...

    def delete_records(self, partition: int, before_offset: int, *, leader_epoch: int) -> None:
        """Delete the records before an offset. Raises KafkaError, also if the leader epoch is not this one any more."""
        ...

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        """Append as one batch, transactional with a producer. Raises KafkaError, then nothing is appended.

        It fails unless this broker leads the partition in this epoch at the moment of the append: a write that was
        queued in an earlier term never reaches the log in a later one. Called again only after it returned.
        """
        ...

    def read_all(self, partition: int, end_offset: int) -> AsyncIterator[LoadedRecords]:
        """Yield everything from the start of the log to an offset, replicated or not. Raises KafkaError."""
        ...

    async def wait_until_replicated(self, partition: int, end_offset: int, *, leader_epoch: int) -> None:
        """Wait until the high watermark reaches an offset. Raises KafkaError if this broker's term ends before."""
        ...
