"""Recovers a log's segments after an unclean shutdown: the longest valid prefix, its indexes and leader epochs.

Every byte that may not have been synced is read once, in chunks that the loop in `records/batch_scan.py` verifies at
the speed of the checksum. Recovery rebuilds the indexes and leader epochs on the way, and notes the positions of the
batches of producers, so that producer state can be rebuilt without reading the file again.

What was below the recovery point had been synced. If it is invalid, that is corruption and not a torn write: it stays
in the file, and reads of it are refused. If whole batches follow the point of a truncation, they are either the same
corruption or writes that reached the disk out of order; the log reports what was removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.core.files import File
from ottla.records.batch import HEADER_BYTES, NO_END_OFFSET, BatchHeader
from ottla.records.batch_reader import BatchLocation, read_headers
from ottla.records.batch_scan import BatchScan
from ottla.storage.file_names import CHECKSUMS_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from ottla.storage.integrity.corruption import RECORDS_ADVICE, Corruption, report_corruption
from ottla.storage.integrity.range_verifier import find_next_valid_batch, is_reserve
from ottla.storage.loading.clean_shutdown import CheckpointedEnd
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from ottla.storage.log.segment_list import missing_end
from ottla.storage.log.verified_ranges import CorruptRange
from ottla.storage.state.index import TimeEntry
from ottla.storage.state.leader_epochs import EpochEntry, LeaderEpochs

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 4 << 20


class UncleanRecovery:
    """Recovers the segments of one log: keeps the longest valid prefix, and all below `synced_offset`."""

    __slots__ = (
        "_epochs",
        "_interval_bytes",
        "_may_have_gaps",
        "_progress",
        "_recovery_point",
        "_synced_offset",
        "_written",
        "producers",
    )

    def __init__(
        self,
        epochs: LeaderEpochs,
        *,
        interval_bytes: int,
        recovery_point: int,
        synced_offset: int,
        may_have_gaps: bool,
        progress: Callable[[int], None],
    ) -> None:
        """Take `recovery_point`, below which everything was synced; below `synced_offset` that is certain."""
        self._epochs = epochs
        self._written = epochs.entries if epochs.certain else ()  # the checkpoint, where it is known to be right
        self._interval_bytes = interval_bytes
        self._recovery_point = recovery_point
        self._synced_offset = synced_offset
        self._may_have_gaps = may_have_gaps
        self._progress = progress
        self.producers: dict[int, list[int]] = {}  # base offset -> positions of the batches that producer state needs

    def run(self, segments: list[Segment]) -> tuple[int, int]:
        """Scan every segment that may hold unsynced batches; truncate at the first invalid one that may be unsynced.

        Returns the end offset and the offset the scan began at. The last segment is always scanned: its indexes are in
        memory while it is written. Raises OSError.
        """
        end_offset = scanned_from = segments[0].base_offset if segments else 0
        for at, segment in enumerate(segments):
            is_last = at == len(segments) - 1
            if not is_last and segments[at + 1].base_offset <= self._recovery_point:
                end_offset = scanned_from = segments[at + 1].base_offset
                continue
            self._epochs.truncate_from_end(segment.base_offset)  # the batches have them, and they are the truth
            after = end_offset if is_last else segments[at + 1].base_offset
            synced_offset = self._synced_offset
            if not is_last and synced_offset >= after:
                synced_offset = 0 if self._may_have_gaps else after
            end_offset, whole, is_writable = self._recover_segment(segment, synced_offset, is_last=is_last)
            may_end_there = end_offset == after or (end_offset < after and self._may_have_gaps)
            if not whole or (not is_last and not may_end_there):
                delete_from(segments, at + 1)
                if not is_writable:
                    new = Segment.create(segment.files, segment.directory, end_offset, now_ms=segment.created_ms)
                    segments[at if new.base_offset == segment.base_offset else at + 1 :] = [new]
                break
        return end_offset, scanned_from

    def _recover_segment(self, segment: Segment, synced_offset: int, *, is_last: bool) -> tuple[int, bool, bool]:
        """Keep a segment's longest valid prefix, and all below `synced_offset`, and rebuild its indexes.

        Returns its end offset, whether it is as long as it was or should be, and whether the log may continue in it.
        """
        epochs, written, gaps = self._epochs, self._written, self._may_have_gaps
        end, end_offset, self.producers[segment.base_offset] = recover_valid_prefix(
            segment, epochs, interval_bytes=self._interval_bytes, may_have_gaps=gaps, progress=self._progress
        )
        if end < segment.size_bytes and is_reserve(segment.file, end):
            segment.cut(end)
        compares_epochs = bool(written) and (is_last or not gaps) and synced_offset > segment.base_offset
        is_writable = True
        is_corrupt = (
            end_offset < synced_offset
            or (gaps and end < segment.size_bytes)  # the last batch may be the wrong one: it left a gap after it
            or (compares_epochs and not epochs.agree_between(written, min(synced_offset, end_offset)))
            or (synced_offset > segment.base_offset and not ends_at(segment, synced_offset))
        )
        if is_corrupt:
            del self.producers[segment.base_offset]
            end, end_offset, is_writable = keep_below_recovery_point(
                segment, epochs, written, synced_offset=synced_offset, interval_bytes=self._interval_bytes
            )
        whole = end == segment.size_bytes and is_writable
        if end < segment.size_bytes:
            log_truncation(segment, end, end_offset)
            segment.cut(end)
        if segment.verified_ranges is not None and (not segment.verified_ranges.corrupt or not is_writable):
            segment.mark_verified()
        segment.mark_recovered()  # what survived the crash may still be in the system's memory only
        segment.seal()
        return end_offset, whole, is_writable


class ValidPrefix(NamedTuple):
    """The longest valid prefix of a segment."""

    position: int  # after the last valid batch
    end_offset: int
    producers: list[int]  # positions of the batches from which producer state can be rebuilt


def recover_valid_prefix(
    segment: Segment, epochs: LeaderEpochs, *, interval_bytes: int, may_have_gaps: bool, progress: Callable[[int], None]
) -> ValidPrefix:
    """Rebuild a segment's indexes and epochs from its longest valid prefix. Raises OSError.

    Offsets follow each other, unless compaction may have removed batches (`may_have_gaps`); leader epochs never
    decrease. `progress` is called with the number of bytes read.
    """
    segment.start_rebuild()
    walk = BatchScan(
        segment.base_offset,
        epoch=epochs.latest,
        gaps=may_have_gaps,
        offset_max=segment.base_offset + RELATIVE_OFFSET_MAX,
        interval_bytes=interval_bytes,
    )
    file, end = segment.file, segment.size_bytes
    while not walk.ended and walk.position + HEADER_BYTES <= end:
        chunk = _chunk(file, walk.position, end)
        taken = walk.take(chunk, end)
        progress(taken)
        if not taken:
            break
        for entry in walk.entries:
            segment.offset_index.append(entry.last_offset, entry.position)
            segment.time_index.append(entry.greatest_timestamp, entry.greatest_offset)
        walk.entries.clear()
    for epoch, offset in walk.epochs:
        epochs.assign(epoch, offset)
    segment.end_rebuild(
        TimeEntry(walk.greatest_timestamp, walk.greatest_offset),
        bytes_since_index=walk.bytes_since_index,
        is_empty=not walk.position,
    )
    return ValidPrefix(walk.position, walk.next_offset, walk.producers.positions())


def _chunk(file: File, position: int, end: int) -> memoryview:
    """Read the bytes from a batch's first on: many batches, or the whole of a large one."""
    data = file.read_at(position, min(_CHUNK_BYTES, end - position))
    if len(data) == _CHUNK_BYTES < end - position:
        size = BatchHeader(data).size_bytes
        if _CHUNK_BYTES < size <= end - position:
            data = file.read_at(position, size)
    return memoryview(data)


