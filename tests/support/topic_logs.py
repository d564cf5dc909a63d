"""Keeps an internal topic in memory, for tests of coordinators without a broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

from ottla.core.errors import KafkaError
from ottla.internal_topics.log import KeyValue, LoadedRecords, Producer


class MemoryTopicLog:
    """Implements `TopicLog`; what is appended is durable at once. With `failing` nothing can be written."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.batches: dict[int, list[LoadedRecords]] = defaultdict(list)
        self.failing: KafkaError | None = None
        self.offline: set[int] = set()
        self.epoch = 0

    def records(self, partition: int = 0) -> list[KeyValue]:
        """Return the records of a partition, in order."""
        return [record for batch in self.batches[partition] for record in batch.records]

    def is_offline(self, partition: int) -> bool:
        return partition in self.offline

    def leader_epoch(self, partition: int) -> int:
        return self.epoch

    async def append(self, partition: int, records: Sequence[KeyValue], producer: Producer | None = None) -> None:
        if self.failing is not None:
            raise self.failing
        self.batches[partition].append(LoadedRecords(list(records), producer))

    def end_transaction(self, partition: int, producer: Producer, *, commits: bool) -> None:
        """Append a transaction marker."""
        self.batches[partition].append(LoadedRecords((), producer, commits))

    async def read_all(self, partition: int) -> AsyncIterator[LoadedRecords]:
        for batch in list(self.batches[partition]):
            yield batch
