"""Declares the port through which a coordinator reads and writes its internal topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from ottla.storage.state.producer_state_manager import VerificationGuard

KeyValue = tuple[bytes, bytes | None]
"""The key and value of a record; None deletes the key."""


class Producer(NamedTuple):
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
    producer: Producer | None = None  # of transactional records and of a marker
    commits: bool | None = None  # a marker commits or aborts the transaction of its producer; None: not a marker
    base_offset: int = 0  # of the batch


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
        """Return the offset that the next append gets, at least. Raises KafkaError."""
        ...

    def delete_records(self, partition: int, before_offset: int) -> None:
        """Delete the records before an offset. Raises KafkaError."""
        ...

    async def append(self, partition: int, records: Sequence[KeyValue], producer: Producer | None = None) -> None:
        """Append as one batch, transactional with a producer; returns once it is durable. Raises KafkaError.

        Called again only after it returned.
        """
        ...

    def read_all(self, partition: int) -> AsyncIterator[LoadedRecords]:
        """Yield everything from the start of the log to its end."""
        ...