def delete_from(segments: list[Segment], at: int) -> None:
    """Delete the segments after a truncation; the last one first, so that a crash meanwhile leaves no gap."""
    for segment in reversed(segments[at:]):
        logger.warning("%s, %d bytes, follows a truncated segment and is deleted", segment.log_path, segment.size_bytes)
        segment.close()
        for suffix in (CHECKSUMS_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX):
            segment.files.remove(segment.path(suffix))
    del segments[at:]


class RecoveredEnd(NamedTuple):
    """The part of a segment with corruption below the recovery point that a scan after a crash keeps."""

    end: int  # where to truncate
    end_offset: int
    is_writable: bool  # otherwise the log continues in a new segment


def keep_below_recovery_point(
    segment: Segment, epochs: LeaderEpochs, certain: Sequence[EpochEntry], *, synced_offset: int, interval_bytes: int
) -> RecoveredEnd:
    """Keep a segment up to the first invalid batch at or after the recovery point, and all corruption before it.

    The indexes are rebuilt from the valid batches, and so are the epochs if none are `certain`. Raises OSError.
    """
    epochs.truncate_from_end(segment.base_offset)
    if certain:
        judge = LeaderEpochs(certain, complete_below=synced_offset)
        segment.join(CheckpointedEnd(synced_offset, is_certain=False, trusted_epochs=judge))
    for entry in certain:
        if segment.base_offset <= entry.start_offset < synced_offset:
            epochs.assign(*entry)
    segment.start_rebuild()
    ranges = segment.verified_ranges_at(0)
    end, end_offset, ends_well = 0, segment.base_offset, True
    if ranges is not None:
        ranges.synced_offset = synced_offset
        for batch in ranges.batches(0, segment.base_offset):
            ends_well = isinstance(batch, BatchLocation)
            if isinstance(batch, CorruptRange):
                if batch.first_offset >= synced_offset:
                    break
                end, end_offset = batch.end, batch.last_offset + 1
            elif end_offset < synced_offset <= batch.header.last_offset:
                why = f"no batch ends before offset {synced_offset}, where the log was synced"
                bad = ranges.mark_corrupt(batch, end_offset, synced_offset - 1, why)
                end, end_offset, ends_well = bad.end, bad.last_offset + 1, True
            else:
                header = batch.header
                epochs.assign(header.partition_leader_epoch, header.base_offset)
                segment.note_batch(
                    last_offset=header.last_offset,
                    position=batch.position,
                    size_bytes=header.size_bytes,
                    max_timestamp=header.max_timestamp,
                    interval_bytes=interval_bytes,
                )
                end, end_offset = batch.end, header.last_offset + 1
    if end_offset >= synced_offset and (ends_well or end < segment.size_bytes):
        return RecoveredEnd(end, end_offset, is_writable=True)
    if end_offset < synced_offset and ends_well:
        report_corruption(missing_end(segment, end_offset, synced_offset))
    return RecoveredEnd(segment.size_bytes, synced_offset, is_writable=False)


