"""Formats an audit as JSON, as rows of a table, and as a verdict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ottla.pipeline.audit.model import NO_TIME, AuditCounts, ContentCounts, Discrepancy, TopicAudit
from ottla.pipeline.audit.run import time_text
from ottla.pipeline.lake.rowless_offsets import Deletion
from ottla.pipeline.offset_range import OffsetRange

COLUMNS = (
    "produced",
    "in_log",
    "loaded",
    "late",
    "quarantined",
    "replaced",
    "skipped",
    "deleted",
    "missing",
    "duplicated",
    "waiting",
)
DISCREPANCIES_SHOWN = 20


def as_json(topic_audit: TopicAudit) -> dict[str, Any]:
    """Convert the whole audit: every bucket of every partition, the sums and the faults."""
    until = topic_audit.complete_until_ms
    return {
        "topic": topic_audit.topic,
        "balanced": topic_audit.balanced,
        "complete_until": None if until is None else time_text(until),
        "bucket_ms": topic_audit.bucket_ms,
        "producers": topic_audit.producers,
        "recreated": None if topic_audit.recreated is None else asdict(topic_audit.recreated),
        "total": asdict(topic_audit.total),
        "content": None if topic_audit.content is None else asdict(topic_audit.content),
        "deletions": [_deletion(deletion) for deletion in topic_audit.deletions],
        "faults": [_fault(fault) for fault in topic_audit.faults],
        "partitions": [
            {
                "partition": partition.partition,
                "first_offset": partition.first_offset,
                "position": partition.position,
                "log_start": partition.log_start,
                "log_end": partition.log_end,
                "skipped_offsets": [_range(r) for r in partition.skipped],
                "total": asdict(partition.total),
                "content": None if partition.content is None else asdict(partition.content),
                "buckets": [
                    {"bucket": bucket_text(bucket_ms), **asdict(counts)}
                    for bucket_ms, counts in sorted(partition.lines.items())
                ],
            }
            for partition in topic_audit.partitions
        ],
    }


def partition_rows(topic_audit: TopicAudit) -> list[dict[str, Any]]:
    """Return a row for each partition, and the sum."""
    rows = [
        {"partition": str(partition.partition), **columns(topic_audit, partition.total)}
        for partition in topic_audit.partitions
    ]
    return [*rows, {"partition": "all", **columns(topic_audit, topic_audit.total)}]


def bucket_rows(topic_audit: TopicAudit) -> list[dict[str, Any]]:
    """Return a row for each bucket of time, all partitions together."""
    return [{"from": bucket_text(at), **columns(topic_audit, counts)} for at, counts in topic_audit.by_bucket().items()]


def shown_columns(topic_audit: TopicAudit) -> list[str]:
    """Return the names of the columns people see; records are replaced only where rows change."""
    return [name for name in COLUMNS if topic_audit.by_key or name != "replaced"]


def columns(topic_audit: TopicAudit, counts: AuditCounts) -> dict[str, int | None]:
    """Return the columns people see. Where no producer reports, what was produced is unknown, which is not nothing."""
    found: dict[str, int | None] = {name: getattr(counts, name) for name in shown_columns(topic_audit)}
    if not topic_audit.producers:
        found["produced"] = None
    return found


def bucket_text(bucket_ms: int) -> str:
    """Return the first moment of a bucket.

    >>> bucket_text(1_431_856_800_000), bucket_text(-1)
    ('2015-05-17T10:00:00Z', 'no time')
    """
    return "no time" if bucket_ms == NO_TIME else time_text(bucket_ms)


def verdict(topic_audit: TopicAudit) -> list[str]:
    """Return the last lines of an audit: whether the counts balance, and why not."""
    if (recreated := topic_audit.recreated) is not None:
        return [
            "THE TOPIC WAS DELETED AND CREATED AGAIN: nothing was compared, for its offsets mean other records",
            f"the table was loaded from topic id {recreated.table_topic_id}; the topic has id {recreated.topic_id} now",
            "load the new topic into another table",
        ]
    if not topic_audit.balanced:
        faults = topic_audit.faults
        shown = [f"{topic_audit.topic}: {fault.text}" for fault in faults[:DISCREPANCIES_SHOWN]]
        more = [f"and {len(faults) - DISCREPANCIES_SHOWN:,} more"] if len(faults) > DISCREPANCIES_SHOWN else []
        return ["THE BOOKS DO NOT BALANCE:", *shown, *more, *_explained(topic_audit)]
    until = topic_audit.complete_until_ms
    lines = ["the books balance"]
    if until is not None:
        lines.append(f"complete until {time_text(until)}")
    if topic_audit.total.waiting:
        lines.append(f"{topic_audit.total.waiting:,} records wait to be loaded")
    return [*lines, *_explained(topic_audit)]


def _explained(topic_audit: TopicAudit) -> list[str]:
    """Name the offsets without a row that are no fault."""
    ranges = [f"partition {p.partition}, {r.text}" for p in topic_audit.partitions for r in p.skipped]
    lines = []
    if content := topic_audit.content:
        lines += _content_lines(content)
    if skipped := topic_audit.total.skipped:
        more = [f"and {len(ranges) - DISCREPANCIES_SHOWN:,} more ranges"] if len(ranges) > DISCREPANCIES_SHOWN else []
        named = "; ".join([*ranges[:DISCREPANCIES_SHOWN], *more])
        lines.append(f"skipped: {skipped:,} offsets were deleted from the log before they were loaded: {named}")
    if deleted := topic_audit.total.deleted:
        reasons = "; ".join(dict.fromkeys(deletion.reason for deletion in topic_audit.deletions if deletion.reason))
        lines.append(f"deleted: {deleted:,} offsets without a row are declared" + (f": {reasons}" if reasons else ""))
    return lines


def _content_lines(content: ContentCounts) -> list[str]:
    """Say what the content was compared with, and what could not be."""
    produced = f", of {content.records:,} records with what was produced" if content.records else ""
    lines = [f"content: of {content.rows:,} rows compared{produced}"]
    if content.unproven_rows:
        lines.append(f"content: {content.unproven_rows:,} rows have neither a record in the log nor a checksum")
    if content.remade:
        lines.append(
            f"content: {content.remade:,} rows are as they were loaded, and the job file makes others today: "
            "a backfill replaces them"
        )
    return lines


def _range(r: OffsetRange) -> dict[str, int]:
    return {"first_offset": r.first_offset, "end_offset": r.end_offset}


def _deletion(deletion: Deletion) -> dict[str, Any]:
    ranges = [{"partition": r.partition, **_range(r)} for r in deletion.ranges]
    return {"id": deletion.id, "reason": deletion.reason, "declared": deletion.declared, "offsets": ranges}


def _fault(fault: Discrepancy) -> dict[str, Any]:
    return {
        "kind": fault.kind.value,
        "partition": fault.partition,
        "first_offset": fault.first_offset,
        "end_offset": fault.end_offset,
        "count": fault.count,
        "bucket": None if fault.bucket_ms is None else bucket_text(fault.bucket_ms),
        "key": None if fault.key is None else fault.key.decode("utf-8", "backslashreplace"),
        "text": fault.text,
    }
