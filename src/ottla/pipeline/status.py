"""Shows how far the tables of a job, or of a lake, are loaded, by topic and partition: by the brokers and the files."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from ottla.pipeline.connector.offset_client import NoSuchTopic, OffsetClient
from ottla.pipeline.event_time import LATE
from ottla.pipeline.job_file.job import PipelineJob
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import TableReader, topics_of
from ottla.pipeline.lake.parquet_files import read_columns
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import Tables
from ottla.pipeline.loading.load import LoadSpec, resolve_topics
from ottla.pipeline.source import Brokers, topic_state


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


def status_of_lake(lake: Lake, brokers: Brokers, warn: Callable[[str], None]) -> list[PartitionStatus]:
    """Return the status of each partition of every topic that a lake's tables were loaded from, whatever job loads it.

    A topic that is not there any more is a warning. Raises KafkaError, CannotConnect, TableMismatch.
    """
    lines: list[PartitionStatus] = []
    lakes = [replace(lake, table_format=table_format) for table_format in TableFormat]
    lake_tables = [Tables(one.table(name), one.quarantine(name)) for one in lakes for name in one.table_names()]
    with contextlib.closing(OffsetClient(brokers.read_options)) as offset_client:
        for tables in sorted(lake_tables, key=lambda tables: tables.table.name):
            for topic in topics_of(tables.table):
                try:
                    lines += _partitions(tables, offset_client, topic)
                except NoSuchTopic as error:
                    warn(f"{tables.table.name}: {error}")
    return lines


def _topic(spec: LoadSpec, offset_client: OffsetClient, topic: str) -> list[PartitionStatus]:
    return _partitions(spec.tables(topic), offset_client, topic)


def _partitions(tables: Tables, offset_client: OffsetClient, topic: str) -> list[PartitionStatus]:
    state = topic_state(offset_client, topic)
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
