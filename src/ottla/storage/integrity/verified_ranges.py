"""Verifies data written by earlier processes, once, before it is first served.

A batch that this process wrote was validated when it arrived. What was in the file when it was opened may be years old,
and `sendfile` never shows it to the broker. So each segment remembers which ranges of it have been verified
(`batch_verifier.py`): a reader waits once, in small portions, until the range it is about to get is verified; later
readers of the range, and readers of newly written records, pay nothing.

A corrupt range is remembered too, with the offsets it covers: reads of these are refused, reads before it end where it
begins, and reads after it continue.

Verified here means: verified since the file was opened. What the disk loses later is for the scrubber to find.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple, Protocol

from ottla.core.files import File
from ottla.records.batch import NO_END_OFFSET
from ottla.records.batch_reader import BatchLocation, read_headers
from ottla.storage.integrity.batch_verifier import VerifiedBatches, find_next_valid_batch, verify_batches
from ottla.storage.integrity.block_checksums import Block, BlockChecksums
from ottla.storage.integrity.corruption import RECORDS_ADVICE, Corruption, report_corruption
from ottla.storage.state.index import OffsetEntry, OffsetIndex
from ottla.storage.state.leader_epochs import UNDEFINED, LeaderEpochs

PORTION_BYTES = 1 << 20  # checked at once: well under a millisecond, reading it included
PORTION_BATCHES = 500  # tiny batches cost their number, not their bytes
_STRETCHES_MAX = 256  # of one segment: what is forgotten beyond that is checked again
_LOOK_UP_BYTES = 16 << 10  # a look-up wants one batch near an index entry


class LogContext(Protocol):
    """What a segment may know of its log."""

    @property
    def trusted_epochs(self) -> LeaderEpochs | None:
        """The epoch cache, where it is known to be right."""
        ...

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction may have taken batches out: then neighbours do not tell each other's offsets."""
        ...

    def end_of(self, base_offset: int) -> int:
        """The offset no batch of the segment that begins at `base_offset` may reach."""
        ...


class VerifiableSegment(Protocol):
    """What is needed of a segment (`segment.py`)."""

    base_offset: int
    size_bytes: int
    offset_index: OffsetIndex

    @property
    def context(self) -> LogContext | None:
        """What its log knows; None before it is part of one."""
        ...

    @property
    def file(self) -> File:
        """The `.log`."""
        ...

    @property
    def checksums(self) -> BlockChecksums | None:
        """Checksums of its blocks, where there are any that count."""
        ...

    @property
    def log_path(self) -> PurePath:
        """Its name, for people."""
        ...


class CorruptRange(NamedTuple):
    """A stretch that is not what was written, and the offsets it stands for."""

    start: int
    end: int
    first_offset: int
    last_offset: int
    damage: Corruption


class VerifiedRange:
    """A stretch that is, from where a batch begins to where one ends."""

    __slots__ = ("end", "epoch", "next_offset", "start")

    def __init__(self, start: int, next_offset: int | None) -> None:
        self.start = self.end = start
        self.next_offset = next_offset  # None: not known before the first batch
        self.epoch = UNDEFINED

    def __lt__(self, other: VerifiedRange) -> bool:
        return self.start < other.start


