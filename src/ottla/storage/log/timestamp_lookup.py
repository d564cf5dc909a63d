"""Finds offsets by time across a log's segments (ListOffsets). Records are decoded of one batch at most."""

from __future__ import annotations

from typing import NamedTuple

from ottla.core.ids import NO_TIMESTAMP
from ottla.records.batch_reader import BatchLocation
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


class TimestampLookup:
    """One search between the log's start and `end_offset`.

    Raises CorruptMessage where the answer may have been in what a segment has lost.
    """

    __slots__ = ("_end_offset", "_log_start_offset", "_segments")

    def __init__(self, segments: SegmentList, *, log_start_offset: int, end_offset: int) -> None:
        self._segments = segments
        self._log_start_offset = log_start_offset
        self._end_offset = end_offset

    def first_at_or_after(self, timestamp: int) -> TimedOffset | None:
        """Return the first record whose timestamp is at least `timestamp`."""
        active = self._segments.active
        self._segments.check_start(self._log_start_offset, self._log_start_offset)
        for segment in self._segments.items:
            if segment.base_offset >= self._end_offset:
                return None
            if segment.greatest_timestamp(active=segment is active).timestamp < timestamp:
                self._segments.check_end(segment)
                continue
            first = segment.first_batch_reaching(timestamp)
            for batch in () if first is None else segment.batches(first.position, strict=True):
                header = batch.header
                if header.base_offset >= self._end_offset:
                    return None
                if header.max_timestamp >= timestamp and header.last_offset >= self._log_start_offset:
                    hit = self._first_in_batch(segment, batch, timestamp)
                    if hit is not None:
                        return hit if hit.offset < self._end_offset else None
            self._segments.check_end(segment)
        return None

    def of_max_timestamp(self) -> TimedOffset | None:
        """Return the first record that has the greatest timestamp of all there."""
        best: tuple[Segment, BatchLocation] | None = None
        greatest = NO_TIMESTAMP
        active = self._segments.active
        self._segments.check_start(self._log_start_offset, self._log_start_offset)
        for segment in self._segments.items:
            if segment.base_offset >= self._end_offset:
                break
            self._segments.check_end(segment)
            if segment is not active and segment.greatest_timestamp(active=False).timestamp <= greatest:
                continue
            first = segment.first_batch_reaching(greatest + 1)
            for batch in () if first is None else segment.batches(first.position, strict=True):
                header = batch.header
                if header.base_offset >= self._end_offset:
                    break
                if header.max_timestamp > greatest and header.last_offset >= self._log_start_offset:
                    timestamp = self._greatest_in_batch(segment, batch)
                    if timestamp > greatest:
                        greatest, best = timestamp, (segment, batch)
        if best is None:
            return None
        return self._first_in_batch(*best, greatest)

    def _greatest_in_batch(self, segment: Segment, found: BatchLocation) -> int:
        """Return the header's time, unless records in it are below the log's start or compaction has left none."""
        from ottla.records.record_reader import read_records

        header = found.header
        if not header.record_count:
            return NO_TIMESTAMP
        if header.base_offset >= self._log_start_offset or header.log_append_time:
            return header.max_timestamp
        batch = memoryview(segment.file.read_at(found.position, header.size_bytes))
        times = (record.timestamp_ms for record in read_records(batch) if record.offset >= self._log_start_offset)
        return max(times, default=NO_TIMESTAMP)

    def _first_in_batch(self, segment: Segment, found: BatchLocation, timestamp: int) -> TimedOffset | None:
        from ottla.records.record_reader import read_records

        header = found.header
        if not header.record_count:  # compaction has kept the batch for its producer's state
            return None
        if header.log_append_time:  # all records of the batch have its time
            first = max(header.base_offset, self._log_start_offset)
            return TimedOffset(first, header.max_timestamp, header.partition_leader_epoch)
        batch = memoryview(segment.file.read_at(found.position, header.size_bytes))
        for record in read_records(batch):
            if record.timestamp_ms >= timestamp and record.offset >= self._log_start_offset:
                return TimedOffset(record.offset, record.timestamp_ms, header.partition_leader_epoch)
        return None
