"""Reads a segment for compaction: every batch whole, in order, its checksum valid. Anything else is corruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ottla.core.files import File, FileAccess
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.batch_faults import framing_fault, is_checksum_right, order_fault
from ottla.storage.cleaning.cleaning_plan import SourceSegment
from ottla.storage.cleaning.errors import SegmentGone, Uncleanable
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.file_names import LOG_SUFFIX, offset_name
from ottla.storage.state.aborted_index import AbortedTransaction, read_aborted

_CHUNK_BYTES_MIN = 16 << 10


def batches_of(
    files: FileAccess,
    directory: PurePath,
    source: SourceSegment,
    *,
    from_offset: int,
    buffer_bytes: int,
    throttle: Throttler,
) -> Iterator[tuple[BatchHeader, bytes, int]]:
    """Yield the batches of a segment that reach `from_offset` or come after it.

    Each comes as its header, a part of the file, and where in it the batch begins.

    Raises Uncleanable at the first that is not whole, has a wrong checksum or an offset out of order; SegmentGone.
    """
    path = directory / offset_name(source.base_offset, LOG_SUFFIX)
    try:
        file = files.open(path)
    except FileNotFoundError:
        raise SegmentGone(str(path)) from None
    try:
        if file.size() < source.size_bytes:
            raise SegmentGone(f"{path} was cut")
        yield from _batches(file, path, source, from_offset, max(buffer_bytes, _CHUNK_BYTES_MIN), throttle)
    finally:
        file.close()


def _batches(
    file: File, path: PurePath, source: SourceSegment, from_offset: int, chunk_bytes: int, throttle: Throttler
) -> Iterator[tuple[BatchHeader, bytes, int]]:
    position, end, next_offset = 0, source.size_bytes, source.base_offset
    wanted = chunk_bytes
    while position < end:
        chunk = file.read_at(position, min(wanted, end - position))
        throttle.passed(len(chunk))
        at, wanted = 0, chunk_bytes
        with memoryview(chunk) as view:
            while len(chunk) - at >= HEADER_BYTES:
                header = BatchHeader(chunk, at)
                if framing_fault(header, end - position - at):
                    raise Uncleanable(f"{path} holds no whole batch at byte {position + at}")
                size = header.size_bytes
                if size > len(chunk) - at:
                    wanted = max(size, chunk_bytes)  # comes whole with the next chunk
                    break
                if order_fault(header, next_offset, source.end_offset):
                    raise Uncleanable(f"{path}: offset {header.base_offset} at byte {position + at} is out of order")
                next_offset = header.last_offset + 1
                if next_offset > from_offset:
                    if not is_checksum_right(view, header, at):
                        raise Uncleanable(f"{path}: the batch at offset {header.base_offset} has a wrong checksum")
                    yield header, chunk, at
                at += size
        if at == 0 and len(chunk) < min(wanted, end - position):
            raise Uncleanable(f"{path} ends inside a batch at byte {position}")
        position += at


def aborted_in(files: FileAccess, directory: PurePath, bases: Iterator[int]) -> list[AbortedTransaction]:
    """Read all aborted transactions from the indexes of the segments at these base offsets. Raises Uncleanable."""
    transactions: list[AbortedTransaction] = []
    for base in bases:
        path = directory / offset_name(base, ".txnindex")
        entries = read_aborted(files, path)
        if entries is None:
            raise Uncleanable(f"{path}, the index of aborted transactions, is corrupt")
        transactions.extend(entries)
    return transactions
