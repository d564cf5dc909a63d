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
from functools import partial

import pyarrow as pa

from ottla.client.audit import BUCKET_MS, ProducedCount
from ottla.client.offsets import OffsetBounds
from ottla.core.settings import LONG_MAX
from ottla.pipeline.audit.by_key import KeyComparison, LogKeys, TableKeys, name_keys, offsets_of
from ottla.pipeline.audit.compare import (
    DISCREPANCIES_MAX,
    OffsetReaders,
    PartitionExtent,
    add_produced,
    audit_partition,
)
from ottla.pipeline.audit.model import Discrepancy, DiscrepancyKind, PartitionAudit, RecreatedTopic, TopicAudit
from ottla.pipeline.audit.readers import ExpectedRows, LogOffsetReader, TableOffsetReader
from ottla.pipeline.lake.content_hash import quarantine_checksums, row_checksums
from ottla.pipeline.lake.lake_table import LakeTable, loaded_topic_id
from ottla.pipeline.lake.recorded_content import recorded_content
from ottla.pipeline.lake.rowless_offsets import RowlessOffsets, rowless_offsets
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import TopicReader

COMPLETE_UNTIL = "ottla.complete.until"
"""A table's property: an ISO time in UTC. Every record with an earlier time that the log had is in the table."""


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """Holds the inputs of an audit."""

    topic: str
    bounds: Mapping[int, OffsetBounds]
    """The extent of the log now, by partition."""
    compacts: bool
    """The topic is compacted: its records may go one by one."""
    reader: TopicReader
    table: LakeTable
    quarantine: LakeTable
    topic_id: str = ""
    """The topic's id now; empty where the brokers have none."""
    mapping: RowMapping | None = None
    """The load's mapping, if its records change rows or content is compared too; the reader then brings headers."""


def audit(
    inputs: AuditInputs,
    reports: Iterable[ProducedCount],
    *,
    now_ms: int,
    bucket_ms: int = BUCKET_MS,
    progress: Callable[[int], None] = lambda _: None,
    discrepancies_max: int = DISCREPANCIES_MAX,
) -> TopicAudit:
    """Audit the topic. Raises what the reader raises. `bucket_ms` is a multiple of the reports' own.

    A table that was loaded from another topic of the same name is not compared: `TopicAudit.recreated` names the ids.
    """
    exists = inputs.table.exists()
    rowless = rowless_offsets(inputs.table, inputs.topic) if exists else RowlessOffsets()
    table_topic_id = loaded_topic_id(inputs.table, inputs.topic) if exists else ""
    if table_topic_id and inputs.topic_id and table_topic_id != inputs.topic_id:
        recreated = RecreatedTopic(table_topic_id, inputs.topic_id)
        return TopicAudit(inputs.topic, bucket_ms, [], 0, now_ms, rowless.deletions, recreated)
    held = inputs.table.positions(inputs.topic, inputs.bounds) if exists else {}
    by_key = _KeyAudit.of(inputs, progress) if exists else None
    sides = _readers(inputs, held, progress)
    with_content = inputs.mapping is not None and exists and by_key is None
    by_partition: dict[int, list[ProducedCount]] = defaultdict(list)
    producers = set()
    for report in reports:
        if report.topic == inputs.topic:
            by_partition[report.partition].append(report)
            producers.add(report.producer)
    partitions: list[PartitionAudit] = []
    for partition, span in sorted(inputs.bounds.items()):
        have = held.get(partition, OffsetRange(partition, span.start_offset, span.start_offset))
        skipped, deleted = (
            [r for r in ranges if r.partition == partition] for ranges in (rowless.skipped, rowless.deleted)
        )
        recorded = None
        if with_content:
            recorded = recorded_content(inputs.table, inputs.topic, partition, have.first_offset, have.end_offset)
        extent = PartitionExtent(
            partition,
            span.start_offset,
            span.end_offset,
            have.first_offset,
            have.end_offset,
            skipped,
            deleted,
            recorded,
            [run for report in by_partition[partition] for run in report.runs],
        )
        if by_key is None:
            partition_audit = audit_partition(extent, sides, bucket_ms=bucket_ms, discrepancies_max=discrepancies_max)
        else:
            partition_audit = by_key.audit(extent, bucket_ms, discrepancies_max)
        add_produced(partition_audit, by_partition[partition], bucket_ms=bucket_ms, deleted=deleted)
        partitions.append(partition_audit)
    keyed = by_key is not None
    return TopicAudit(inputs.topic, bucket_ms, partitions, len(producers), now_ms, rowless.deletions, by_key=keyed)


