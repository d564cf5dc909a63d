"""Reads a segment's batches by their headers; a recovery, which checks every byte, uses `batch_scan.py`.

Header walks read small chunks, since bodies are skipped. A walk ends at the first thing that is not a whole batch: a
torn or zeroed tail is the end of the log, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.core.files import File
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.batch_faults import framing_fault

HEADER_CHUNK_BYTES: Final = 4096  # the distance between two index entries, more or less


class BatchLocation(NamedTuple):
    """A batch and its position in a file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """The position after it."""
        return self.position + self.header.size_bytes


def read_header(file: File, position: int, end: int) -> BatchHeader | None:
    """Read the batch header at `position`, if one can be there."""
    raw = file.read_at(position, HEADER_BYTES)
    if len(raw) < HEADER_BYTES:
        return None
    header = BatchHeader(raw, 0)
    return None if framing_fault(header, end - position) else header


def read_headers(
    file: File, position: int, end: int, *, chunk_bytes: int = HEADER_CHUNK_BYTES
) -> Iterator[BatchLocation]:
    """Yield every batch from `position` to `end`, by header alone. `position` must be where a batch begins."""
    while position + HEADER_BYTES <= end:
        chunk = file.read_at(position, min(chunk_bytes, end - position))
        at, last = 0, len(chunk) - HEADER_BYTES
        if last < 0:
            return
        while at <= last:
            header = BatchHeader(chunk, at)
            if framing_fault(header, end - position - at):
                return
            yield BatchLocation(position + at, header)
            at += header.size_bytes
        position += at
