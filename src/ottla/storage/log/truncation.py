"""Taking batches away: from a log's end (truncation), from its start (retention), or all of them.

Files are renamed out of the way at once and removed later, so that readers finish. What is cut from the end is synced
before anything else happens: were the cut lost later, batches of the old and of the new leader could lie side by side,
each whole; and a recovery point above the new end would let the scan pass over what follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.core.errors import StorageError
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from ottla.storage.log.producer_replay import replay_producers
from ottla.storage.log.segment import Segment
from ottla.storage.state.transactions import read_aborted, replace_aborted

if TYPE_CHECKING:
    from ottla.storage.log.partition_log import PartitionLog


def truncate_suffix(log: PartitionLog, offset: int) -> None:
    """Drop every batch that reaches `offset` or behind it. Raises OSError, or StorageError with nothing changed."""
    flushed_offset = log.flushed_offset
    _lower_recovery_point(log, log.segment_list.from_offset(offset)[0].base_offset)
    log.truncation_count += 1
    gone = log.segment_list.wholly_behind(offset)
    delete_segment_files(log, reversed(gone))
    log.segment_list.drop_last(len(gone))
    if gone:  # were they there again behind a segment that is cut, a log that may have gaps would take them for its own
        log.files.sync_directory(log.directory)
    _cut_active(log, offset)
    log.pending_flush.forget_aborted(log.end_offset)
    if log.epochs.truncate_from_end(log.end_offset):
        log.pending_flush.write_epochs(log.directory, log.epochs)
    rewritten = replay_producers(
        log.segments, log.producer_states, log.transactions, log.snapshots,
        end_offset=log.end_offset, now_ms=log.clock.wall_ms(),
    )  # fmt: skip
    log.pending_flush.add_files(*rewritten)
    log.flushed_offset = min(flushed_offset, log.end_offset)
    log.high_watermark = min(log.high_watermark, log.end_offset)
    log.active.file.sync()
    log.files.sync_directory(log.directory)
    log.note_truncation()


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> None:
    """Drop everything; the log is empty and begins at `offset`. Raises OSError."""
    log.truncation_count += 1
    _begin_anew(log, offset)
    log.files.sync_directory(log.directory)
    log.note_truncation()


def delete_prefix(log: PartitionLog, count: int) -> None:
    """Drop the oldest segments, never all, one by one. Raises OSError: some are gone then, and the log is whole."""
    for segment in log.segments[:count]:
        delete_segment_files(log, [segment])
        log.segment_list.drop_first(1)
    log.snapshots.drop_below(log.segment_list.first_base_offset)


def delete_segment_files(log: PartitionLog, segments: Iterable[Segment]) -> None:
    """Rename the files of segments out of the way; they are removed once readers have had time to finish."""
    due_ms = log.clock.wall_ms() + log.config.file_delete_delay_ms
    for segment in segments:
        log.pending_flush.forget([segment])
        for suffix in (CHECKSUMS_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX):
            path = segment.path(suffix)
            if log.files.exists(path):
                aside = path.with_name(path.name + DELETED_SUFFIX)
                log.files.rename(path, aside)
                log.deleted_files.add(aside, due_ms=due_ms, file=segment.take_file() if suffix == LOG_SUFFIX else None)
    log.pending_flush.add_directories(log.directory)


def _lower_recovery_point(log: PartitionLog, offset: int) -> None:
    """Before a file is touched: what a crash leaves half cut must be scanned by the next start. Raises StorageError."""
    before = log.flushed_offset
    log.flushed_offset = min(before, offset)
    try:
        log.after_truncation()
    except StorageError:
        log.flushed_offset = before
        raise


def _cut_active(log: PartitionLog, offset: int) -> None:
    segment = log.active
    segment.write_again(interval_bytes=log.config.index_interval_bytes)
    log.segment_list.forget_places()
    if offset <= max(segment.base_offset, log.log_start_offset):
        _begin_anew(log, min(offset, log.log_start_offset))
        return
    found = segment.find(offset)
    if found is None:  # what was cut off began with the next segment
        log.end_offset = segment.end_offset()
    elif found.header.base_offset < log.log_start_offset:  # the first batch of all goes: the rest is fetched again
        _begin_anew(log, log.log_start_offset)
    else:
        log.end_offset = min(found.header.base_offset, offset)
        segment.truncate(found.position, end_offset=log.end_offset)
        path = segment.path(TXN_INDEX_SUFFIX)
        kept = [entry for entry in read_aborted(log.files, path) or () if entry.last_offset < log.end_offset]
        if replace_aborted(log.files, path, kept):
            log.pending_flush.add_files(path)


def _begin_anew(log: PartitionLog, offset: int) -> None:
    delete_segment_files(log, reversed(log.segments))
    for snapshot in log.snapshots.offsets:
        log.snapshots.drop(snapshot)
    log.segment_list.replace_all(Segment.create(log.files, log.directory, offset, now_ms=log.clock.wall_ms()))
    log.producer_states.clear()
    log.transactions.clear()
    log.epochs.clear()
    log.pending_flush.write_epochs(log.directory, log.epochs)
    log.log_start_offset = log.end_offset = log.flushed_offset = log.high_watermark = offset