class VerifiedRanges:
    """How much of one segment has been checked."""

    __slots__ = ("_good", "_segment", "bad", "end", "enough_offset", "indexes_skip_corrupt")

    def __init__(self, segment: VerifiableSegment, end: int, known: list[CorruptRange] | None = None) -> None:
        """`known` is what was found when the file was open earlier: it is not sought again."""
        self._segment = segment
        self.indexes_skip_corrupt = False  # the indexes say nothing of what is damaged
        self.enough_offset: int | None = None  # a run of batches that reaches it is no chance: the file ends torn
        self.end = end  # from here on this process has written it
        self._good: list[VerifiedRange] = []  # by position, none touching another
        self.bad: list[CorruptRange] = known or []

    @property
    def is_done(self) -> bool:
        """Whether all of it has been checked and is good."""
        return len(self._good) == 1 and self._good[0].start == 0 and self._good[0].end >= self.end

    def cut(self, position: int) -> None:
        """The file was truncated."""
        self.end = min(self.end, position)
        self._good = [good for good in self._good if good.end <= position]
        self.bad = [bad for bad in self.bad if bad.end <= position]

    # ---- Verification

    def is_verified(self, position: int) -> bool:
        """Whether the batch that begins at `position` needs no check any more."""
        good = self._good_at(position)
        return position >= self.end or (good is not None and position < good.end)

    def verified_to(self, position: int, next_offset: int | None, *, up_to: int) -> tuple[int, int | None]:
        """Check on from `position`, where a batch begins, up to `up_to` or a portion more than was checked before.

        Gives where good batches end and the offset after them; `position` itself where the batch there is bad.
        """
        good = self._good_at(position)
        if good is None:
            good = VerifiedRange(position, next_offset)
            if len(self._good) >= _STRETCHES_MAX:
                self._good.pop()
            insort(self._good, good)
        if good.end < min(up_to, self.end) and self._bad_at(good.end) is None:
            self._go_on(good, min(up_to, good.end + PORTION_BYTES, self.end))
        if good.end == good.start:
            self._good.remove(good)
        return (good.end if good.end < self.end else max(good.end, self._segment.size_bytes)), good.next_offset

    def _go_on(self, good: VerifiedRange, limit: int) -> None:
        """Check one portion more."""
        segment, context = self._segment, self._segment.context
        result = verify_batches(
            segment.file,
            good.end,
            limit,
            segment_end=segment.size_bytes,
            next_offset=good.next_offset,
            end_offset=self._end_offset(),
            epoch=good.epoch,
            epochs=context.trusted_epochs if context else None,
            batches_max=PORTION_BATCHES,
        )
        if result.end > good.end:
            checksums = segment.checksums if context is not None and context.may_have_gaps else None
            block = None if checksums is None else checksums.first_bad(segment.file, good.end, result.end)
            if block is not None and not self._is_explained(good, result, block):
                self._note_bad_block(good, block, result.end)
                return
            good.end, good.next_offset, good.epoch = result.end, result.next_offset, result.epoch
            self._join(good)
        if result.wrong is not None:
            self._note_bad(good, result.wrong)

    def _join(self, good: VerifiedRange) -> None:
        """Where this stretch has grown into the next one they become one."""
        at = self._good.index(good) + 1
        while at < len(self._good) and self._good[at].start <= good.end:
            after = self._good.pop(at)
            if after.end > good.end:
                good.end, good.next_offset, good.epoch = after.end, after.next_offset, after.epoch

    def _note_bad(self, good: VerifiedRange, wrong: str) -> None:
        segment, start = self._segment, good.end
        first = segment.base_offset if good.next_offset is None else good.next_offset
        end_offset = self._end_offset()
        after = find_next_valid_batch(
            segment.file,
            start,
            segment.size_bytes,
            next_offset=first,
            end_offset=end_offset,
            landmarks=segment.offset_index,
            enough_offset=self.enough_offset,
        )
        end = segment.size_bytes if after is None else after.position
        last = (
            (first + 1 if end_offset >= NO_END_OFFSET else end_offset) - 1
            if after is None
            else after.header.base_offset - 1
        )
        damage = Corruption(
            segment.log_path,
            f"the batch at byte {start} is damaged: {wrong}",
            RECORDS_ADVICE,
            start,
            end - start,
            first,
            max(first, last),
            costs_records=True,
        )
        self.bad.append(CorruptRange(start, end, first, max(first, last), damage))
        report_corruption(damage)

    def _is_explained(self, good: VerifiedRange, result: VerifiedBatches, block: Block) -> bool:
        """Whether a batch that is bad by itself is in the block: then the others in there are what they were."""
        if any(bad.start < block.end and bad.end > block.start for bad in self.bad):
            return True
        if result.wrong is not None and result.end < block.end:
            return True
        file, size = self._segment.file, self._segment.size_bytes
        for position, end in ((self._boundary_before(block.start), good.start), (result.end, block.end)):
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
        """Where some batch begins at or before a position, as far as the index can be believed."""
        index = self._segment.offset_index
        entry = index.at_or_below_position(position)
        while entry is not None and self._agreed(entry, self._segment.base_offset) is None:
            entry = index.entry_before(entry)
        return entry.position if entry is not None else 0

    def _note_bad_block(self, good: VerifiedRange, block: Block, checked_end: int) -> None:
        """Bytes have changed and yet every batch looks right: which one is wrong cannot be told, none is believed."""
        segment, start, next_offset = self._segment, good.end, good.next_offset
        end, last = checked_end, None
        for found in read_headers(segment.file, good.end, checked_end):
            if found.end <= block.start:
                start, next_offset, good.epoch = (
                    found.end,
                    found.header.last_offset + 1,
                    found.header.partition_leader_epoch,
                )
            elif found.position < block.end:
                end, last = found.end, found.header.last_offset
        good.end, good.next_offset = start, next_offset
        self._join(good)
        first = segment.base_offset if next_offset is None else next_offset
        last = first if last is None else max(last, first)
        what = "it is not what it was when its checksum was taken; which batch it is cannot be told"
        damage = Corruption(segment.log_path, what, RECORDS_ADVICE, start, end - start, first, last, costs_records=True)
        self.bad.append(CorruptRange(start, end, first, last, damage))
        report_corruption(damage)

    def mark_corrupt(self, found: BatchLocation, first_offset: int, last_offset: int, why: str) -> CorruptRange:
        """A batch that looks right, but contradicts what is known for certain."""
        start, end = found.position, found.end
        what = f"the batch at byte {start} is damaged: {why}"
        damage = Corruption(
            self._segment.log_path,
            what,
            RECORDS_ADVICE,
            start,
            end - start,
            first_offset,
            last_offset,
            costs_records=True,
        )
        bad = CorruptRange(start, end, first_offset, last_offset, damage)
        self.bad.append(bad)
        self._good = [good for good in self._good if not good.start <= start < good.end]
        report_corruption(damage)
        return bad

    def _end_offset(self) -> int:
        segment = self._segment
        return segment.context.end_of(segment.base_offset) if segment.context else NO_END_OFFSET

    def _good_at(self, position: int) -> VerifiedRange | None:
        at = bisect_right(self._good, position, key=lambda good: good.start) - 1
        return self._good[at] if at >= 0 and position <= self._good[at].end else None

    def corruption_at(self, position: int) -> Corruption:
        """Why the batch at `position` is not given."""
        bad = self._bad_at(position)
        assert bad is not None, "what is not good has been noted as bad"
        return bad.damage

    def _bad_at(self, position: int) -> CorruptRange | None:
        return next((bad for bad in self.bad if bad.start <= position < bad.end), None)

    # ---- Iteration

    def batches(
        self, position: int, next_offset: int | None, *, portion: int = PORTION_BYTES
    ) -> Iterator[BatchLocation | CorruptRange]:
        """Every batch from `position` on, each checked before it is given; a damaged stretch in place of batches."""
        segment = self._segment
        while position < segment.size_bytes:
            if position >= self.end:
                yield from read_headers(segment.file, position, segment.size_bytes)
                return
            bad = self._bad_at(position)
            if bad is None:
                end, _ = self.verified_to(position, next_offset, up_to=position + portion)
                for found in read_headers(segment.file, position, end, chunk_bytes=portion):
                    yield found
                    position, next_offset = found.end, found.header.last_offset + 1
                bad = self._bad_at(position)
            if bad is not None:
                yield bad
                position, next_offset = bad.end, bad.last_offset + 1

    def find(self, offset: int) -> tuple[BatchLocation | CorruptRange | None, bool]:
        """The batch that holds `offset` or the first after it; the damage, where it may have been there.

        And whether the index is wrong: an entry that disagrees with batches which are good.
        """
        position, next_offset, doubted = self._anchor(offset)
        for found in self.batches(position, next_offset, portion=_LOOK_UP_BYTES):
            last = found.last_offset if isinstance(found, CorruptRange) else found.header.last_offset
            if last >= offset:
                break
        else:
            found = None
        index_is_wrong = doubted is not None and not any(bad.start <= doubted.position < bad.end for bad in self.bad)
        return found, index_is_wrong

    def tail(self) -> list[BatchLocation]:
        """The batches from the last index entry on, to the very end; none if that entry or anything after is wrong."""
        position, next_offset, doubted = self._anchor(NO_END_OFFSET)
        found: list[BatchLocation] = []
        for batch in () if doubted is not None else self.batches(position, next_offset):
            if isinstance(batch, CorruptRange):
                return []
            found.append(batch)
        return found if found and found[-1].end == self._segment.size_bytes else []

    def end_offset(self) -> int:
        """The offset after the last batch, or after the damage in its place."""
        end = self._segment.base_offset
        position, next_offset, _ = self._anchor(NO_END_OFFSET)
        for found in self.batches(position, next_offset):
            end = 1 + (found.last_offset if isinstance(found, CorruptRange) else found.header.last_offset)
        return end

    def _anchor(self, offset: int) -> tuple[int, int | None, OffsetEntry | None]:
        """Where a walk to `offset` may begin: at an index entry that the log agrees with, or at the segment's start.

        And the first entry asked that the log did not agree with.
        """
        index, doubted = self._segment.offset_index, None
        entry = index.at_or_below(offset)
        while entry is not None:
            before = index.entry_before(entry)
            base_offset = self._agreed(entry, self._segment.base_offset if before is None else before.offset + 1)
            if base_offset is not None:
                return entry.position, base_offset, doubted
            entry, doubted = before, doubted or entry
        return 0, self._segment.base_offset, doubted

    def _agreed(self, entry: OffsetEntry, lowest: int) -> int | None:
        """The first offset of the batch an entry points at, if both say the same of where it ends."""
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
        found = next(read_headers(segment.file, entry.position, segment.size_bytes), None)
        if found is None or found.header.last_offset != entry.offset or found.header.base_offset < lowest:
            return None
        return found.header.base_offset
