"""Finding offsets by time, across a log's segments (ListOffsets). The records of one batch at most are looked into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.records.batch_reader import BatchLocation
from ottla.storage.log.segment import NO_TIMESTAMP, Segment


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


def first_offset_at_or_after(
    segments: Sequence[Segment], timestamp: int, *, log_start_offset: int, end_offset: int
) -> TimedOffset | None:
    """The first record below `end_offset` whose timestamp is at least `timestamp`."""
    for segment in segments:
        if segment.base_offset >= end_offset:
            return None
        if segment.greatest_timestamp(active=segment is segments[-1]).timestamp < timestamp:
            _check_end(segment)
            continue
        first = segment.first_batch_reaching(timestamp)
        for found in () if first is None else segment.batches(first.position, strict=True):
            if found.header.base_offset >= end_offset:
                return None
            if found.header.max_timestamp >= timestamp and found.header.last_offset >= log_start_offset:
                hit = _first_in_batch(segment, found, timestamp, log_start_offset)
                if hit is not None:
                    return hit if hit.offset < end_offset else None
        _check_end(segment)
    return None


def offset_of_max_timestamp(
    segments: Sequence[Segment], *, log_start_offset: int, end_offset: int
) -> TimedOffset | None:
    """The first record below `end_offset` that has the greatest timestamp of all there."""
    best: tuple[Segment, BatchLocation] | None = None
    greatest = NO_TIMESTAMP
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        whole = segment is not segments[-1]
        _check_end(segment)
        if whole and segment.greatest_timestamp(active=False).timestamp <= greatest:
            continue
        first = segment.first_batch_reaching(greatest + 1)
        for found in () if first is None else segment.batches(first.position, strict=True):
            if found.header.base_offset >= end_offset:
                break
            if found.header.max_timestamp > greatest and found.header.last_offset >= log_start_offset:
                timestamp = _greatest_in_batch(segment, found, log_start_offset)
                if timestamp > greatest:
                    greatest, best = timestamp, (segment, found)
    if best is None:
        return None
    return _first_in_batch(*best, greatest, log_start_offset)


def _greatest_in_batch(segment: Segment, found: BatchLocation, log_start_offset: int) -> int:
    """As the header says, but where records of the batch lie below the log's start or compaction has left none."""
    from ottla.records.record_reader import read_records

    header = found.header
    if not header.record_count:
        return NO_TIMESTAMP
    if header.base_offset >= log_start_offset or header.log_append_time:
        return header.max_timestamp
    batch = memoryview(segment.file.read_at(found.position, header.size_bytes))
    times = (record.timestamp_ms for record in read_records(batch) if record.offset >= log_start_offset)
    return max(times, default=NO_TIMESTAMP)


def _check_end(segment: Segment) -> None:
    """Raises CorruptMessage where the answer may have been in what a segment has lost."""
    if segment.owner is not None:
        segment.owner.check_end(segment)


def _first_in_batch(
    segment: Segment, found: BatchLocation, timestamp: int, log_start_offset: int
) -> TimedOffset | None:
    from ottla.records.record_reader import read_records

    header = found.header
    if not header.record_count:  # compaction has left the batch for its producer's sake
        return None
    if header.log_append_time:  # all records of the batch have its time
        return TimedOffset(
            max(header.base_offset, log_start_offset), header.max_timestamp, header.partition_leader_epoch
        )
    batch = memoryview(segment.file.read_at(found.position, header.size_bytes))
    for record in read_records(batch):
        if record.timestamp_ms >= timestamp and record.offset >= log_start_offset:
            return TimedOffset(record.offset, record.timestamp_ms, header.partition_leader_epoch)
    return None
