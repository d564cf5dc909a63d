"""Shows how far the job's tables are loaded: by topic and partition, from the brokers and from the tables' files."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass

import pyarrow.compute as pc

from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.event_time import LATE
from ottla.pipeline.job_file.job import PipelineJob
from ottla.pipeline.lake.lake_table import TableReader, topics_of
from ottla.pipeline.lake.parquet_files import read_columns
from ottla.pipeline.loading.load import LoadSpec, resolve_topics
from ottla.pipeline.source import topic_state


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Holds the line of one partition."""

    topic: str
    partition: int
    table: str
    start: int | None
    """The first offset the table has; None where nothing was loaded yet."""
    position: int | None
    """The next offset to load."""
    log_end: int
    lag: int
    quarantined: int
    late: int
    last_commit_ms: int | None


def status_of(job: PipelineJob) -> list[PartitionStatus]:
    """Return the status of each partition of all loads.

    Raises NoSuchTopic, KafkaError, CannotConnect, TableMismatch.
    """
    offset_client = OffsetClient(job.brokers.read_options)
    with contextlib.closing(offset_client):
        return [
            line
            for spec in job.loads
            for topic in resolve_topics(spec, offset_client)
            for line in _topic(spec, offset_client, topic)
        ]


def _topic(spec: LoadSpec, offset_client: OffsetClient, topic: str) -> list[PartitionStatus]:
    tables, state = spec.tables(topic), topic_state(offset_client, topic)
    exists = tables.table.exists()
    loaded = exists and topic in topics_of(tables.table)
    held = tables.table.positions(topic, state.bounds) if loaded else {}
    committed = tables.table.committed_ms() if loaded else None
    quarantined = _count(tables.quarantine, topic) if loaded and tables.quarantine.exists() else Counter()
    late = _count(tables.table, topic, late=True) if loaded else Counter()
    return [
        PartitionStatus(
            topic,
            p,
            tables.table.name,
            held[p].first_offset if p in held else None,
            held[p].end_offset if p in held else None,
            span.end_offset,
            span.end_offset - (held[p].end_offset if p in held else span.start_offset),
            quarantined[p],
            late[p],
            committed,
        )
        for p, span in sorted(state.bounds.items())
    ]


def _count(table: TableReader, topic: str, *, late: bool = False) -> Counter[int]:
    """Count rows by partition, from two narrow columns of the files that can hold them."""
    found: Counter[int] = Counter()
    for file in table.files():
        if late and file.partition_values.get(LATE) != "true":
            continue
        rows = read_columns(table.store, file.path, ("topic", "partition"))
        some = rows.filter(pc.equal(rows["topic"], topic)).group_by("partition").aggregate([([], "count_all")])
        for row in some.to_pylist():
            found[row["partition"]] += row["count_all"]
    return found
