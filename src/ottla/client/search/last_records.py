"""Reads the last records of topics, counted over all partitions, in the order of their timestamps."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.offset_spec import OffsetKind, OffsetSpec, resolve
from ottla.client.offsets import OffsetBounds
from ottla.client.search.matcher import Matcher
from ottla.core.ids import TopicPartition
from ottla.records.record_reader import Record

Placed = tuple[TopicPartition, Record]
Prepare = Callable[[Sequence[Record]], Awaitable[None]]
"""Awaited with the records of a chunk before they are compared: what the comparison needs is fetched."""
_STEP_MAX = 1 << 20
"""Offsets of a partition that are read at a time, at most."""


@dataclass(frozen=True, slots=True)
class LastRecords:
    """The records found, the oldest first, and how far back each partition was read.

    A search that `records_max` ended continues with `begins` as the ends of the bounds.
    """

    records: list[Placed]
    begins: dict[TopicPartition, int]
    read: int
    is_complete: bool  # whether no record before `begins` can be among the last ones


async def last_records(
    cluster: Cluster,
    bounds: Mapping[TopicPartition, OffsetBounds],
    count: int,
    *,
    options: ConsumerOptions,
    matches: Matcher | None = None,
    records_max: int | None = None,
    prepare: Prepare | None = None,
) -> LastRecords:
    """Return the last `count` records that match before the end of the bounds; reads about `records_max` at most.

    Each partition is read backwards, in growing steps, until it has given enough records: offsets may have no record
    (after compaction, and of transaction markers). `prepare` gets the records of a chunk before `matches` does.
    """
    selected: dict[TopicPartition, list[Record]] = {tp: [] for tp in bounds}
    begins = {tp: span.end_offset for tp, span in bounds.items()}
    step, read = count, 0
    while unread := [tp for tp in bounds if len(selected[tp]) < count and begins[tp] > bounds[tp].start_offset]:
        if records_max is not None:
            if read >= records_max:
                return LastRecords(newest(selected, count), begins, read, is_complete=False)
            step = min(step, -(-(records_max - read) // len(unread)))
        starts = {tp: max(bounds[tp].start_offset, begins[tp] - step) for tp in unread}
        last: dict[TopicPartition, list[Record]] = {tp: [] for tp in unread}
        ends = {tp: begins[tp] for tp in unread}
        async with Consumer(cluster, starts, end=ends, options=options) as consumer:
            async for tp, records in consumer.chunks():
                if prepare is not None:
                    await prepare(records)
                matching = records if matches is None else [record for record in records if matches(tp, record)]
                last[tp] = [*last[tp], *matching][-count:]
        for tp in unread:
            selected[tp] = [*last[tp], *selected[tp]][-count:]
            read += ends[tp] - starts[tp]
        begins |= starts
        step = min(2 * step, _STEP_MAX)
    return LastRecords(newest(selected, count), begins, read, is_complete=True)


async def since(
    cluster: Cluster, bounds: Mapping[TopicPartition, OffsetBounds], least_ms: int | None
) -> dict[TopicPartition, OffsetBounds]:
    """Return the bounds without the records before the first one with this timestamp or a later one."""
    if least_ms is None:
        return dict(bounds)
    starts = await resolve(cluster, OffsetSpec(OffsetKind.TIMESTAMP_MS, max(0, least_ms)), bounds)
    return {tp: OffsetBounds(starts[tp], span.end_offset) for tp, span in bounds.items()}


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
