"""Reading a segment whole after a crash: its longest valid prefix, with the indexes and epochs that belong to it.

Every byte is read once, in chunks that the loop in `records/batch_scan.py` checks at the speed of the checksum.
Recovery rebuilds the indexes and leader epochs from it, and notes the positions of the batches of producers, so that
producer state can be rebuilt without reading the file again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.core.files import File
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.batch_scan import BatchScan
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from ottla.storage.state.leader_epochs import LeaderEpochs

_CHUNK_BYTES = 4 << 20


class ValidPrefix(NamedTuple):
    """What of a segment is good."""

    position: int  # behind the last good batch
    end_offset: int
    producers: list[int]  # positions of the batches that producer state can be told from


def recover_valid_prefix(
    segment: Segment, epochs: LeaderEpochs, *, interval_bytes: int, gaps: bool, tell: Callable[[int], None]
) -> ValidPrefix:
    """Make a segment's indexes anew from its longest valid prefix, and note the epochs found. Raises OSError.

    Each offset follows the one before, unless `gaps` says that compaction may have taken batches out; leader epochs
    never go back. `tell` hears how many bytes were read.
    """
    segment.start_rebuild()
    walk = BatchScan(
        segment.base_offset,
        epoch=epochs.latest,
        gaps=gaps,
        offset_max=segment.base_offset + RELATIVE_OFFSET_MAX,
        interval_bytes=interval_bytes,
    )
    file, end = segment.file, segment.size_bytes
    while not walk.ended and walk.position + HEADER_BYTES <= end:
        chunk = _chunk(file, walk.position, end)
        taken = walk.take(chunk, end)
        tell(taken)
        if not taken:
            break
        for entry in walk.entries:
            segment.offset_index.append(entry.last_offset, entry.position)
            segment.time_index.append(entry.greatest_timestamp, entry.greatest_offset)
        walk.entries.clear()
    for epoch, offset in walk.epochs:
        epochs.assign(epoch, offset)
    segment.bytes_since_index = walk.bytes_since_index
    segment.max_timestamp, segment.max_timestamp_offset = walk.greatest_timestamp, walk.greatest_offset
    if walk.position:
        segment.roll_timestamp = BatchHeader(file.read_at(0, HEADER_BYTES)).max_timestamp
    return ValidPrefix(walk.position, walk.next_offset, walk.producers.positions())


def _chunk(file: File, position: int, end: int) -> memoryview:
    """The bytes from a batch's first on: many batches, or the whole of a large one."""
    data = file.read_at(position, min(_CHUNK_BYTES, end - position))
    if len(data) == _CHUNK_BYTES < end - position:
        size = BatchHeader(data).size_bytes
        if _CHUNK_BYTES < size <= end - position:
            data = file.read_at(position, size)
    return memoryview(data)
