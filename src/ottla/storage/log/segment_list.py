"""Lists the segments of one log in order, and finds the segment and the position of an offset.

A read is answered with a region of one file. Three things keep it cheap: the index entry next to the offset, headers
read in small chunks from there, and a short memory of where recent reads and flushes ended: a consumer that follows the
log, and one that reads it through, begin each read where their last one stopped and need no look-up at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from ottla.core.files import FileRegion
from ottla.records.batch_reader import read_headers
from ottla.storage.file_names import LOG_SUFFIX, offset_name
from ottla.storage.integrity.corruption import RECORDS_ADVICE, Corruption, corruption_error, report_corruption
from ottla.storage.log.cleaner_line import CleanerLine
from ottla.storage.log.log_faults import LogFaults
from ottla.storage.log.segment import Segment
from ottla.storage.log.verified_ranges import CorruptRange
from ottla.storage.state.leader_epochs import LeaderEpochs

_NO_OFFSETS: Final[frozenset[int]] = frozenset()  # one for all logs
_NO_POSITIONS: Final[dict[int, tuple[Segment, int]]] = {}  # the same; replaced before one is added
_POSITIONS_MAX: Final = 64  # more than the consumers one partition usually has


def shows_compaction(segment: Segment) -> bool:
    """Return whether batches of a segment miss records, or batches between them: then some may miss at its end too."""
    next_offset = segment.base_offset
    for batch in segment.batches():
        header = batch.header
        if header.base_offset > next_offset or header.record_count <= header.last_offset_delta:
            return True
        next_offset = header.last_offset + 1
    return False


def missing_end(segment: Segment, first_offset: int, end_offset: int) -> Corruption:
    """Describe that a segment lacks its last batches."""
    return Corruption(
        segment.log_path,
        f"the file ends before offset {first_offset}, but the next segment begins at {end_offset}",
        RECORDS_ADVICE,
        segment.size_bytes,
        0,
        first_offset,
        end_offset - 1,
        costs_records=True,
    )


def missing_start(directory: PurePath, first_offset: int, end_offset: int) -> Corruption:
    """Describe that a log lacks its first segments."""
    return Corruption(
        directory / offset_name(first_offset, LOG_SUFFIX),
        f"the segments below offset {end_offset} are missing",
        RECORDS_ADVICE,
        first_offset=first_offset,
        last_offset=end_offset - 1,
        costs_records=True,
    )


class SegmentList:
    """Never empty; the last one is `active`, the only one that is written."""

    __slots__ = (
        "_bases",
        "_cleaner_line",
        "_epochs",
        "_faults",
        "_last_read",
        "_missing_ends_reported",
        "_positions",
        "_tail_offset",
        "_tail_position",
        "_tail_segment",
        "_tail_was_read",
        "_whole_segments",
        "active",
        "checks",
        "end_offset",
        "is_compacted",
        "items",
        "region_end_offset",
    )

    def __init__(
        self,
        items: list[Segment],
        *,
        end_offset: int,
        epochs: LeaderEpochs,
        faults: LogFaults,
        cleaner_line: CleanerLine,
        is_compacted: bool,
    ) -> None:
        self.items = items
        self.end_offset = end_offset  # of the log; the next batch gets it
        self.is_compacted = is_compacted  # by the topic's policy now
        self.active = items[-1]
        self._bases = [segment.base_offset for segment in items]
        self._epochs, self._faults, self._cleaner_line = epochs, faults, cleaner_line
        self._missing_ends_reported = _NO_OFFSETS
        self._whole_segments = _NO_OFFSETS  # base offsets of sealed segments that end where the next begins
        self.checks = 0  # how many portions were verified for readers
        self.region_end_offset = 0  # the offset after the last record of the region that was read last
        for segment in items:
            segment.join(self)
        self._positions = _NO_POSITIONS  # offset -> where the batch that begins with it is
        # The same for the end of the last flush: most consumers read there next.
        self._tail_offset, self._tail_segment, self._tail_position = -1, self.active, 0
        self._tail_was_read = False
        self._last_read: Segment | None = None

    @property
    def size_bytes(self) -> int:
        """Return the size of all `.log` files."""
        return sum(segment.size_bytes for segment in self.items)

    @property
    def first_base_offset(self) -> int:
        """Return the base offset of the first segment."""
        return self._bases[0]

    @property
    def trusted_epochs(self) -> LeaderEpochs | None:
        """Return the epochs that old batches can be compared with, if they are certain."""
        return self._epochs if self._epochs.certain else None

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction, here or where this log was copied from, may have removed batches between others."""
        return self._cleaner_line.is_written or self.is_compacted

    def end_of(self, base_offset: int) -> int:
        """Return the offset where the segment that begins at `base_offset` must end."""
        at = bisect_right(self._bases, base_offset)
        return self._bases[at] if at < len(self._bases) else self.end_offset

    def note_fault(self, first_offset: int) -> None:
        """Note that the segment which begins there is corrupt, or that one is missing there."""
        self._faults.note(first_offset)

    # ---- Segments

    def add(self, segment: Segment) -> None:
        """Add a new active segment. What was remembered to follow at the end of the old one begins here instead."""
        self._positions.pop(segment.base_offset, None)
        self._tail_offset, self._tail_was_read = -1, False
        segment.join(self)
        self.items.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def drop_first(self, count: int) -> None:
        """Drop the oldest segments, which are gone; never all."""
        assert count < len(self.items), "a log always has a segment to write"
        del self.items[:count], self._bases[:count]
        self.forget_positions()

    def beginning_at_or_after(self, offset: int) -> list[Segment]:
        """Return the segments that begin at or after an offset, but never the first."""
        return self.items[max(bisect_left(self._bases, offset), 1) :]

    def drop_last(self, count: int) -> None:
        """Drop the newest segments, which are gone; never all."""
        kept = len(self.items) - count
        assert kept > 0, "a log always has a segment to write"
        del self.items[kept:], self._bases[kept:]
        self.active = self.items[-1]
        self.forget_positions()

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace some sealed neighbours by one, or add one between two."""
        at = bisect_left(self._bases, (old[0] if old else new).base_offset)
        assert self.items[at : at + len(old)] == list(old), "only what lies side by side can become one"
        new.join(self)
        self.items[at : at + len(old)] = [new]
        self._bases[at : at + len(old)] = [new.base_offset]
        self.forget_positions()

    def replace_all(self, segment: Segment) -> None:
        """Replace all segments by one."""
        segment.join(self)
        self.items[:], self._bases[:] = [segment], [segment.base_offset]
        self.active = segment
        self.forget_positions()

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that may hold an offset, and all after it."""
        return self.items[max(bisect_right(self._bases, offset) - 1, 0) :]

    # ---- Files that another program removed

    @property
    def has_removed(self) -> bool:
        """Whether the open file of a segment was removed. May be called in a worker thread."""
        return any(segment.is_removed for segment in tuple(self.items))

    def note_missing_files(self) -> None:
        """Note as faulty the sealed segments whose files are missing. Raises OSError."""
        names = set(self.active.files.names_in(self.active.directory))
        for segment in self.items[:-1]:
            if segment.log_path.name not in names:
                self.note_fault(segment.base_offset)

    def release_removed(self) -> list[PurePath]:
        """Close the removed files of sealed segments, so that reads fail; return the paths of all removed ones.

        A file with unsynced writes stays open until the next call.
        """
        removed = [segment for segment in self.items if segment.is_removed]
        for segment in removed:
            if segment is not self.active:
                self.note_fault(segment.base_offset)
                if not segment.must_sync_before_close:
                    segment.detach_file()
        return [segment.log_path for segment in removed]

    # ---- Reading

    def region(
        self,
        offset: int,
        *,
        max_bytes: int,
        log_start_offset: int,
        end_offset: int,
        at_least_one: bool,
        may_check: bool = True,
    ) -> FileRegion | None:
        """Return whole batches from the one that contains `offset`, up to `max_bytes` and below `end_offset`.

        Raises CorruptMessage if `offset` is in a corrupt range. Without `may_check` returns no data of earlier
        processes that has not been verified yet.
        """
        place = self._position_of_batch(offset)
        begins_at = offset if place is not None else None
        place = place or self._locate(offset, log_start_offset)
        if place is None:
            return None
        segment, position = place
        limit, ends_at = segment.size_bytes, self._end_offset(segment)
        if end_offset < ends_at:
            limit, ends_at = self._position_of(segment, end_offset), end_offset
        ranges = segment.verified_ranges_at(position)
        if ranges is not None:
            up_to = min(limit, position + max(max_bytes, 1)) if may_check else position
            self.checks += may_check and not ranges.is_verified(up_to - 1)
            checked, next_offset = ranges.verified_to(position, begins_at, up_to=up_to)
            if checked <= position < limit:
                if not may_check:
                    return None
                raise corruption_error(ranges.corruption_at(position))
            if checked < limit and next_offset is not None:
                limit, ends_at = checked, next_offset
        if limit - position > max_bytes:
            last = segment.end_of_whole_batches(position, position + max_bytes)
            if last is None and at_least_one:
                last = next(read_headers(segment.file, position, limit), None)
            if last is None or last.end > limit:
                return None
            limit, ends_at = last.end, last.header.last_offset + 1
        if limit <= position:
            return None
        self._remember(ends_at, segment, limit)
        self.region_end_offset = ends_at
        return FileRegion(segment.file, position, limit - position)

    def set_tail(self, offset: int, segment: Segment, position: int) -> None:
        """Set where the batch with `offset` will be: the end of the last flush, where most consumers read next."""
        if self._tail_was_read:  # a consumer that ended there comes back
            self._tail_was_read, before = False, self._tail_offset
            self._tail_offset = -1
            self._remember(before, self._tail_segment, self._tail_position)
        self._tail_offset, self._tail_segment, self._tail_position = offset, segment, position

    def _position_of_batch(self, offset: int) -> tuple[Segment, int] | None:
        """Return the segment and position of the batch that begins with `offset`, if they are remembered."""
        if offset == self._tail_offset and self._is_in(self._tail_segment, self._tail_position):
            return self._tail_segment, self._tail_position
        return self._positions.get(offset)

    def _is_in(self, segment: Segment, position: int) -> bool:
        """Return False for the end of a sealed segment: the next batch begins the segment after it."""
        return position < segment.size_bytes or segment is self.active

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """Remember that the batch that begins with `offset` is, or will be, at `position`."""
        if not self._is_in(segment, position):
            return
        if offset == self._tail_offset:
            self._tail_was_read = True
            return
        if self._positions is _NO_POSITIONS:
            self._positions = {}
        positions = self._positions
        if len(positions) >= _POSITIONS_MAX and offset not in positions:
            del positions[next(iter(positions))]
        positions[offset] = segment, position

    def forget_positions(self) -> None:
        """Forget everything remembered, because segments went or were cut."""
        self._positions.clear()
        self._tail_offset, self._tail_was_read = -1, False
        self._whole_segments = _NO_OFFSETS
        self._last_read = None

    def _locate(self, offset: int, log_start_offset: int) -> tuple[Segment, int] | None:
        """Return the segment and position of the batch that holds `offset`, or of the first after it."""
        if offset < self._bases[0]:
            self.check_start(offset, log_start_offset)
        for segment in self.from_offset(offset):
            batch = segment.find(offset)
            if batch is not None:
                if segment is not self._last_read:
                    self._release_last_read(segment)
                return segment, batch.position
            if segment is not self.active:
                self._check_gap(segment, offset)
        return None

    def check_end(self, segment: Segment) -> None:
        """Raise CorruptMessage if a read that moves on to the next segment would skip a corrupt range of this one."""
        ranges = segment.verified_ranges
        if ranges is not None and ranges.corrupt and ranges.indexes_skip_corrupt:
            raise corruption_error(ranges.corrupt[0].corruption)
        if segment is not self.active and segment.base_offset not in self._whole_segments:
            self._check_gap(segment, self.end_of(segment.base_offset) - 1)
            self._whole_segments |= frozenset((segment.base_offset,))

    def _check_gap(self, segment: Segment, offset: int) -> None:
        """Raise CorruptMessage for a segment that lost its end: the records were there.

        After compaction, too, a segment may end before the next one begins; that is no error.
        """
        begins, ends = segment.end_offset(), self.end_of(segment.base_offset)
        if not begins <= offset < ends or self.may_have_gaps or shows_compaction(segment):
            return
        corruption = missing_end(segment, begins, ends)
        if segment.base_offset not in self._missing_ends_reported:
            self._missing_ends_reported |= frozenset((segment.base_offset,))
            report_corruption(corruption)
        self.note_fault(begins)
        raise corruption_error(corruption)

    def check_start(self, offset: int, log_start_offset: int) -> None:
        """Raise CorruptMessage for an offset of the first segments, if they were lost."""
        first = self.first_base_offset
        if log_start_offset <= offset < first:
            raise corruption_error(missing_start(self.active.directory, log_start_offset, first))

    def _release_last_read(self, used: Segment) -> None:
        """Release the indexes of the segment read last: only the one read now and the one being written keep theirs."""
        if self._last_read is not None and self._last_read is not self.active:
            self._last_read.release_indexes()
        self._last_read = used

    def _position_of(self, segment: Segment, end_offset: int) -> int:
        """Return the position where the batches below `end_offset` end. A batch that crosses it is not below it."""
        known = self._position_of_batch(end_offset)
        if known is not None and known[0] is segment:
            return known[1]
        batch = segment.seek(end_offset)
        if batch is None:
            return segment.size_bytes
        if isinstance(batch, CorruptRange):
            return batch.start
        if batch.header.base_offset == end_offset:
            self._remember(end_offset, segment, batch.position)
        return batch.position

    def _end_offset(self, segment: Segment) -> int:
        if segment is self.active:
            return self.end_offset
        return self._bases[bisect_right(self._bases, segment.base_offset)]
