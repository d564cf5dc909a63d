"""Searches the records of a topic: the newest ones, or from an offset or a time on, by key, text and expression.

A search reads a bounded number of records, so that a page comes soon; it says how far it came, to be continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.offset_spec import OffsetSpec, resolve
from ottla.client.offsets import OffsetBounds, available_bounds
from ottla.client.search.last_records import Prepare, last_records
from ottla.client.search.matcher import Matcher
from ottla.core.ids import TopicPartition
from ottla.records.record_reader import Record

SCANNED_MAX: Final = 50_000
SECONDS_MAX: Final = 5.0
_OPTIONS: Final = ConsumerOptions(max_bytes=4 << 20, partition_max_bytes=1 << 20, max_wait_s=0.1)
_COMMITTED: Final = ConsumerOptions(read_committed=True, max_bytes=4 << 20, partition_max_bytes=1 << 20, max_wait_s=0.1)


@dataclass(slots=True)
class Found:
    """The records that were found, the newest first for a search from the end; and how far it came."""

    records: list[tuple[TopicPartition, Record]] = field(default_factory=list)
    scanned: int = 0
    is_cut: bool = False  # by the limits: there is more to read
    unknown: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Search:
    """A search: from an offset on, or the newest without one."""

    partitions: Sequence[TopicPartition]
    first: OffsetSpec | None
    limit: int
    matches: Matcher | None = None
    prepare: Prepare | None = None
    read_committed: bool = True


async def search(cluster: Cluster, wanted: Search) -> Found:
    """Search within the limits. Raises KafkaError."""
    bounds, unknown = await available_bounds(cluster, wanted.partitions, read_committed=wanted.read_committed)
    result = Found(unknown=unknown)
    options = _COMMITTED if wanted.read_committed else _OPTIONS
    if wanted.first is None:
        await _newest(cluster, wanted, bounds, result, options)
    else:
        starts = await resolve(cluster, wanted.first, bounds)
        await _forward(cluster, wanted, starts, bounds, result, options)
    return result


async def _newest(
    cluster: Cluster,
    wanted: Search,
    bounds: Mapping[TopicPartition, OffsetBounds],
    found: Found,
    options: ConsumerOptions,
) -> None:
    """Read backwards, as `consume --tail` does, but no more records than the limit."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            last = await last_records(
                cluster,
                bounds,
                wanted.limit,
                options=options,
                matches=wanted.matches,
                records_max=SCANNED_MAX,
                prepare=_between_requests(wanted.prepare),
            )
    except TimeoutError:
        found.is_cut = True
        return
    found.records, found.scanned, found.is_cut = last.records[::-1], last.read, not last.is_complete


async def _forward(
    cluster: Cluster,
    wanted: Search,
    starts: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, OffsetBounds],
    found: Found,
    options: ConsumerOptions,
) -> None:
    ends = {tp: span.end_offset for tp, span in bounds.items()}
    try:
        async with asyncio.timeout(SECONDS_MAX), Consumer(cluster, starts, end=ends, options=options) as consumer:
            prepare = _between_requests(wanted.prepare)
            async for tp, records in consumer.chunks():
                await prepare(records)
                for record in records:
                    found.scanned += 1
                    if wanted.matches is None or wanted.matches(tp, record):
                        found.records.append((tp, record))
                        if len(found.records) >= wanted.limit:
                            found.is_cut = True
                            return
                if found.scanned >= SCANNED_MAX:
                    found.is_cut = True
                    return
    except TimeoutError:
        found.is_cut = True


def _between_requests(prepare: Prepare | None) -> Prepare:
    """Return what runs before each chunk: other requests of the loop, and then the preparation."""

    async def prepared(records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        if prepare is not None:
            await prepare(records)

    return prepared
