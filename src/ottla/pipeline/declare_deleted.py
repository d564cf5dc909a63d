"""Declares rows of a table that were deleted on purpose, so that the audit counts them apart from lost records."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ottla.core.clock import Clock
from ottla.core.runtime import new_uuid
from ottla.pipeline.audit.model import DiscrepancyKind
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.errors import InvalidDeclaration
from ottla.pipeline.job_file.job import PipelineJob
from ottla.pipeline.lake.lake_table import LakeTable, topics_of
from ottla.pipeline.lake.rowless_offsets import Deletion, declare_deleted, join_ranges, rowless_offsets, withdraw
from ottla.pipeline.offset_range import OffsetRange, parse_offsets
from ottla.pipeline.stages.audit import audit_topic
from ottla.pipeline.stages.runner import Context


def table_of(job: PipelineJob, topic: str) -> LakeTable:
    """Return the table that the job loads a topic into. Raises InvalidDeclaration if there is none."""
    for spec in job.loads:
        table = spec.tables(topic).table
        if spec.loads(topic) and table.exists() and topic in topics_of(table):
            return table
    raise InvalidDeclaration(f"topic {topic} was not loaded by this job: there is nothing to declare")


def parse_ranges(texts: Iterable[str]) -> list[OffsetRange]:
    """Parse `PARTITION:OFFSET` and `PARTITION:FIRST-LAST`. Raises InvalidDeclaration naming the one that is neither.

    >>> parse_ranges(["0:5-7", "1:3"])
    [OffsetRange(partition=0, first_offset=5, end_offset=8), OffsetRange(partition=1, first_offset=3, end_offset=4)]
    """
    found = []
    for text in texts:
        partition, colon, offsets = text.strip().partition(":")
        try:
            if not colon or int(partition) < 0:
                raise ValueError
            found.append(OffsetRange(int(partition), *parse_offsets(offsets)))
        except ValueError:
            raise InvalidDeclaration(f"{text.strip()!r} is not PARTITION:FIRST-LAST, such as 0:5-7") from None
    return join_ranges(found)


def missing_offsets(context: Context, topic: str) -> list[OffsetRange]:
    """Return every offset that the audit finds missing now. Raises what `audit_topic` raises."""
    offset_ranges: list[OffsetRange] = []
    with contextlib.closing(OffsetClient(context.job.brokers.read_options)) as offset_client:
        for spec in context.job.loads:
            if not spec.loads(topic):
                continue
            topic_audit = audit_topic(context, spec, topic, offset_client, discrepancies_max=sys.maxsize)
            offset_ranges += [
                OffsetRange(fault.partition, fault.first_offset, fault.end_offset)
                for fault in topic_audit.faults
                if fault.kind is DiscrepancyKind.MISSING
            ]
    return join_ranges(offset_ranges)


def declare(
    table: LakeTable, topic: str, ranges: Sequence[OffsetRange], *, reason: str, clock: Clock, dry_run: bool = False
) -> Deletion:
    """Keep a declaration with the table. Raises InvalidDeclaration for offsets that the table was not loaded with."""
    held = table.positions(topic, {r.partition for r in ranges})
    for r in ranges:
        have = held.get(r.partition)
        if have is None or r.first_offset < have.first_offset or r.end_offset > have.end_offset:
            loaded = "nothing" if have is None else have.text
            raise InvalidDeclaration(f"partition {r.partition}, {r.text}: the table was loaded with {loaded} of it")
    if not ranges:
        raise InvalidDeclaration("no offsets are named")
    declared = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    deletion = Deletion(new_uuid().hex[:8], reason, declared, join_ranges(ranges))
    if not dry_run:
        declare_deleted(table, topic, deletion)
    return deletion


def withdraw_declaration(table: LakeTable, topic: str, number: str, *, dry_run: bool = False) -> Deletion:
    """Withdraw a declaration. Raises InvalidDeclaration if there is none of this id."""
    for deletion in rowless_offsets(table, topic).deletions:
        if deletion.id == number:
            if not dry_run:
                withdraw(table, topic, deletion)
            return deletion
    raise InvalidDeclaration(f"{table.name} has no declaration {number}; `audit --format json` lists them")
