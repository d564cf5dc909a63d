"""Verifies data written by earlier processes, once, before it is first served.

A batch that this process wrote was validated when it arrived. What was in the file when it was opened may be years old,
and `sendfile` never shows it to the broker. So each segment remembers which ranges of it have been verified (by
`integrity/range_verifier.py`): a reader waits once, in small portions, until the range it is about to get is verified;
later readers of the range, and readers of newly written records, pay nothing.

A corrupt range is remembered too, with the offsets it covers: reads of these are refused, reads before it end where it
begins, and reads after it continue.

Verified here means: verified since the file was opened. What the disk loses later is for the scrubber to find.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from ottla.records.batch import NO_END_OFFSET
from ottla.records.batch_reader import BatchLocation, read_headers
from ottla.storage.integrity.block_checksums import Block
from ottla.storage.integrity.corruption import RECORDS_ADVICE, Corruption, report_corruption
from ottla.storage.integrity.range_verifier import VerifiedBatches, find_next_valid_batch, verify_batches
from ottla.storage.log.segment_file import SegmentFile
from ottla.storage.state.index import OffsetEntry, OffsetIndex
from ottla.storage.state.leader_epochs import UNDEFINED, LeaderEpochs

PORTION_BYTES: Final = 1 << 20  # verified at once: well under a millisecond, reading it included
PORTION_BATCHES: Final = 500  # the cost of tiny batches depends on their number, not on their bytes
_RANGES_MAX: Final = 256  # of one segment: what is forgotten beyond that is checked again
_LOOKUP_BYTES: Final = 16 << 10  # a look-up wants one batch near an index entry


class LogContext(Protocol):
    """Gives a segment the epochs and offsets of its log."""

    @property
    def trusted_epochs(self) -> LeaderEpochs | None:
        """The epoch cache, if it is known to be correct."""
        ...

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction may have removed batches: then a batch's neighbours do not determine its offsets."""
        ...

    def end_of(self, base_offset: int) -> int:
        """Return the offset below which all batches of the segment that begins at `base_offset` must end."""
        ...

    def note_fault(self, first_offset: int) -> None:
        """Note that the segment which begins there is corrupt."""
        ...


class CorruptRange(NamedTuple):
    """A range of the file that is not what was written, and the offsets it covers."""

    start: int
    end: int
    first_offset: int
    last_offset: int
    corruption: Corruption


class BatchLookup(NamedTuple):
    """The result of a search for an offset."""

    found: BatchLocation | CorruptRange | None  # None if the segment ends before
    index_is_wrong: bool  # an entry of it contradicts valid batches


class VerifiedRange:
    """A range of valid batches, from where a batch begins to where one ends."""

    __slots__ = ("end", "epoch", "next_offset", "start")

    def __init__(self, start: int, next_offset: int | None) -> None:
        self.start = self.end = start
        self.next_offset = next_offset  # None: not known before the first batch
        self.epoch = UNDEFINED

    def __lt__(self, other: VerifiedRange) -> bool:
        return self.start < other.start


