"""Walking a segment's batches: headers only, or with every checksum.

Header walks read small stretches, since bodies are skipped; the checking walk reads large ones, since it needs all.
A walk ends at the first thing that is not a whole batch: a torn or zeroed tail is the end of the log, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla.core.files import File
from ottla.records.batch import CRC_FROM, HEADER_BYTES, MAGIC, BatchHeader

HEADER_CHUNK_BYTES = 4096  # the stretch between two index entries, more or less
_CHECK_CHUNK_BYTES = 4 << 20


class Found(NamedTuple):
    """A batch and where it lies."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + self.header.size_bytes


def looks_whole(header: BatchHeader, room: int) -> bool:
    """Whether a header can be that of a batch inside `room` bytes."""
    return header.magic == MAGIC and HEADER_BYTES <= header.size_bytes <= room and header.last_offset_delta >= 0


def header_at(file: File, position: int, end: int) -> BatchHeader | None:
    """The batch header at `position`, if one can be there."""
    raw = file.read_at(position, HEADER_BYTES)
    if len(raw) < HEADER_BYTES:
        return None
    header = BatchHeader(raw, 0)
    return header if looks_whole(header, end - position) else None


def headers(file: File, position: int, end: int, *, chunk_bytes: int = HEADER_CHUNK_BYTES) -> Iterator[Found]:
    """Every batch from `position` to `end`, by header alone. `position` must be where a batch begins."""
    while position + HEADER_BYTES <= end:
        chunk = file.read_at(position, min(chunk_bytes, end - position))
        at, last = 0, len(chunk) - HEADER_BYTES
        if last < 0:
            return
        while at <= last:
            header = BatchHeader(chunk, at)
            if not looks_whole(header, end - position - at):
                return
            yield Found(position + at, header)
            at += header.size_bytes
        position += at


def checked_batches(
    file: File, position: int, end: int, *, next_offset: int, epoch: int, gaps: bool
) -> Iterator[Found]:
    """Every batch from `position` on that is whole, with its checksum right and its offset behind the last.

    The longest valid prefix is what this yields. Leader epochs never go back from `epoch` on: a batch of an older epoch
    behind one of a newer is what a lost truncation left there, whole as it may be. Each offset follows the one before,
    unless `gaps` says that compaction may have taken batches out: base offsets lie outside the checksum.
    """
    while position + HEADER_BYTES <= end:
        chunk = memoryview(file.read_at(position, min(_CHECK_CHUNK_BYTES, end - position)))
        at = 0
        while at + HEADER_BYTES <= len(chunk):
            header = BatchHeader(chunk, at)
            if not looks_whole(header, end - position - at) or header.base_offset < next_offset:
                return
            if header.base_offset > next_offset and not gaps:
                return
            if header.partition_leader_epoch < epoch:
                return
            size = header.size_bytes
            if at + size > len(chunk):
                if at == 0:  # one batch larger than a chunk
                    chunk = memoryview(file.read_at(position, size))
                    if len(chunk) < size:
                        return
                else:
                    break
            if crc32c(chunk[at + CRC_FROM : at + size]) != header.crc:
                return
            yield Found(position + at, header)
            next_offset, epoch = header.last_offset + 1, header.partition_leader_epoch
            at += size
        if at == 0:
            return
        position += at
