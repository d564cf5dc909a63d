"""Rebuilds the state of producers and transactions from batch headers, after recovery and truncation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Protocol

from ottla.core.files import File
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.batch_reader import BatchLocation
from ottla.storage.file_names import TXN_INDEX_SUFFIX
from ottla.storage.log.segment import Segment
from ottla.storage.state.producer_snapshots import ProducerSnapshots
from ottla.storage.state.producer_state_manager import ProducerStateManager
from ottla.storage.state.transactions import AbortedTransaction, read_marker, replace_aborted


class ReplayedSegment(Protocol):
    """What is read of a segment besides the headers."""

    @property
    def file(self) -> File:
        """Its log."""
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
        for found in segment.batches(first.position) if first else whole:
            entry = replay_batch(producers, segment, found, now_ms=now_ms)
            if entry is not None:
                aborted.append(entry)
        path = segment.path(TXN_INDEX_SUFFIX)
        is_damaged = segment.verified_ranges is not None and bool(segment.verified_ranges.corrupt)
        if first is None and not is_damaged and replace_aborted(segment.files, path, aborted):
            rewritten.append(path)
    return rewritten


def _batches_at(segment: Segment, positions: Iterable[int]) -> Iterator[BatchLocation]:
    """The batches at these positions, which are known to be good."""
    for position in positions:
        yield BatchLocation(position, BatchHeader(segment.file.read_at(position, HEADER_BYTES)))