@dataclass(frozen=True, slots=True)
class _KeyAudit:
    """Audits a table whose rows change."""

    log: LogKeys
    table: TableKeys
    quarantine: TableOffsetReader
    history: bool
    compacts: bool

    @staticmethod
    def of(inputs: AuditInputs, progress: Callable[[int], None]) -> _KeyAudit | None:
        """Return the audit of a table whose rows change, None for others."""
        mapping = inputs.mapping
        if mapping is None or mapping.changes is None:
            return None
        fields = pa.schema([f for f in inputs.table.spec().schema if f.name not in mapping.own_columns.names])
        return _KeyAudit(
            LogKeys(inputs.reader, mapping, inputs.topic, fields, progress),
            TableKeys(inputs.table, inputs.topic, mapping.changes),
            TableOffsetReader(inputs.quarantine, inputs.topic),
            mapping.changes.history,
            inputs.compacts,
        )

    def audit(self, extent: PartitionExtent, bucket_ms: int, discrepancies_max: int) -> PartitionAudit:
        """Audit one partition, except for the producers' reports."""
        comparison = KeyComparison(
            extent,
            self.log.read(extent),
            self.table.rows(extent.partition),
            offsets_of(self.quarantine.read(extent.partition, 0, LONG_MAX)),
            self.history,
            self.compacts,
            bucket_ms,
        )
        partition_audit = comparison.audit(discrepancies_max)
        name_keys(partition_audit, self.log, self.table)
        if extent.position < extent.log_start:
            unread = extent.log_start - extent.position
            fault = Discrepancy(DiscrepancyKind.UNREAD, extent.partition, extent.position, extent.log_start, unread)
            partition_audit.faults.append(fault)
        return partition_audit


def _readers(inputs: AuditInputs, held: Mapping[int, OffsetRange], progress: Callable[[int], None]) -> OffsetReaders:
    topic, mapping = inputs.topic, inputs.mapping
    if mapping is None or mapping.changes is not None or not inputs.table.exists():
        return OffsetReaders(
            LogOffsetReader(inputs.reader, progress),
            TableOffsetReader(inputs.table, topic),
            TableOffsetReader(inputs.quarantine, topic),
            compacts=inputs.compacts,
        )
    spec, own = inputs.table.spec(), mapping.own_columns.names
    fields = pa.schema([f for f in spec.schema if f.name not in own])
    expected = ExpectedRows(mapping, topic, fields, spec.partition_by, held)
    return OffsetReaders(
        LogOffsetReader(inputs.reader, progress, expected),
        TableOffsetReader(inputs.table, topic, partial(row_checksums, leave_out=spec.partition_by)),
        TableOffsetReader(inputs.quarantine, topic, quarantine_checksums),
        compacts=inputs.compacts,
    )


def write_watermark(table: LakeTable, topic_audit: TopicAudit) -> str | None:
    """Write the completeness watermark to the table's properties. Returns it, or None if there is none.

    It may decrease: after a loss is found in an older bucket, the table is complete only up to that bucket. An empty
    text says that nothing is known to be complete.
    """
    if not table.exists():
        return None
    until = topic_audit.complete_until_ms
    text = "" if until is None else time_text(until)
    if table.properties().get(COMPLETE_UNTIL, "") != text:
        table.set_properties({COMPLETE_UNTIL: text})
    return text or None


def time_text(time_ms: int) -> str:
    """Return a time as people and programs read it.

    >>> time_text(1_431_856_800_000)
    '2015-05-17T10:00:00Z'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