def ends_at(segment: Segment, synced_offset: int) -> bool:
    """Return whether some batch ends just before an offset up to which the log was once synced, as it must."""
    batch = segment.seek(synced_offset - 1)
    return isinstance(batch, BatchLocation) and batch.header.last_offset == synced_offset - 1


def log_truncation(segment: Segment, position: int, end_offset: int) -> None:
    """Log what a recovery is about to truncate at `position`."""
    gone = segment.size_bytes - position
    boundaries = _NoBoundaries()
    after = find_next_valid_batch(
        segment.file,
        position,
        segment.size_bytes,
        next_offset=end_offset,
        end_offset=NO_END_OFFSET,
        boundaries=boundaries,
    )
    if after is None:
        logger.warning(
            "%s ends with %d bytes of an incomplete batch; truncated at %d", segment.log_path, gone, position
        )
        return
    last = after.header.last_offset
    for batch in read_headers(segment.file, after.position, segment.size_bytes):
        last = batch.header.last_offset
    report_corruption(
        Corruption(
            segment.log_path,
            f"the batch at byte {position} is invalid, and valid ones follow it; truncated there, because after a "
            "crash corruption above the recovery point is indistinguishable from writes that were never acknowledged",
            RECORDS_ADVICE,
            position,
            gone,
            end_offset,
            last,
            costs_records=True,
        )
    )


class _NoBoundaries:
    """No known boundaries: recovery trusts no index."""

    def position_at_or_above(self, position: int) -> int | None:
        """Return None: no boundary is known."""
        del position
        return None
