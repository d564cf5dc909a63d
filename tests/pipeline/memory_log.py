"""A topic in memory that implements a write task's `TopicReader`, and loads of it in this process, without Spark or broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import LakeTable, register_topic
from ottla.pipeline.lake.rewrite import target_of
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.backfill import backfill_topic, replay
from ottla.pipeline.loading.commit_protocol import LoadLimits, LoadResult, Tables, TopicLoader, create_tables
from ottla.pipeline.loading.plan import split_among_tasks
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.loading.write_task import WriteSpec
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import HEADERS, RECORDS, TIME
from tests.support.in_process_tasks import run_in_process
from tests.support.lakes import lake_in

BATCH_RECORDS = 7
_SCHEMA = RECORDS.append(pa.field("headers", HEADERS))
Values = list[bytes | None]


@dataclass
class MemoryTopic:
    """Values by partition; keys are the partition's number, record times seconds after 1970 by offset."""

    values: dict[int, Values] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    """What retention left."""
    times_us: dict[int, int | None] = field(default_factory=dict)
    """By offset: the record times that are others, in microseconds."""

    def bounds(self) -> dict[int, OffsetBounds]:
        return {partition: OffsetBounds(self.starts.get(partition, 0), len(v)) for partition, v in self.values.items()}

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        values = self.values[offsets.partition]
        assert offsets.first_offset >= self.starts.get(offsets.partition, 0), "a load reads what the log has"
        for first in range(offsets.first_offset, offsets.end_offset, BATCH_RECORDS):
            range_offsets = range(first, min(first + BATCH_RECORDS, offsets.end_offset))
            yield pa.record_batch(
                [
                    pa.array([offsets.partition] * len(range_offsets), pa.int32()),
                    pa.array(range_offsets, pa.int64()),
                    pa.array([self.times_us.get(n, n * 1_000_000) for n in range_offsets], TIME),
                    pa.array([b"%d" % offsets.partition] * len(range_offsets), pa.binary()),
                    pa.array([values[offset] for offset in range_offsets], pa.binary()),
                    pa.array([[{"key": "h", "value": b"%d" % offset}] for offset in range_offsets], HEADERS),
                ],
                schema=_SCHEMA,
            )


class Bench:
    """Both tables of a topic in memory."""

    def __init__(
        self,
        root: Path,
        topic: MemoryTopic,
        mapping: RowMapping,
        *,
        table_format: TableFormat = TableFormat.DELTA,
        topic_id: str = "id-1",
        stem: str = "x",
        lake: Lake | None = None,
    ) -> None:
        self.topic, self.mapping = topic, mapping
        lake = lake_in(root, table_format) if lake is None else lake
        self.tables = Tables(lake.table("requests"), lake.quarantine("requests"))
        create_tables(self.tables, mapping)
        register_topic(self.tables.table, "web", topic_id)
        self.stem = stem

    @property
    def table(self) -> LakeTable:
        return self.tables.table

    @property
    def quarantine(self) -> LakeTable:
        return self.tables.quarantine

    def loading(self, tables: Tables | None = None) -> TopicLoader:
        into = tables or self.tables
        job = WriteSpec(
            "web",
            self.topic,
            self.mapping,
            target_of(into.table, into.table.spec()),
            target_of(into.quarantine, into.quarantine.spec()),
            pa.schema([]),
            stem=self.stem,
        )
        return TopicLoader(into, job, run_in_process, lambda ranges: split_among_tasks(ranges, 2))

    def load(self, **wanted: Any) -> LoadResult:
        return self.loading().run(self.topic.bounds(), LoadLimits(**wanted))

    def backfill(self, first: Mapping[int, int], end: Mapping[int, int]) -> LoadResult:
        return backfill_topic(self.loading(), self.topic.bounds(), first, end)

    def replay(self) -> LoadResult:
        return replay(self.loading(), sorted(self.topic.values))

    def rows(self, what: str = '"offset"', where: str = "true") -> list[Any]:
        return by_duckdb(self.table, what, where)

    def quarantined_files(self, what: str = '"offset"', where: str = "true") -> list[Any]:
        return by_duckdb(self.quarantine, what, where)

    def check_every_offset_once(self) -> None:
        both = Counter(self.rows('partition, "offset"') + self.quarantined_files('partition, "offset"'))
        wanted = {
            (p, o): 1 for p, span in self.topic.bounds().items() for o in range(span.start_offset, span.end_offset)
        }
        assert both == wanted


def by_duckdb(table: LakeTable, what: str, where: str = "true") -> list[Any]:
    """Rows from the files alone; single columns as they are, several as tuples."""
    return by_duckdb_in(table.paths(), what, where)


def by_duckdb_in(paths: Sequence[str], what: str, where: str = "true") -> list[Any]:
    """Rows of these files of a table."""
    if not paths:
        return []
    options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
    found = duckdb.execute(f"select {what} from read_parquet($1, {options}) where {where}", [paths]).fetchall()
    return [row[0] if len(row) == 1 else row for row in found]
