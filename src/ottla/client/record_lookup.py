"""Reads one record by its offset, with the header of its batch: who wrote it, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.core.errors import OffsetOutOfRange
from ottla.core.files import FileRegion
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.records.batch import BatchHeader, split
from ottla.records.record_reader import Record, read_records
from ottla.wire.apis import ApiKey
from ottla.wire.hot.fetch import FIRST_WITH_TOPIC_IDS

if TYPE_CHECKING:
    from ottla.wire.generated.fetch import FetchResponse

_BYTES_MAX = 1 << 20
_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and the header of the batch that has it."""

    record: Record
    batch: BatchHeader

    @property
    def sequence(self) -> int:
        """The sequence number that its producer gave it; -1 without idempotence."""
        if self.batch.base_sequence < 0:
            return -1
        return self.batch.base_sequence + self.record.offset - self.batch.base_offset


async def read_record(cluster: Cluster, tp: TopicPartition, offset: int) -> StoredRecord | None:
    """Return the record at an offset, committed or not; None if there is none, as after compaction.

    Raises OffsetOutOfRange for an offset outside of the log, and other errors of the leader.
    """
    from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

    async def attempt() -> StoredRecord | None:
        leader = await cluster.partition(tp, fresh=True)
        topic_id = cluster.info.topics[tp.topic].topic_id
        partition = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=_BYTES_MAX)
        ask = FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=_BYTES_MAX,
            topics=[FetchTopic(topic=tp.topic, topic_id=topic_id, partitions=[partition])],
        )
        at_most = FIRST_WITH_TOPIC_IDS - 1 if topic_id == NO_TOPIC_ID else None
        answer: FetchResponse = await cluster.request(leader.leader_id, ApiKey.FETCH, ask, at_most=at_most)
        raise_for(answer.error_code, about=f"fetching {tp}")
        data = answer.responses[0].partitions[0] if answer.responses else None
        if data is None:
            return None
        if offset < data.log_start_offset:
            raise OffsetOutOfRange(f"{tp} has no offset {offset}; it begins at {data.log_start_offset}")
        raise_for(data.error_code, about=f"offset {offset} of {tp}")
        assert not isinstance(data.records, FileRegion), "regions of files are the broker's side of a response"
        view = memoryview(data.records or b"")
        for at, header in split(view, partial_tail=True):
            if header.base_offset > offset:
                return None
            if header.last_offset < offset or header.is_control:
                continue
            for record in read_records(view[at : at + header.size_bytes]):
                if record.offset == offset:
                    return StoredRecord(record, header)
            return None
        return None

    return await cluster.retrying(attempt)
