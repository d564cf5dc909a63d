"""Groups neighbouring segments that are compacted into one: as many as fit, so that small segments are merged too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.storage.cleaning.cleaning_plan import SourceSegment
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX


class SizedSource(NamedTuple):
    """A segment and the sizes of its indexes."""

    source: SourceSegment
    index_bytes: int
    time_index_bytes: int


def group_sources(
    segments: Sequence[SizedSource], *, segment_bytes: int, index_bytes: int
) -> list[list[SourceSegment]]:
    """Group neighbours that together exceed neither a segment's size, nor an index's, nor an index entry's reach.

    A segment that is too large by itself is a group of its own.
    """
    groups: list[list[SourceSegment]] = []
    size = index = time_index = 0
    for source, own_index, own_time_index in segments:
        size += source.size_bytes
        index += own_index
        time_index += own_time_index
        fits = (
            groups
            and size <= segment_bytes
            and index <= index_bytes
            and time_index <= index_bytes
            and source.end_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if fits:
            groups[-1].append(source)
        else:
            groups.append([source])
            size, index, time_index = source.size_bytes, own_index, own_time_index
    return groups
