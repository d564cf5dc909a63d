"""Declares the port to the dead letter queues of share groups (KIP-1191), and builds the records for them.

A dead letter says in its headers which record was archived and why. With `errors.deadletterqueue.copy.record.enable` of
the group it has the record's key and value too; the record's own headers are not copied, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ottla.core.errors import KafkaError
from ottla.records.batch import HEADER_BYTES, split
from ottla.records.builder import NewRecord
from ottla.records.record_reader import read_records
from ottla.replication.partition import Partition
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.events import DeadLetters
from ottla.share_partitions.record_reading import READ_BYTES_MAX, ReadBatches, read_batches

log = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES_MAX = 24
"""Upper bound on what a record takes in a batch besides its key, its value and its headers."""

_HEADER_OVERHEAD_BYTES_MAX = 10


class DeadLetterQueues(Protocol):
    """Port: writes to the dead letter queues of groups."""

    async def write(self, key: SharePartitionKey, source: Partition, letters: Sequence[DeadLetters]) -> None:
        """Write dead letters; returns once they are replicated. Raises KafkaError when that is given up."""
        ...


class OneLetter(NamedTuple):
    """Names one record for the dead letter queue."""

    offset: int
    delivery_count: int
    cause: str


class Copy(NamedTuple):
    """Holds what is copied of a record."""

    key: bytes | None
    value: bytes | None


class Copies(NamedTuple):
    """Holds what was read for dead letters. An offset up to the last one that has no copy here has no record."""

    by_offset: Mapping[int, Copy]
    last: int


def each_of(letters: Sequence[DeadLetters]) -> list[OneLetter]:
    """Return the records one by one.

    >>> [one.offset for one in each_of([DeadLetters(3, 4, 1, "why"), DeadLetters(9, 9, 2, "why")])]
    [3, 4, 9]
    """
    return [
        OneLetter(offset, one.delivery_count, one.cause) for one in letters for offset in range(one.first, one.last + 1)
    ]


def build_records(
    letters: Sequence[OneLetter],
    copies: Copies | None,
    *,
    topic: str,
    partition: int,
    group_id: str,
    now_ms: int,
    max_bytes: int,
) -> list[NewRecord]:
    """Build the records of as many letters as fit into a batch, one at least; with copies, of those that were read."""
    records: list[NewRecord] = []
    size_bytes = HEADER_BYTES
    for letter in letters:
        if records and copies is not None and letter.offset > copies.last:
            break
        copy = None if copies is None else copies.by_offset.get(letter.offset)
        record = NewRecord(
            key=None if copy is None else copy.key,
            value=None if copy is None else copy.value,
            timestamp_ms=now_ms,
            headers=(
                ("__dlq.errors.topic", topic.encode()),
                ("__dlq.errors.partition", str(partition).encode()),
                ("__dlq.errors.offset", str(letter.offset).encode()),
                ("__dlq.errors.group", group_id.encode()),
                ("__dlq.errors.delivery.count", str(letter.delivery_count).encode()),
                ("__dlq.errors.message", letter.cause.encode()),
            ),
        )
        size_bytes += _size_bytes(record)
        if records and size_bytes > max_bytes:
            break
        records.append(record)
    return records


def _size_bytes(record: NewRecord) -> int:
    """Return an upper bound on a record's size in a batch."""
    headers = sum(_HEADER_OVERHEAD_BYTES_MAX + len(name) + len(value or b"") for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES_MAX + len(record.key or b"") + len(record.value or b"") + headers


async def read_copies(source: Partition, letters: Sequence[OneLetter], *, max_bytes: int) -> Copies:
    """Read records from the log until they have about so many bytes; what cannot be read has no copy."""
    offsets = [letter.offset for letter in letters]
    copies: dict[int, Copy] = {}
    size_bytes = at = 0
    last = -1
    while at < len(offsets) and size_bytes < max_bytes:
        try:
            read = read_batches(source, offsets[at], max_bytes=READ_BYTES_MAX, committed_only=False)
            if read is None:
                break
            last, size = await asyncio.to_thread(_copy, read, offsets[at:], max_bytes - size_bytes, copies)
        except (KafkaError, OSError, ValueError) as error:
            text = "the records from offset %d of %s on cannot be copied to their dead letters: %s"
            log.warning(text, offsets[at], source.topic_partition, error)
            break
        size_bytes += size
        at = bisect_left(offsets, last + 1)
    else:
        return Copies(copies, last)
    return Copies(copies, offsets[-1])


def _copy(read: ReadBatches, offsets: Sequence[int], max_bytes: int, copies: dict[int, Copy]) -> tuple[int, int]:
    """Copy the records of whole batches; returns the last offset that was looked at, and the number of bytes."""
    wanted, size_bytes, last = frozenset(offsets), 0, -1
    view = memoryview(read.data)
    for at, header in split(view):
        if last >= 0 and size_bytes >= max_bytes:
            break
        last = header.last_offset
        first_wanted = bisect_left(offsets, header.base_offset)
        if header.is_control or first_wanted == len(offsets) or offsets[first_wanted] > last:
            continue
        for record in read_records(view[at : at + header.size_bytes]):
            if record.offset in wanted:
                copies[record.offset] = Copy(record.key, record.value)
                size_bytes += len(record.key or b"") + len(record.value or b"")
    return last, size_bytes
