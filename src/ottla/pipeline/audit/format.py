"""The books for programs and for people: JSON, rows of a table, and the verdict in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ottla.pipeline.audit.model import NO_TIME, Counts, Fault, Sheet
from ottla.pipeline.audit.run import time_text

COLUMNS = ("produced", "in_log", "loaded", "late", "quarantined", "missing", "duplicated", "waiting")
FAULTS_TOLD = 20


def as_json(sheet: Sheet) -> dict[str, Any]:
    """All of it: every bucket of every partition, the sums and the faults."""
    until = sheet.complete_until_ms
    return {
        "topic": sheet.topic,
        "balanced": sheet.balanced,
        "complete_until": None if until is None else time_text(until),
        "bucket_ms": sheet.bucket_ms,
        "producers": sheet.producers,
        "total": asdict(sheet.total),
        "faults": [_fault(fault) for fault in sheet.faults],
        "partitions": [
            {
                "partition": books.partition,
                "first_offset": books.first_offset,
                "position": books.position,
                "log_start": books.log_start,
                "log_end": books.log_end,
                "total": asdict(books.total),
                "buckets": [
                    {"bucket": bucket_text(bucket_ms), **asdict(counts)}
                    for bucket_ms, counts in sorted(books.lines.items())
                ],
            }
            for books in sheet.partitions
        ],
    }


def partition_rows(sheet: Sheet) -> list[dict[str, Any]]:
    """A row for each partition, and the sum."""
    rows = [{"partition": str(books.partition), **columns(sheet, books.total)} for books in sheet.partitions]
    return [*rows, {"partition": "all", **columns(sheet, sheet.total)}]


def bucket_rows(sheet: Sheet) -> list[dict[str, Any]]:
    """A row for each bucket of time, all partitions together."""
    return [{"from": bucket_text(at), **columns(sheet, counts)} for at, counts in sheet.by_bucket().items()]


def columns(sheet: Sheet, counts: Counts) -> dict[str, int | None]:
    """The columns people see. Where no producer reports, what was produced is not known, which is not nothing."""
    found: dict[str, int | None] = {name: getattr(counts, name) for name in COLUMNS}
    if not sheet.producers:
        found["produced"] = None
    return found


def bucket_text(bucket_ms: int) -> str:
    """The first moment of a bucket.

    >>> bucket_text(1_431_856_800_000), bucket_text(-1)
    ('2015-05-17T10:00:00Z', 'no time')
    """
    return "no time" if bucket_ms == NO_TIME else time_text(bucket_ms)


def verdict(sheet: Sheet) -> list[str]:
    """The end of the sheet, line by line."""
    if not sheet.balanced:
        faults = sheet.faults
        told = [f"{sheet.topic}: {fault.text}" for fault in faults[:FAULTS_TOLD]]
        more = [f"and {len(faults) - FAULTS_TOLD:,} more"] if len(faults) > FAULTS_TOLD else []
        return ["THE BOOKS DO NOT BALANCE:", *told, *more]
    until = sheet.complete_until_ms
    lines = ["the books balance"]
    if until is not None:
        lines.append(f"complete until {time_text(until)}")
    if sheet.total.waiting:
        lines.append(f"{sheet.total.waiting:,} records wait to be loaded")
    return lines


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "kind": fault.kind.value,
        "partition": fault.partition,
        "first_offset": fault.first_offset,
        "end_offset": fault.end_offset,
        "count": fault.count,
        "bucket": None if fault.bucket_ms is None else bucket_text(fault.bucket_ms),
        "text": fault.text,
    }
