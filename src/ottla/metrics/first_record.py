"""Finds the timestamp of the first record that a group has not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.client.isolation import AbortedFilter, is_visible
from ottla.records.batch import BatchHeader, split
from ottla.records.record_reader import read_records
from ottla.replication.partition import Partition

EXACT_WITHIN_MS: Final = 1_000
"""A batch whose records are no further apart is not decoded: a lag is exact within a second."""

READ_BYTES: Final = 64 << 10
BATCHES_MAX: Final = 50
"""Batches that are read at most: those of aborted transactions have no record that a group could read."""


def timestamp_at(partition: Partition, offset: int, *, committed_only: bool = True) -> int | None:
    """Return the timestamp of the first record at or after an offset; None if there is none yet.

    Raises KafkaError. Reads the log, on the loop, as a fetch does.
    """
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    for _ in range(BATCHES_MAX):
        if offset >= end:
            return None
        read = partition.read(offset, max_bytes=READ_BYTES, committed_only=committed_only, at_least_one=True)
        if read.region is None:
            return None
        try:
            data = read.region.read()
        except OSError as error:
            raise partition.not_readable(error) from error
        aborted = [(transaction.producer_id, transaction.first_offset) for transaction in read.aborted or ()]
        timestamp_ms, offset = first_timestamp(data, offset, aborted, committed_only=committed_only)
        if timestamp_ms is not None:
            return timestamp_ms
    return None


def first_timestamp(
    data: bytes | bytearray | memoryview, offset: int, aborted: Iterable[tuple[int, int]], *, committed_only: bool
) -> tuple[int | None, int]:
    """Return the timestamp of the first record of these batches at or after an offset, and where they end."""
    view, judge = memoryview(data), AbortedFilter(aborted)
    for at, header in split(view, partial_tail=True):
        batch = view[at : at + header.size_bytes]
        if is_visible(header, batch, judge, read_committed=committed_only) and header.last_offset >= offset:
            timestamp_ms = _timestamp_in(header, batch, offset)
            if timestamp_ms is not None:
                return timestamp_ms, offset
        offset = max(offset, header.last_offset + 1)
    return None, offset


def _timestamp_in(header: BatchHeader, batch: memoryview, offset: int) -> int | None:
    if header.max_timestamp - header.base_timestamp <= EXACT_WITHIN_MS:
        return header.max_timestamp if header.max_timestamp >= 0 else None
    return next((record.timestamp_ms for record in read_records(batch) if record.offset >= offset), None)
