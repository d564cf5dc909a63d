"""Rebuilds the state of producers and transactions from batch headers, after recovery and truncation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Protocol

from ottla.core.errors import CorruptMessage, InvalidTxnState, OutOfOrderSequenceNumber
from ottla.core.files import File
from ottla.records.batch import HEADER_BYTES, SEQUENCE_MAX, BatchHeader
from ottla.records.batch_reader import HEADER_CHUNK_BYTES, BatchLocation
from ottla.records.batch_scan import BATCHES_KEPT
from ottla.storage.file_names import TXN_INDEX_SUFFIX
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.state.aborted_index import AbortedTransaction, replace_aborted
from ottla.storage.state.end_marker import read_marker
from ottla.storage.state.producer_snapshots import ProducerSnapshots
from ottla.storage.state.producer_state_manager import (
    BatchMetadata,
    ProducerStateEntry,
    ProducerStateManager,
    VerificationGuard,
)

logger = logging.getLogger(__name__)

HEADERS_READ_BACK_MAX = 2_000
"""Read at once for a repeated batch: a few milliseconds."""


class ReplayedSegment(Protocol):
    """Holds what is read of a segment besides the headers."""

    @property
    def file(self) -> File:
        """Return the segment's log file."""
        ...


def replay_batch(
    producers: ProducerStateManager, segment: ReplayedSegment, found: BatchLocation, *, now_ms: int
) -> AbortedTransaction | None:
    """Take one written batch into account; what it adds to the index of aborted transactions."""
    header: BatchHeader = found.header
    if header.producer_id < 0:
        return None
    marker = None
    if header.is_control:
        marker = read_marker(memoryview(segment.file.read_at(found.position, header.size_bytes)))
    return producers.update(header, marker, header.base_offset, header.last_offset, header.max_timestamp, now_ms)


def replay_producers(
    segments: Iterable[Segment],
    producers: ProducerStateManager,
    snapshots: ProducerSnapshots,
    *,
    end_offset: int,
    now_ms: int,
    scanned_from: int | None = None,
    scanned: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> list[PurePath]:
    """Set producer state to that at `end_offset`: the newest good snapshot, and the headers of what follows it.

    From `scanned_from` on (recovery) the index of aborted transactions is to be rebuilt, so all there is replayed; of
    a segment in `scanned`, by base offset, the batches at the positions that are known to matter.
    Gives the files that were rewritten: they count only once they are synced, as no scan makes them again.
    """
    not_after = end_offset if scanned_from is None else scanned_from
    start = snapshots.load_newest(producers, not_after=not_after, end_offset=end_offset, now_ms=now_ms)
    rewritten: list[PurePath] = []
    if start == end_offset:
        return rewritten
    kept = list(segments)
    for segment, after in zip(kept, [*kept[1:], None], strict=True):
        if start is not None and after is not None and after.base_offset <= start:
            continue
        first = segment.find(start) if start is not None and start > segment.base_offset else None
        if start is not None and start > segment.base_offset and first is None:
            continue
        aborted: list[AbortedTransaction] = []
        places = scanned.get(segment.base_offset)
        whole = segment.batches() if places is None else _batches_at(segment, places)
        for batch in segment.batches(first.position) if first else whole:
            entry = replay_batch(producers, segment, batch, now_ms=now_ms)
            if entry is not None:
                aborted.append(entry)
        path = segment.path(TXN_INDEX_SUFFIX)
        is_corrupt = segment.verified_ranges is not None and bool(segment.verified_ranges.corrupt)
        if first is None and not is_corrupt and replace_aborted(segment.files, path, aborted):
            rewritten.append(path)
    return rewritten


def check_data_batch(
    producers: ProducerStateManager, segments: SegmentList, header: BatchHeader, guard: VerificationGuard | None
) -> BatchMetadata | None:
    """Check a client's batch, as `ProducerStateManager` does, also by the batches that a snapshot lacked.

    A snapshot has the last batch of each producer alone, as Kafka's; but clients have up to five in flight, and send
    those again whose answers a stop took from them.
    """
    producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
    is_transactional = header.is_transactional
    try:
        return producers.check_data_batch(
            producer_id, epoch, sequence, header.record_count, transactional=is_transactional, guard=guard
        )
    except (OutOfOrderSequenceNumber, InvalidTxnState):
        entry = producers.snapshot_entry(producer_id, epoch, sequence)
        if entry is None:
            raise
        try:
            _read_back(segments, entry, producer_id, first_sequence=sequence)
        except (CorruptMessage, OSError) as error:
            logger.warning(
                "batches of producer %d that are sent again may be refused as out of order, because the log could not "
                "be read: %s",
                producer_id,
                error,
            )
    return producers.check_data_batch(
        producer_id, epoch, sequence, header.record_count, transactional=is_transactional, guard=guard
    )


def _read_back(segments: SegmentList, entry: ProducerStateEntry, producer_id: int, *, first_sequence: int) -> None:
    """Complete the last batches of a producer that was loaded from a snapshot, which has only the last one.

    The headers before that one are read, as many as the log has of a producer alone in it at first, then more. Where
    many others wrote between its batches they are not found. Raises CorruptMessage, OSError.
    """
    before = entry.batches[0]
    batches: list[BatchMetadata] = []
    distance = (before.first_sequence - first_sequence) & SEQUENCE_MAX
    while len(entry.batches) + len(batches) < BATCHES_KEPT:
        start = max(before.first_offset - distance, segments.first_base_offset)
        more = _batches_of(segments, producer_id, entry.epoch, start, before.first_offset)
        if more is None:
            break
        batches = more
        if start == segments.first_base_offset:
            break
        distance *= 2
    for batch in reversed(batches):
        if len(entry.batches) == BATCHES_KEPT or (batch.last_sequence + 1) & SEQUENCE_MAX != before.first_sequence:
            return
        entry.batches.appendleft(batch)
        before = batch


def _batches_of(
    segments: SegmentList, producer_id: int, epoch: int, start: int, end: int
) -> list[BatchMetadata] | None:
    """List the batches of a producer between two offsets; None if too many others are there."""
    batches: list[BatchMetadata] = []
    headers = 0
    for segment in segments.from_offset(start):
        first = segment.find(start) if start > segment.base_offset else None
        if start > segment.base_offset and first is None:
            continue
        for _, header in segment.batches(first.position if first else 0, chunk_bytes=HEADER_CHUNK_BYTES):
            if header.base_offset >= end:
                return batches
            headers += 1
            if headers > HEADERS_READ_BACK_MAX:
                return None
            if (header.producer_id, header.producer_epoch) != (producer_id, epoch) or header.is_control:
                continue
            sequence = header.base_sequence
            if sequence >= 0:
                last = (sequence + header.last_offset_delta) & SEQUENCE_MAX
                batches.append(
                    BatchMetadata(sequence, last, header.base_offset, header.last_offset, header.max_timestamp)
                )
    return batches


def _batches_at(segment: Segment, positions: Iterable[int]) -> Iterator[BatchLocation]:
    """Yield the batches at these positions, which are known to be good."""
    for position in positions:
        yield BatchLocation(position, BatchHeader(segment.file.read_at(position, HEADER_BYTES)))
