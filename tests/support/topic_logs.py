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
        self.starts: dict[int, int] = defaultdict(int)
        self.ends: dict[int, int] = defaultdict(int)

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
        self.batches[partition].append(
            LoadedRecords(list(records), producer, base_offset=self._next_offset(partition, len(records)))
        )

    def end_transaction(self, partition: int, producer: Producer, *, commits: bool) -> None:
        """Append a transaction marker."""
        self.batches[partition].append(LoadedRecords((), producer, commits, self._next_offset(partition, 1)))

    def end_offset(self, partition: int) -> int:
        return self.ends[partition]

    def delete_records(self, partition: int, before_offset: int) -> None:
        self.starts[partition] = max(self.starts[partition], before_offset)

    def _next_offset(self, partition: int, count: int) -> int:
        self.ends[partition] += count
        return self.ends[partition] - count

    async def read_all(self, partition: int) -> AsyncIterator[LoadedRecords]:
        start = self.starts[partition]
        for batch in list(self.batches[partition]):
            if batch.base_offset + max(len(batch.records), 1) > start:
                yield batch
