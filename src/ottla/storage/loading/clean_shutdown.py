"""What a start makes of a log whose last segment is not as the last stop left it.

After a clean stop the log ended where its recovery point is, all of it on the disk. What contradicts that is damage and
no torn tail, and nothing is cut off: if only the indexes are harmed they are made anew; if batches are, the segment
stays as it is, damage and all, and the log goes on with a new segment at the offset where the old one ended. Readers of
the damaged offsets are refused, and no offset is given twice.

After a crash the tail is scanned and cut at the first bad batch (`log_loader.py`), but for what lies below the recovery
point: that was on the disk for good, so it is damage again, and stays. Where whole batches lay behind a cut that was
damage or a write that reached the disk out of order: nobody can tell, and the log says what went.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ottla.records.batch_reader import BatchLocation, read_headers
from ottla.storage.integrity.batch_verifier import find_next_valid_batch
from ottla.storage.integrity.corruption import RECORDS_ADVICE, Corruption, report_corruption
from ottla.storage.integrity.verified_ranges import CorruptRange
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import missing_end
from ottla.storage.state.leader_epochs import EpochEntry, LeaderEpochs

logger = logging.getLogger(__name__)


class CheckpointedEnd(NamedTuple):
    """Where the last run ended: its recovery point, and whether the checkpoint file has a copy that says the same."""

    end_offset: int
    is_certain: bool
    trusted_epochs: LeaderEpochs | None = None

    @property
    def may_have_gaps(self) -> bool:
        """Only the end is looked at, and where that is has been promised."""
        return False

    def end_of(self, base_offset: int) -> int:
        """No batch may reach it, where it is certain."""
        return max(self.end_offset, base_offset + 1) if self.is_certain else 1 << 63


def load_after_clean_shutdown(
    segments: list[Segment], promise: CheckpointedEnd, *, interval_bytes: int, now_ms: int, distrust: bool = False
) -> int | None:
    """The end offset of a log after a clean stop, its last segment ready to be written; None if it must be scanned.

    With `distrust` the indexes of the last segment are known to be damaged. Raises OSError.
    """
    last = segments[-1]
    last.join(promise)
    end = None if distrust else last.resume_writing()
    if end is not None and (end == promise.end_offset or not promise.is_certain):
        return end
    is_harmed, end = _reread(last, interval_bytes)
    if not is_harmed and (end == promise.end_offset or not promise.is_certain):
        return end
    if end > promise.end_offset or (is_harmed and not promise.end_offset):
        return None
    if not is_harmed:
        report_corruption(missing_end(last, end, promise.end_offset))
    last.seal()
    last.write_indexes()
    last.is_dirty = True
    new = Segment.create(last.files, last.directory, promise.end_offset, now_ms=now_ms)
    if new.base_offset == last.base_offset:  # nothing was promised of what lies there
        segments.pop()
    segments.append(new)
    return promise.end_offset


def _reread(segment: Segment, interval_bytes: int) -> tuple[bool, int]:
    """Make the indexes anew from what is good; whether anything is not, and the offset behind the last good batch."""
    segment.start_rebuild()
    end, position = segment.base_offset, 0
    is_harmed = False
    ranges = segment.verified_ranges_at(0)
    for found in ranges.batches(0, segment.base_offset) if ranges is not None else segment.batches():
        if isinstance(found, CorruptRange):
            is_harmed = True
            continue
        header, position = found.header, found.end
        segment.note_batch(
            last_offset=header.last_offset,
            position=found.position,
            size_bytes=header.size_bytes,
            max_timestamp=header.max_timestamp,
            interval_bytes=interval_bytes,
        )
        end = header.last_offset + 1
    return is_harmed or position != segment.size_bytes, end


class RecoveredEnd(NamedTuple):
    """What a scan after a crash leaves of a segment that is damaged below the recovery point."""

    end: int  # position of the cut, if anything is to be cut
    end_offset: int
    is_writable: bool  # otherwise the log goes on in a new segment


def keep_below_recovery_point(
    segment: Segment,
    epochs: LeaderEpochs,
    certain: Sequence[EpochEntry],
    *,
    promised_offset: int,
    interval_bytes: int,
) -> RecoveredEnd:
    """Keep a segment up to the first bad batch at or behind the recovery point; damage before it stays as it is.

    The indexes are made anew from the good batches, and so are the epochs where none are `certain`. Raises OSError.
    """
    epochs.truncate_from_end(segment.base_offset)
    if certain:
        judge = LeaderEpochs(certain)
        judge.complete_below = promised_offset
        segment.join(CheckpointedEnd(promised_offset, is_certain=False, trusted_epochs=judge))
    for entry in certain:
        if segment.base_offset <= entry.start_offset < promised_offset:
            epochs.assign(*entry)
    segment.start_rebuild()
    ranges = segment.verified_ranges_at(0)
    end, end_offset, ends_well = 0, segment.base_offset, True
    if ranges is not None:
        ranges.enough_offset = promised_offset
        for found in ranges.batches(0, segment.base_offset):
            ends_well = isinstance(found, BatchLocation)
            if isinstance(found, CorruptRange):
                if found.first_offset >= promised_offset:
                    break
                end, end_offset = found.end, found.last_offset + 1
            elif end_offset < promised_offset <= found.header.last_offset:
                why = f"no batch ends before offset {promised_offset}, where the log was synced"
                bad = ranges.mark_corrupt(found, end_offset, promised_offset - 1, why)
                end, end_offset, ends_well = bad.end, bad.last_offset + 1, True
            else:
                header = found.header
                epochs.assign(header.partition_leader_epoch, header.base_offset)
                segment.note_batch(
                    last_offset=header.last_offset,
                    position=found.position,
                    size_bytes=header.size_bytes,
                    max_timestamp=header.max_timestamp,
                    interval_bytes=interval_bytes,
                )
                end, end_offset = found.end, header.last_offset + 1
    if end_offset >= promised_offset and (ends_well or end < segment.size_bytes):
        return RecoveredEnd(end, end_offset, is_writable=True)
    if end_offset < promised_offset and ends_well:
        report_corruption(missing_end(segment, end_offset, promised_offset))
    return RecoveredEnd(segment.size_bytes, promised_offset, is_writable=False)


def ends_at(segment: Segment, promised_offset: int) -> bool:
    """Whether some batch ends just before an offset up to which the log was once synced, as it must."""
    found = segment.seek(promised_offset - 1)
    return isinstance(found, BatchLocation) and found.header.last_offset == promised_offset - 1


def log_truncation(segment: Segment, position: int, end_offset: int) -> None:
    """Say what a recovery is about to cut off at `position`."""
    gone = segment.size_bytes - position
    landmarks = _NoLandmarks()
    after = find_next_valid_batch(
        segment.file, position, segment.size_bytes, next_offset=end_offset, end_offset=1 << 62, landmarks=landmarks
    )
    if after is None:
        logger.warning("%s ends with %d bytes that are no whole batch, cut at %d", segment.log_path, gone, position)
        return
    last = after.header.last_offset
    for found in read_headers(segment.file, after.position, segment.size_bytes):
        last = found.header.last_offset
    report_corruption(
        Corruption(
            segment.log_path,
            f"the batch at byte {position} is not whole, and whole ones lie behind it: cut off all the same, since "
            "after a crash nothing tells damage from what was never promised",
            RECORDS_ADVICE,
            position,
            gone,
            end_offset,
            last,
            costs_records=True,
        )
    )


class _NoLandmarks:
    """Recovery trusts no index."""

    def position_at_or_above(self, position: int) -> int | None:
        """None is known."""
        del position
        return None