class VerifiedRanges:
    """Tracks which ranges of one segment have been verified."""

    __slots__ = (
        "_index",
        "_segment",
        "_verified",
        "context",
        "corrupt",
        "end",
        "indexes_skip_corrupt",
        "synced_offset",
    )

    def __init__(
        self,
        segment: SegmentFile,
        index: OffsetIndex,
        context: LogContext | None,
        known: list[CorruptRange] | None = None,
    ) -> None:
        """Take `known`, the corrupt ranges found when the file was open earlier; they are not verified again."""
        self._segment, self._index = segment, index
        self.context = context  # the epochs and offsets of the log; None before the segment is part of one
        self.indexes_skip_corrupt = False  # the indexes have no entries for corrupt ranges
        self.synced_offset: int | None = None  # a run of batches that reaches it is no chance: the file ends torn
        self.end = segment.size_bytes  # from here on this process has written it
        self._verified: list[VerifiedRange] = []  # by position, none touching another
        self.corrupt: list[CorruptRange] = known or []

    @property
    def is_done(self) -> bool:
        """Whether the whole file is verified and valid."""
        return len(self._verified) == 1 and self._verified[0].start == 0 and self._verified[0].end >= self.end

    def cut(self, position: int) -> None:
        """Drop the ranges after a truncation at `position`."""
        self.end = min(self.end, position)
        self._verified = [verified for verified in self._verified if verified.end <= position]
        self.corrupt = [corrupt for corrupt in self.corrupt if corrupt.end <= position]

    # ---- Verification

    def is_verified(self, position: int) -> bool:
        """Return whether the batch that begins at `position` is verified, or was written by this process."""
        verified = self._verified_at(position)
        return position >= self.end or (verified is not None and position < verified.end)

    def verified_to(self, position: int, next_offset: int | None, *, up_to: int) -> tuple[int, int | None]:
        """Verify from `position`, where a batch begins, to `up_to` or one portion beyond what was verified before.

        Returns where valid batches end and the offset after them; `position` itself if the batch there is corrupt.
        """
        verified = self._verified_at(position)
        if verified is None:
            verified = VerifiedRange(position, next_offset)
            if len(self._verified) >= _RANGES_MAX:
                self._verified.pop()
            insort(self._verified, verified)
        if verified.end < min(up_to, self.end) and self._corrupt_at(verified.end) is None:
            self._verify_portion(verified, min(up_to, verified.end + PORTION_BYTES, self.end))
        if verified.end == verified.start:
            self._verified.remove(verified)
        return (
            verified.end if verified.end < self.end else max(verified.end, self._segment.size_bytes)
        ), verified.next_offset

    def _verify_portion(self, verified: VerifiedRange, limit: int) -> None:
        """Verify one more portion."""
        segment, context = self._segment, self.context
        result = verify_batches(
            segment.file,
            verified.end,
            limit,
            segment_end=segment.size_bytes,
            next_offset=verified.next_offset,
            end_offset=self._end_offset(),
            epoch=verified.epoch,
            epochs=context.trusted_epochs if context else None,
            batches_max=PORTION_BATCHES,
        )
        if result.end > verified.end:
            checksums = segment.checksums if context is not None and context.may_have_gaps else None
            block = None if checksums is None else checksums.first_bad(segment.file, verified.end, result.end)
            if block is not None and not self._is_explained(verified, result, block):
                self._add_corrupt_block(verified, block, result.end)
                return
            verified.end, verified.next_offset, verified.epoch = result.end, result.next_offset, result.epoch
            self._merge(verified)
        if result.wrong is not None:
            self._add_corrupt_batch(verified, result.wrong)

    def _merge(self, verified: VerifiedRange) -> None:
        """Merge a range with the ranges that it has grown into."""
        at = self._verified.index(verified) + 1
        while at < len(self._verified) and self._verified[at].start <= verified.end:
            after = self._verified.pop(at)
            if after.end > verified.end:
                verified.end, verified.next_offset, verified.epoch = after.end, after.next_offset, after.epoch

    def _add_corrupt_batch(self, verified: VerifiedRange, wrong: str) -> None:
        segment, start = self._segment, verified.end
        first = segment.base_offset if verified.next_offset is None else verified.next_offset
        end_offset = self._end_offset()
        after = find_next_valid_batch(
            segment.file,
            start,
            segment.size_bytes,
            next_offset=first,
            end_offset=end_offset,
            boundaries=self._index,
            synced_offset=self.synced_offset,
        )
        end = segment.size_bytes if after is None else after.position
        last = (
            (first + 1 if end_offset >= NO_END_OFFSET else end_offset) - 1
            if after is None
            else after.header.base_offset - 1
        )
        corruption = Corruption(
            segment.log_path,
            f"the batch at byte {start} is corrupt: {wrong}",
            RECORDS_ADVICE,
            start,
            end - start,
            first,
            max(first, last),
            costs_records=True,
        )
        self._note_corrupt(CorruptRange(start, end, first, max(first, last), corruption))

    def _note_corrupt(self, corrupt: CorruptRange) -> None:
        """Remember, report, and have the log fetched again if that is possible."""
        self.corrupt.append(corrupt)
        report_corruption(corrupt.corruption)
        if self.context is not None:
            self.context.note_fault(self._segment.base_offset)

    def _is_explained(self, verified: VerifiedRange, result: VerifiedBatches, block: Block) -> bool:
        """Return whether the block contains a batch that is corrupt by itself, which explains the block's checksum."""
        if any(corrupt.start < block.end and corrupt.end > block.start for corrupt in self.corrupt):
            return True
        if result.wrong is not None and result.end < block.end:
            return True
        file, size = self._segment.file, self._segment.size_bytes
        for position, end in ((self._boundary_before(block.start), verified.start), (result.end, block.end)):
            at = position
            while at < end:
                ahead = verify_batches(
                    file, at, end, segment_end=size, next_offset=None, end_offset=self._end_offset(), batches_max=1
                )
                if ahead.wrong is not None:
                    return True
                at = ahead.end
        return False

    def _boundary_before(self, position: int) -> int:
        """Return where some batch begins at or before a position, by an index entry that matches the log."""
        index = self._index
        entry = index.at_or_below_position(position)
        while entry is not None and self._base_offset_at(entry, self._segment.base_offset) is None:
            entry = index.entry_before(entry)
        return entry.position if entry is not None else 0

    def _add_corrupt_block(self, verified: VerifiedRange, block: Block, checked_end: int) -> None:
        """Mark all batches of a block corrupt: its bytes changed, but each of its batches is valid by itself."""
        segment, start, next_offset = self._segment, verified.end, verified.next_offset
        end, last = checked_end, None
        for batch in read_headers(segment.file, verified.end, checked_end):
            if batch.end <= block.start:
                start, next_offset, verified.epoch = (
                    batch.end,
                    batch.header.last_offset + 1,
                    batch.header.partition_leader_epoch,
                )
            elif batch.position < block.end:
                end, last = batch.end, batch.header.last_offset
        verified.end, verified.next_offset = start, next_offset
        self._merge(verified)
        first = segment.base_offset if next_offset is None else next_offset
        last = first if last is None else max(last, first)
        what = "it does not match its block checksum; any batch in it may be the corrupt one"
        corruption = Corruption(
            segment.log_path, what, RECORDS_ADVICE, start, end - start, first, last, costs_records=True
        )
        self._note_corrupt(CorruptRange(start, end, first, last, corruption))

    def mark_corrupt(self, found: BatchLocation, first_offset: int, last_offset: int, why: str) -> CorruptRange:
        """Mark a batch corrupt that is valid by itself, but contradicts what is known for certain."""
        start, end = found.position, found.end
        what = f"the batch at byte {start} is corrupt: {why}"
        corruption = Corruption(
            self._segment.log_path,
            what,
            RECORDS_ADVICE,
            start,
            end - start,
            first_offset,
            last_offset,
            costs_records=True,
        )
        corrupt = CorruptRange(start, end, first_offset, last_offset, corruption)
        self._verified = [verified for verified in self._verified if not verified.start <= start < verified.end]
        self._note_corrupt(corrupt)
        return corrupt

    def _end_offset(self) -> int:
        return NO_END_OFFSET if self.context is None else self.context.end_of(self._segment.base_offset)

    def _verified_at(self, position: int) -> VerifiedRange | None:
        at = bisect_right(self._verified, position, key=lambda verified: verified.start) - 1
        return self._verified[at] if at >= 0 and position <= self._verified[at].end else None

    def corruption_at(self, position: int) -> Corruption:
        """Return the corruption of the batch at `position`."""
        corrupt = self._corrupt_at(position)
        assert corrupt is not None, "a range that is not valid is in `corrupt`"
        return corrupt.corruption

    def _corrupt_at(self, position: int) -> CorruptRange | None:
        return next((corrupt for corrupt in self.corrupt if corrupt.start <= position < corrupt.end), None)

    # ---- Iteration

    def batches(
        self, position: int, next_offset: int | None, *, portion: int = PORTION_BYTES
    ) -> Iterator[BatchLocation | CorruptRange]:
        """Yield every batch from `position` on, each verified first, or a corrupt range in place of its batches."""
        segment = self._segment
        while position < segment.size_bytes:
            if position >= self.end:
                yield from read_headers(segment.file, position, segment.size_bytes)
                return
            corrupt = self._corrupt_at(position)
            if corrupt is None:
                end, _ = self.verified_to(position, next_offset, up_to=position + portion)
                for batch in read_headers(segment.file, position, end, chunk_bytes=portion):
                    yield batch
                    position, next_offset = batch.end, batch.header.last_offset + 1
                corrupt = self._corrupt_at(position)
            if corrupt is not None:
                yield corrupt
                position, next_offset = corrupt.end, corrupt.last_offset + 1

    def find(self, offset: int) -> BatchLookup:
        """Find the batch that contains `offset` or the first after it, or the corrupt range that it may be in."""
        position, next_offset, wrong_entry = self._search_start(offset)
        for batch in self.batches(position, next_offset, portion=_LOOKUP_BYTES):
            last = batch.last_offset if isinstance(batch, CorruptRange) else batch.header.last_offset
            if last >= offset:
                break
        else:
            batch = None
        index_is_wrong = wrong_entry is not None and not any(
            corrupt.start <= wrong_entry.position < corrupt.end for corrupt in self.corrupt
        )
        return BatchLookup(batch, index_is_wrong)

    def tail(self) -> list[BatchLocation]:
        """Return the batches from the last index entry to the end; none if that entry or a batch is invalid."""
        position, next_offset, wrong_entry = self._search_start(NO_END_OFFSET)
        batches: list[BatchLocation] = []
        for batch in () if wrong_entry is not None else self.batches(position, next_offset):
            if isinstance(batch, CorruptRange):
                return []
            batches.append(batch)
        return batches if batches and batches[-1].end == self._segment.size_bytes else []

    def end_offset(self) -> int:
        """Return the offset after the last batch, or after the corrupt range in its place."""
        end = self._segment.base_offset
        position, next_offset, _ = self._search_start(NO_END_OFFSET)
        for batch in self.batches(position, next_offset):
            end = 1 + (batch.last_offset if isinstance(batch, CorruptRange) else batch.header.last_offset)
        return end

    def _search_start(self, offset: int) -> tuple[int, int | None, OffsetEntry | None]:
        """Return where a search for `offset` begins: at an index entry that matches the log, or at the segment's start.

        Also returns the first entry that did not match.
        """
        index, wrong_entry = self._index, None
        entry = index.at_or_below(offset)
        while entry is not None:
            before = index.entry_before(entry)
            base_offset = self._base_offset_at(
                entry, self._segment.base_offset if before is None else before.offset + 1
            )
            if base_offset is not None:
                return entry.position, base_offset, wrong_entry
            entry, wrong_entry = before, wrong_entry or entry
        return 0, self._segment.base_offset, wrong_entry

    def _base_offset_at(self, entry: OffsetEntry, lowest: int) -> int | None:
        """Return the base offset of the batch an entry points at, if its last offset is the entry's."""
        segment = self._segment
        if not 0 <= entry.position < segment.size_bytes:
            return None
        if entry.position < self.end and not self.is_verified(entry.position):
            result = verify_batches(
                segment.file,
                entry.position,
                entry.position + 1,
                segment_end=segment.size_bytes,
                next_offset=None,
                end_offset=self._end_offset(),
                batches_max=1,
            )
            if result.wrong is not None:
                return None
        batch = next(read_headers(segment.file, entry.position, segment.size_bytes), None)
        if batch is None or batch.header.last_offset != entry.offset or batch.header.base_offset < lowest:
            return None
        return batch.header.base_offset
