"""Verifies the batches in a range of a segment's file, one after another.

A batch is valid when its magic and length are possible, its checksum matches, its offsets follow those before and stay
below those after it, and its leader epoch is the one the epoch cache has for its offset. Base offset, length, epoch and
magic are outside the checksum; a flipped bit in each is detected by:

    length, magic   the checksum, which is then taken of other bytes; or nothing of the kind can be there
    base offset     moved up it reaches into the next batch (or beyond the segment's end), moved down into the last;
                    where compaction has left a gap to move in, only `block_checksums.py` detects it
    leader epoch    the epoch cache, which has a checksum of its own (`metadata_backup.py`); without it, epochs must not
                    decrease

`find_next_valid_batch` finds where the next valid batch begins after a corrupt one, so that a flipped bit costs one
batch.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from ottla.core.files import File
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.batch_faults import describe_fault, framing_fault, is_checksum_right, order_fault
from ottla.records.batch_reader import BatchLocation, read_header, read_headers
from ottla.storage.state.leader_epochs import NO_SPAN, UNDEFINED, LeaderEpochs

_SEARCH_BYTES = 16 << 20  # the range after a corrupt batch that is searched byte by byte for the next one
_WINDOW_BYTES = 1 << 20


def is_reserve(file: File, position: int) -> bool:
    """Return whether a file ends with zeros from `position` on.

    `Segment.append` reserves such space for the next batches.
    """
    while data := file.read_at(position, _WINDOW_BYTES):
        if data.count(0) != len(data):
            return False
        position += len(data)
    return True


class VerifiedBatches(NamedTuple):
    """The end of the valid batches, and the fault of the batch there."""

    end: int  # position
    next_offset: int
    epoch: int
    wrong: str | None  # about the batch at `end`


def verify_batches(
    file: File,
    position: int,
    limit: int,
    *,
    segment_end: int,
    next_offset: int | None,
    end_offset: int,
    epoch: int = UNDEFINED,
    epochs: LeaderEpochs | None = None,
    batches_max: int | None = None,
) -> VerifiedBatches:
    """Verify whole batches from `position` on, up to `limit`, but at least one if there is one.

    `next_offset` is the lowest possible base offset of the first batch; None if unknown. No batch may reach
    `end_offset`, where the segment ends. `epochs` is the epoch cache, if it is known to be correct.
    """
    data = memoryview(file.read_at(position, max(limit - position, HEADER_BYTES)))
    at, count, read = 0, 0, len(data)
    span = NO_SPAN
    while at + HEADER_BYTES <= read and (batches_max is None or count < batches_max):
        header = BatchHeader(data, at)
        base_offset, size, wrong = header.base_offset, header.size_bytes, None
        last_offset, available_bytes = base_offset + header.last_offset_delta, segment_end - position - at
        lowest = base_offset if next_offset is None else next_offset
        fault = framing_fault(header, available_bytes) or order_fault(header, lowest, end_offset, epoch)
        if fault:
            wrong = describe_fault(fault, header, available_bytes, lowest, end_offset, epoch)
        elif epochs is not None and base_offset < epochs.complete_below:
            if not span.start_offset <= base_offset < span.end_offset:
                span = epochs.span_of(base_offset, last_offset)
            if span.epoch not in (UNDEFINED, header.partition_leader_epoch):
                wrong = f"its leader epoch is {header.partition_leader_epoch} where it should be {span.epoch}"
        if wrong is not None:
            return VerifiedBatches(position + at, _or_zero(next_offset), epoch, wrong)
        end = at + size
        if end > read:
            if count:
                break
            data = memoryview(file.read_at(position, size))
            read = len(data)
            if end > read:
                return VerifiedBatches(position, _or_zero(next_offset), epoch, "the file ends inside it")
        if not is_checksum_right(data, header, at):
            return VerifiedBatches(position + at, _or_zero(next_offset), epoch, "its checksum does not match")
        if next_offset != base_offset:
            wrong = _reaches_into_next(file, header, position + end, segment_end, next_offset)
            if wrong is not None:
                return VerifiedBatches(position + at, _or_zero(next_offset), epoch, wrong)
        next_offset, epoch = last_offset + 1, header.partition_leader_epoch
        at, count = end, count + 1
    if not count and position < segment_end:
        return VerifiedBatches(position, _or_zero(next_offset), epoch, "the file has no space for a batch there")
    return VerifiedBatches(position + at, _or_zero(next_offset), epoch, None)


def _or_zero(offset: int | None) -> int:
    return 0 if offset is None else offset


def _reaches_into_next(
    file: File, header: BatchHeader, end: int, segment_end: int, next_offset: int | None
) -> str | None:
    """Describe the fault of a batch that follows a gap and overlaps the next batch; None if it has none."""
    after = read_header(file, end, segment_end)
    if after is None or after.base_offset > header.last_offset:
        return None
    if next_offset is not None and after.base_offset < next_offset:
        return None  # the next one is the one that is wrong
    return (
        f"its offsets are {header.base_offset} to {header.last_offset}, and the next batch begins "
        f"with {after.base_offset}"
    )


class KnownBoundaries(Protocol):
    """Positions in a segment where batches are known to begin, from another source than the batches."""

    def position_at_or_above(self, position: int) -> int | None:
        """Return the next such position; None after the last."""
        ...


def find_next_valid_batch(
    file: File,
    position: int,
    end: int,
    *,
    next_offset: int,
    end_offset: int,
    boundaries: KnownBoundaries,
    synced_offset: int | None = None,
) -> BatchLocation | None:
    """Find the first valid batch after the corrupt one at `position`; None if there is none.

    The next batch is expected where the length of the corrupt one points; otherwise the search goes byte by byte.
    Batches must follow it without a gap up to the next known boundary, the segment's end or `synced_offset`, because a
    record's value may contain whole batches of another log.
    """
    search = _BatchSearch(file, end, next_offset, end_offset, boundaries, synced_offset)
    corrupt = read_header(file, position, end)
    if corrupt is not None:
        batch = search.valid_at(position + corrupt.size_bytes)
        if batch is not None:
            return batch
    # The upper half of a base offset, possible upper bytes of a length, the magic, no unknown attribute.
    pattern = re.compile(
        re.escape((next_offset >> 32).to_bytes(4, "big")) + rb".{4}[\x00-\x07].{3}.{4}\x02.{4}\x00", re.DOTALL
    )
    at, stop = position + 1, min(end, position + _SEARCH_BYTES)
    while at + HEADER_BYTES <= stop:
        window = file.read_at(at, min(_WINDOW_BYTES + HEADER_BYTES, end - at))
        match = pattern.search(window)
        while match is not None and match.start() < _WINDOW_BYTES:
            batch = search.valid_at(at + match.start())
            if batch is not None:
                return batch
            match = pattern.search(window, match.start() + 1)
        at += _WINDOW_BYTES
    return None


class _BatchSearch(NamedTuple):
    file: File
    end: int
    next_offset: int
    end_offset: int
    boundaries: KnownBoundaries
    synced_offset: int | None

    def valid_at(self, position: int) -> BatchLocation | None:
        header = read_header(self.file, position, self.end)
        if header is None or not self.next_offset <= header.base_offset <= header.last_offset < self.end_offset:
            return None
        data = memoryview(self.file.read_at(position, header.size_bytes))
        if len(data) < header.size_bytes or not is_checksum_right(data, header):
            return None
        is_linked = header.last_offset + 1 == self.synced_offset or self._reaches_boundary(position + header.size_bytes)
        return BatchLocation(position, header) if is_linked else None

    def _reaches_boundary(self, position: int) -> bool:
        boundary = self.boundaries.position_at_or_above(position)
        for batch in read_headers(self.file, position, self.end):
            if batch.position == boundary or batch.header.last_offset + 1 == self.synced_offset:
                return True
            position = batch.end
        return position in {boundary, self.end}
