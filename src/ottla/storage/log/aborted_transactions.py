"""Finds the aborted transactions of a log: in a segment's `.txnindex` if that can be right, otherwise in the batches.

A missing entry would expose aborted records to read_committed consumers; the index of an old segment is verified
against its checksum and its markers before first use.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import PurePath

from ottla.core.files import FileAccess, read_file
from ottla.storage.file_names import TXN_INDEX_SUFFIX
from ottla.storage.log.pending_flush import PendingFlush
from ottla.storage.log.producer_replay import replay_batch
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.state.aborted_index import AbortedTransaction, find_aborted, read_aborted, replace_aborted
from ottla.storage.state.end_marker import MarkerType, read_marker
from ottla.storage.state.producer_snapshots import ProducerSnapshots, load_snapshot
from ottla.storage.state.producer_state_manager import ProducerStateManager

logger = logging.getLogger(__name__)


class AbortedTransactions:
    """The aborted transactions of one log: those in the indexes of its segments, and those that are in no file yet."""

    __slots__ = ("_may_exist", "_pending_flush", "_segments", "_snapshots")

    def __init__(self, segments: SegmentList, snapshots: ProducerSnapshots, pending_flush: PendingFlush) -> None:
        self._segments = segments
        self._snapshots = snapshots
        self._pending_flush = pending_flush
        self._may_exist: bool | None = None  # whether there is an index; None: unknown

    def may_exist(self) -> bool:
        """Return whether there may be an index; reads the directory if that is unknown. Raises OSError."""
        if self._may_exist is None:
            active = self._segments.active
            self._may_exist = any(name.endswith(TXN_INDEX_SUFFIX) for name in active.files.names_in(active.directory))
        return self._may_exist

    def forget(self) -> None:
        """Forget whether there is an index."""
        self._may_exist = None

    def add(self, entry: AbortedTransaction) -> None:
        """Add a transaction whose marker was written to the active segment."""
        self._may_exist = True
        self._pending_flush.add_aborted(self._segments.active.path(TXN_INDEX_SUFFIX), entry)

    def within(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those that reach into a range of offsets. Raises CorruptMessage."""
        return self._indexed(first_offset, end_offset) + self._pending_flush.aborted(first_offset, end_offset)

    def _indexed(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those of a range that are in the indexes, or in the log where an index cannot be right."""
        transactions: list[AbortedTransaction] = []
        for segment in self._segments.from_offset(first_offset):
            if segment.aborts_checked:
                part = find_aborted(segment.files, segment.path(TXN_INDEX_SUFFIX), first_offset, end_offset)
                if part is not None:
                    transactions += part[0]
                    if part[1]:
                        return transactions
                    continue
            for entry in _aborted_of(segment, self._segments, self._snapshots):
                if entry.last_offset >= first_offset and entry.first_offset < end_offset:
                    transactions.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return transactions
        return transactions

    def truncate_active(self, end_offset: int) -> None:
        """Remove the entries of truncated markers from the index of the active segment. Raises OSError."""
        active = self._segments.active
        path = active.path(TXN_INDEX_SUFFIX)
        kept = [entry for entry in read_aborted(active.files, path) or () if entry.last_offset < end_offset]
        if replace_aborted(active.files, path, kept):
            self._pending_flush.add_files(path)


def _aborted_of(segment: Segment, segments: SegmentList, snapshots: ProducerSnapshots) -> list[AbortedTransaction]:
    path = segment.path(TXN_INDEX_SUFFIX)
    entries = read_aborted(segment.files, path)
    if entries is not None and (segment.aborts_checked or (_is_as_it_was(segment) and _fit(segment, entries))):
        segment.mark_aborts_checked()
        return entries
    logger.warning("%s is corrupt; it is rebuilt from the log", path)
    return rebuild_aborted(segment, segments, snapshots)


def _is_as_it_was(segment: Segment) -> bool:
    """Return whether no checksum contradicts the index."""
    checksums = segment.checksums
    if checksums is None:
        return True
    before, data = checksums.indexes.get(TXN_INDEX_SUFFIX), _read(segment.files, segment.path(TXN_INDEX_SUFFIX))
    return data is None if before is None else data is not None and before.fits(data)


def _read(files: FileAccess, path: PurePath) -> bytes | None:
    try:
        return read_file(files, path)
    except FileNotFoundError:
        return None


def _fit(segment: Segment, entries: Sequence[AbortedTransaction]) -> bool:
    """Return whether each entry's marker is where it says, and a batch of it where it says that it begins."""
    for entry in entries:
        batch = segment.find(entry.last_offset)
        if batch is None or not batch.header.is_control or batch.header.producer_id != entry.producer_id:
            return False
        if batch.header.last_offset != entry.last_offset:
            return False
        marker = read_marker(memoryview(segment.file.read_at(batch.position, batch.header.size_bytes)))
        if marker is None or marker.type is not MarkerType.ABORT:
            return False
        if entry.first_offset >= segment.base_offset and not _begins(segment, entry):
            return False
    return True


def _begins(segment: Segment, entry: AbortedTransaction) -> bool:
    """Return whether a batch of the transaction begins where the entry says it does; unless compaction has taken it."""
    batch = segment.find(entry.first_offset)
    if batch is None:
        return False
    header = batch.header
    is_its_own = header.producer_id == entry.producer_id and header.is_transactional and not header.is_control
    is_gone = header.base_offset > entry.first_offset and segment.context is not None and segment.context.may_have_gaps
    return is_gone or (is_its_own and header.base_offset == entry.first_offset)


def rebuild_aborted(segment: Segment, segments: SegmentList, snapshots: ProducerSnapshots) -> list[AbortedTransaction]:
    """Rebuild a segment's index by replaying it, from the newest snapshot before it on. Raises CorruptMessage."""
    producers = ProducerStateManager()
    start = _load_at_or_before(segment.base_offset, producers, snapshots)
    entries: list[AbortedTransaction] = []
    items = segments.items
    at = items.index(segment)
    for number, each in enumerate(items[: at + 1]):
        if start is not None and number < at and items[number + 1].base_offset <= start:
            continue
        entries.clear()
        segments.check_end(each)
        for batch in each.batches(strict=True):
            if start is None or batch.header.last_offset >= start:
                entry = replay_batch(producers, each, batch, now_ms=0)
                if entry is not None:
                    entries.append(entry)
    replace_aborted(segment.files, segment.path(TXN_INDEX_SUFFIX), entries)
    segment.mark_aborts_checked()
    return entries


def _load_at_or_before(offset: int, producers: ProducerStateManager, snapshots: ProducerSnapshots) -> int | None:
    for known in reversed(snapshots.offsets):
        if known <= offset:
            data = _read(snapshots.files, snapshots.path(known))
            if data is not None and load_snapshot(data, producers, now_ms=0):
                return known
    return None
