"""Reads the last records of topics, counted over all partitions: `ottla consume --tail`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.offsets import OffsetBounds
from ottla.core.ids import TopicPartition
from ottla.records.record_reader import Record

Placed = tuple[TopicPartition, Record]
_STEP_MAX = 1 << 20
"""Offsets of a partition that are read at a time, at most."""


async def last_records(
    cluster: Cluster,
    bounds: Mapping[TopicPartition, OffsetBounds],
    count: int,
    *,
    options: ConsumerOptions,
    is_wanted: Callable[[Record], bool] = lambda _: True,
) -> list[Placed]:
    """Return the last `count` wanted records before the end of the bounds, the oldest first.

    Each partition is read backwards, in growing steps, until it has given enough records: offsets may have no record
    (after compaction, and of transaction markers).
    """
    found: dict[TopicPartition, list[Record]] = {tp: [] for tp in bounds}
    begin = {tp: span.end_offset for tp, span in bounds.items()}
    step = count
    while unread := [tp for tp in bounds if len(found[tp]) < count and begin[tp] > bounds[tp].start_offset]:
        starts = {tp: max(bounds[tp].start_offset, begin[tp] - step) for tp in unread}
        read: dict[TopicPartition, list[Record]] = {tp: [] for tp in unread}
        ends = {tp: begin[tp] for tp in unread}
        async with Consumer(cluster, starts, end=ends, options=options) as consumer:
            async for tp, records in consumer.chunks():
                read[tp] = [*read[tp], *filter(is_wanted, records)][-count:]
        for tp in unread:
            found[tp] = [*read[tp], *found[tp]][-count:]
        begin |= starts
        step = min(2 * step, _STEP_MAX)
    return newest(found, count)


def newest(found: Mapping[TopicPartition, list[Record]], count: int) -> list[Placed]:
    """Return the records with the greatest timestamps, the oldest first; a partition's own order is kept.

    >>> a, b = (TopicPartition("t", n) for n in (0, 1))
    >>> record = lambda offset, time: Record(offset, time, None, None, [])
    >>> found = {a: [record(0, 5), record(1, 3), record(2, 8)], b: [record(0, 4), record(1, 7)]}
    >>> [(tp.partition, one.timestamp_ms) for tp, one in newest(found, 5)]
    [(0, 5), (0, 3), (1, 4), (1, 7), (0, 8)]
    """
    last = [(-records[-1].timestamp_ms, tp, len(records) - 1) for tp, records in found.items() if records]
    heapq.heapify(last)
    taken: list[Placed] = []
    while last and len(taken) < count:
        _, tp, at = heapq.heappop(last)
        taken.append((tp, found[tp][at]))
        if at:
            heapq.heappush(last, (-found[tp][at - 1].timestamp_ms, tp, at - 1))
    return taken[::-1]
