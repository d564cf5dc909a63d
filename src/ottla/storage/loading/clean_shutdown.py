"""Loads a log after a clean shutdown, when its last segment may not match the checkpoint of that shutdown.

After a clean shutdown the log ended at its recovery point, and all of it was synced. What contradicts that is
corruption and not a torn write, and nothing is truncated: if only the indexes are corrupt they are rebuilt; if batches
are, the segment stays as it is, and the log continues with a new segment at the offset where the old one ended. Reads
of the corrupt offsets are refused, and no offset is given twice. `log_recovery.py` is for an unclean shutdown.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ottla.records.batch import NO_END_OFFSET
from ottla.storage.integrity.corruption import report_corruption
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import missing_end
from ottla.storage.log.verified_ranges import CorruptRange
from ottla.storage.state.leader_epochs import LeaderEpochs

logger = logging.getLogger(__name__)


class CheckpointedEnd(NamedTuple):
    """Holds the end of the last run: its recovery point, and whether the backup of the checkpoint file agrees."""

    end_offset: int
    is_certain: bool
    trusted_epochs: LeaderEpochs | None = None

    @property
    def may_have_gaps(self) -> bool:
        """Only the end is validated, and the checkpoint has it."""
        return False

    def end_of(self, base_offset: int) -> int:
        """Return the offset that no batch may reach, where it is certain."""
        return max(self.end_offset, base_offset + 1) if self.is_certain else NO_END_OFFSET

    def note_fault(self, first_offset: int) -> None:
        """Do nothing: the directory collects what its start reports."""


def load_after_clean_shutdown(
    segments: list[Segment], checkpointed: CheckpointedEnd, *, interval_bytes: int, now_ms: int, distrust: bool = False
) -> int | None:
    """Return a log's end offset after a clean stop, its last segment ready to be written; None if it must be scanned.

    With `distrust` the indexes of the last segment are known to be corrupt. Raises OSError.
    """
    last = segments[-1]
    last.join(checkpointed)
    end = None if distrust else last.resume_writing()
    if end is not None and (end == checkpointed.end_offset or not checkpointed.is_certain):
        return end
    is_corrupt, end = _reread(last, interval_bytes)
    if not is_corrupt and (end == checkpointed.end_offset or not checkpointed.is_certain):
        return end
    if end > checkpointed.end_offset or (is_corrupt and not checkpointed.end_offset):
        return None
    if not is_corrupt:
        report_corruption(missing_end(last, end, checkpointed.end_offset))
    last.seal()
    last.write_indexes()
    last.mark_dirty()
    new = Segment.create(last.files, last.directory, checkpointed.end_offset, now_ms=now_ms)
    if new.base_offset == last.base_offset:  # the last run had synced none of its batches
        segments.pop()
    segments.append(new)
    return checkpointed.end_offset


def _reread(segment: Segment, interval_bytes: int) -> tuple[bool, int]:
    """Rebuild the indexes from what is good; whether anything is not, and the offset after the last good batch."""
    segment.start_rebuild()
    end, position = segment.base_offset, 0
    is_corrupt = False
    ranges = segment.verified_ranges_at(0)
    for batch in ranges.batches(0, segment.base_offset) if ranges is not None else segment.batches():
        if isinstance(batch, CorruptRange):
            is_corrupt = True
            continue
        header, position = batch.header, batch.end
        segment.note_batch(
            last_offset=header.last_offset,
            position=batch.position,
            size_bytes=header.size_bytes,
            max_timestamp=header.max_timestamp,
            interval_bytes=interval_bytes,
        )
        end = header.last_offset + 1
    return is_corrupt or position != segment.size_bytes, end
