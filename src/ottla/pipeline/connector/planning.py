"""Plans the tasks for ranges of offsets, and the offsets of one trigger. Pure.

A batch reads `start` to `end` of each partition; `minPartitions` and `maxRecordsPerPartition` cut ranges into pieces
that are read in parallel. A stream's trigger takes at most `maxOffsetsPerTrigger` offsets, shared out over the
partitions in proportion to what each has waiting, so that all of them come to their end together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.range_reader import PartitionRange

Offsets = Mapping[TopicPartition, int]


def ranges(start: Offsets, end: Offsets, ids: Mapping[str, str]) -> list[PartitionRange]:
    """Return one range per partition that has anything to read, in order."""
    return [
        PartitionRange(tp.topic, tp.partition, start[tp], end[tp], ids.get(tp.topic, ""))
        for tp in sorted(end)
        if start[tp] < end[tp]
    ]


def cut(
    whole: Sequence[PartitionRange], *, min_partitions: int | None, max_records: int | None
) -> list[PartitionRange]:
    """Cut the ranges: no piece longer than `max_records` offsets, and at least `min_partitions` of them if possible.

    The longest are cut first, into pieces of equal length as far as whole numbers go.
    """
    pieces = {at: -(-_length(r) // max_records) if max_records else 1 for at, r in enumerate(whole)}
    total = sum(_length(r) for r in whole)
    if min_partitions is not None and total > 0 and sum(pieces.values()) < min_partitions:
        share = {at: _length(r) * min_partitions / total for at, r in enumerate(whole)}
        pieces = {at: min(_length(whole[at]), max(count, round(share[at]))) for at, count in pieces.items()}
        while sum(pieces.values()) < min_partitions:
            longest = max(pieces, key=lambda at: _length(whole[at]) / pieces[at])
            if pieces[longest] >= _length(whole[longest]):
                break
            pieces[longest] += 1
    return [piece for at, r in enumerate(whole) for piece in _pieces(r, pieces[at])]


def bounded(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return the end of a trigger that takes at most `limit` offsets: never before `start`, never after `end`.

    >>> a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> sorted(bounded({a: 0, b: 0}, {a: 300, b: 100}, 40).values())
    [10, 30]
    """
    waiting = {tp: max(0, end[tp] - start[tp]) for tp in end}
    total = sum(waiting.values())
    if total <= limit:
        return {tp: start[tp] + count for tp, count in waiting.items()}
    taken = {tp: count * limit // total for tp, count in waiting.items()}
    left = limit - sum(taken.values())
    # What rounding left over goes where the share was cut most, so that no partition starves under a small limit.
    for tp in sorted(waiting, key=lambda tp: (-(waiting[tp] * limit % total), tp))[:left]:
        taken[tp] += 1
    return {tp: start[tp] + count for tp, count in taken.items()}


def _length(r: PartitionRange) -> int:
    return r.end_offset - r.first_offset


def _pieces(r: PartitionRange, count: int) -> list[PartitionRange]:
    edges = [r.first_offset + _length(r) * n // count for n in range(count + 1)]
    return [
        PartitionRange(r.topic, r.partition, first, end, r.topic_id)
        for first, end in itertools.pairwise(edges)
        if first < end
    ]
