"""Audits one topic and its tables: compares the log, the files and the producers' reports.

Nothing here trusts a figure of the load's own: the log is read, the rows are counted in the files, and what producers
say comes from the topic `__audit`. The completeness watermark is written into the table's properties, for readers who
want to know until when a table is complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ottla.client.audit import BUCKET_MS, ProducedCount
from ottla.client.offsets import OffsetBounds
from ottla.pipeline.audit.compare import OffsetReaders, PartitionExtent, add_produced, take
from ottla.pipeline.audit.model import PartitionAudit, TopicAudit
from ottla.pipeline.audit.readers import LogOffsetReader, TableOffsetReader
from ottla.pipeline.lake.port import LakeTable
from ottla.pipeline.log import OffsetRange, Reader

COMPLETE_UNTIL = "ottla.complete.until"
"""A table's property: an ISO time in UTC. Every record with an earlier time that the log had is in the table."""


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """What is audited."""

    topic: str
    bounds: Mapping[int, OffsetBounds]
    """What the log holds now, by partition."""
    compacts: bool
    """The topic is compacted: its records may go one by one."""
    reader: Reader
    table: LakeTable
    quarantine: LakeTable


def audit(
    what: AuditInputs,
    reports: Iterable[ProducedCount],
    *,
    bucket_ms: int = BUCKET_MS,
    progress: Callable[[int], None] = lambda _: None,
) -> TopicAudit:
    """Audit the topic. Raises what the reader raises. `bucket_ms` is a multiple of the reports' own."""
    held = what.table.positions(what.topic, what.bounds) if what.table.exists() else {}
    sides = OffsetReaders(
        LogOffsetReader(what.reader, progress),
        TableOffsetReader(what.table, what.topic),
        TableOffsetReader(what.quarantine, what.topic),
        compacts=what.compacts,
    )
    by_partition: dict[int, list[ProducedCount]] = defaultdict(list)
    producers = set()
    for report in reports:
        if report.topic == what.topic:
            by_partition[report.partition].append(report)
            producers.add(report.producer)
    partitions: list[PartitionAudit] = []
    for partition, span in sorted(what.bounds.items()):
        have = held.get(partition, OffsetRange(partition, span.start_offset, span.start_offset))
        extent = PartitionExtent(partition, span.start_offset, span.end_offset, have.first_offset, have.end_offset)
        found = take(extent, sides, bucket_ms=bucket_ms)
        add_produced(found, by_partition[partition], bucket_ms=bucket_ms)
        partitions.append(found)
    return TopicAudit(what.topic, bucket_ms, partitions, len(producers))


def write_watermark(table: LakeTable, topic_audit: TopicAudit) -> str | None:
    """Write the completeness watermark to the table's properties. Returns it, or None if there is none.

    It may go back: a loss found in an older bucket makes the promise of completeness untrue, and who reads the property
    must not go on believing it. An empty text says that nothing is known to be complete.
    """
    if not table.exists():
        return None
    until = topic_audit.complete_until_ms
    text = "" if until is None else time_text(until)
    if table.properties().get(COMPLETE_UNTIL, "") != text:
        table.set_properties({COMPLETE_UNTIL: text})
    return text or None


def time_text(time_ms: int) -> str:
    """A time as people and programs read it.

    >>> time_text(1_431_856_800_000)
    '2015-05-17T10:00:00Z'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
