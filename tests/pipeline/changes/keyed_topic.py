"""A topic of keyed records in memory, loads of it that change rows, and the table that a dict says it must be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.changes.apply import ChangeApplier, merge_in_turn
from ottla.pipeline.changes.merge import MergeRunner
from ottla.pipeline.changes.rule import IS_CURRENT, ChangeRule
from ottla.pipeline.event_time import Granularity, TimeRule
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.rewrite import target_of
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import LoadLimits, LoadResult, Tables, TopicLoader, create_tables
from ottla.pipeline.loading.plan import split_among_tasks
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.loading.write_task import WriteSpec
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import RECORDS, TIME
from tests.support.in_process_tasks import run_in_process
from tests.support.lakes import lake_in

BATCH_RECORDS = 5
TOPIC = "people"


@dataclass(frozen=True)
class Record:
    """A record of a topic."""

    key: bytes | None
    value: bytes | None
    time_s: int | None = None
    """Seconds after 1970; None: as many as its offset."""


def row(key: str, **fields: Any) -> Record:
    """A record whose value is a JSON object."""
    return Record(key.encode(), json.dumps(fields).encode())


def gone(key: str) -> Record:
    """A tombstone."""
    return Record(key.encode(), None)


@dataclass
class KeyedTopic:
    """Records by partition."""

    records: dict[int, list[Record]] = field(default_factory=dict)

    def bounds(self) -> dict[int, OffsetBounds]:
        return {partition: OffsetBounds(0, len(found)) for partition, found in self.records.items()}

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        for first in range(offsets.first_offset, offsets.end_offset, BATCH_RECORDS):
            some = range(first, min(first + BATCH_RECORDS, offsets.end_offset))
            records = [self.records[offsets.partition][n] for n in some]
            columns = [
                pa.array([offsets.partition] * len(some), pa.int32()),
                pa.array(some, pa.int64()),
                pa.array([self.time_us(n, record) for n, record in zip(some, records, strict=True)], TIME),
                pa.array([record.key for record in records], pa.binary()),
                pa.array([record.value for record in records], pa.binary()),
            ]
            yield pa.record_batch(columns, schema=RECORDS)

    def time_us(self, offset: int, record: Record) -> int:
        return (offset if record.time_s is None else record.time_s) * 1_000_000


class ChangeBench:
    """A keyed topic's table and quarantine."""

    def __init__(
        self,
        root: Path,
        topic: KeyedTopic,
        rule: ChangeRule,
        *,
        table_format: TableFormat = TableFormat.DELTA,
        merge_runner: MergeRunner = merge_in_turn,
        stem: str = "x",
    ) -> None:
        self.topic, self.rule, self.merge_runner, self.stem = topic, rule, merge_runner, stem
        keep = () if rule.key_fields else ("key",)
        self.mapping = RowMapping(JsonObjects(), TimeRule(granularity=Granularity.NONE), keep=keep, changes=rule)
        lake = lake_in(root, table_format)
        self.tables = Tables(lake.table(TOPIC), lake.quarantine(TOPIC))
        create_tables(self.tables, self.mapping)

    @property
    def table(self) -> LakeTable:
        return self.tables.table

    def loading(self, tables: Tables | None = None) -> TopicLoader:
        into = tables or self.tables
        job = WriteSpec(
            TOPIC,
            self.topic,
            self.mapping,
            target_of(into.table, into.table.spec()),
            target_of(into.quarantine, into.quarantine.spec()),
            pa.schema([]),
            stem=self.stem,
        )
        applier = ChangeApplier(self.rule, self.merge_runner, self.stem, 1 << 20)
        return TopicLoader(into, job, run_in_process, lambda ranges: split_among_tasks(ranges, 2), applier=applier)

    def load(self, **wanted: Any) -> LoadResult:
        return self.loading().run(self.topic.bounds(), LoadLimits(**wanted))

    def rows(self, what: str, where: str = "true") -> list[Any]:
        return by_duckdb(self.table.paths(), what, where)

    def positions(self) -> dict[int, int]:
        return {p: r.end_offset for p, r in self.table.positions(TOPIC, self.topic.records).items()}


def by_duckdb(paths: Sequence[str], what: str, where: str = "true") -> list[Any]:
    """Rows from the files alone, sorted; single columns as they are, several as tuples."""
    if not paths:
        return []
    options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
    sql = f"select {what} from read_parquet($1, {options}) where {where} order by all"
    return [found[0] if len(found) == 1 else found for found in duckdb.execute(sql, [list(paths)]).fetchall()]


def versions_of(table: LakeTable) -> list[LakeTable]:
    """All versions of a table that there are, the newest last."""
    if isinstance(table, DeltaLakeTable):
        return [DeltaLakeTable(table.store, version) for version in range(int(table.version()) + 1)]
    assert isinstance(table, IcebergLakeTable)
    with table._table() as opened:
        return [IcebergLakeTable(table.store, snapshot.snapshot_id) for snapshot in opened.snapshots()]


def latest(topic: KeyedTopic, positions: dict[int, int], quarantined: set[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """The key, partition and offset of each row that the compacted topic has, up to these positions."""
    found: dict[bytes, tuple[int, int]] = {}
    for partition, end in positions.items():
        for offset, record in enumerate(topic.records[partition][:end]):
            if (partition, offset) in quarantined or record.key is None:
                continue
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = (partition, offset)
    return sorted((key, *place) for key, place in found.items())


def versions(topic: KeyedTopic, positions: dict[int, int]) -> list[tuple[Any, ...]]:
    """The partition, offset, validity in seconds and whether it is current, of every version."""
    found: dict[bytes, list[list[Any]]] = {}
    for partition, end in positions.items():
        for offset, record in enumerate(topic.records[partition][:end]):
            assert record.key is not None
            past = found.setdefault(record.key, [])
            since = topic.time_us(offset, record) // 1_000_000
            if past and past[-1][4]:
                since = max(since, past[-1][2])
                past[-1][3:] = [since, False]
            if record.value is not None:
                past.append([partition, offset, since, None, True])
    return sorted(tuple(version) for past in found.values() for version in past)


VERSION = f"partition, \"offset\", epoch(valid_from)::int, epoch(valid_to)::int, {IS_CURRENT} = 'true'"
"""The columns of `versions`, for `ChangeBench.rows`. DuckDB reads directories' names as texts."""
