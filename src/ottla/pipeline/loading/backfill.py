"""Loads again what was loaded before: a range of offsets, or the quarantined records.

Both change the table and its quarantine by an intent (`lake/intent.py`), which is completed after a crash. Positions
stay where they are, except that a backfill may reach back before all that was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.lake.intent import WORK, Intent, execute_intent, next_number
from ottla.pipeline.lake.lake_table import TableReader
from ottla.pipeline.lake.parquet_files import read_row_groups
from ottla.pipeline.lake.rowless_offsets import rowless_offsets
from ottla.pipeline.loading.commit_protocol import LoadResult, TopicLoader, result_of
from ottla.pipeline.loading.plan import CannotLoad
from ottla.pipeline.offset_range import OffsetRange, offsets_text
from ottla.pipeline.topic_reader import HEADERS, RECORDS


def backfill_topic(
    loader: TopicLoader, bounds: Mapping[int, OffsetBounds], first: Mapping[int, int], end: Mapping[int, int]
) -> LoadResult:
    """Backfill the offsets from `first` to `end`, as far as they were loaded: replace their rows by new ones.

    Run twice it gives the same rows. Raises CannotLoad if the log no longer has all of them, LeaseTaken if
    another process holds the lease, and what `TopicLoader.write_ranges` raises.
    """
    topic, tables = loader.job.topic, loader.tables
    held = tables.table.positions(topic, bounds)
    ranges = _ranges(topic, bounds, held, first, end)
    if not ranges:
        return LoadResult()
    with tables.table.store.lease(WORK) as mine:
        staged = _without_deleted(loader).write_ranges(ranges)
        rows = [f for task in staged for f in task.rows]
        quarantined_files = [f for task in staged for f in task.quarantined]
        number = next_number(tables.table, tables.quarantine)
        execute_intent(
            tables.table, tables.quarantine, Intent(number, "replace", topic, ranges, rows, quarantined_files), mine.id
        )
    return result_of(ranges, (), staged)


def _without_deleted(loader: TopicLoader) -> TopicLoader:
    """Leave out the offsets whose rows were declared deleted: no backfill or replay brings them again."""
    deleted = rowless_offsets(loader.tables.table, loader.job.topic).deleted
    job = replace(loader.job, excluded=tuple(deleted))
    return TopicLoader(loader.tables, job, loader.task_runner, loader.split_ranges)


def _ranges(
    topic: str,
    bounds: Mapping[int, OffsetBounds],
    held: Mapping[int, OffsetRange],
    first: Mapping[int, int],
    end: Mapping[int, int],
) -> list[OffsetRange]:
    ranges = []
    for p, have in sorted(held.items()):
        until = min(end.get(p, have.end_offset), have.end_offset)
        begin = first.get(p, have.first_offset)
        if begin >= until:
            continue
        if begin < bounds[p].start_offset and have.first_offset < bounds[p].start_offset:
            gone = max(begin, have.first_offset)
            raise CannotLoad(
                f"{topic}-{p}: {offsets_text(gone, min(bounds[p].start_offset, until))} of the table: the log no "
                "longer has the records, so they cannot be loaded again. Begin the backfill after them."
            )
        begin = max(begin, bounds[p].start_offset)
        if until < have.first_offset:
            raise CannotLoad(
                f"{topic}-{p}: the table begins at {have.first_offset}; a backfill that ends before it leaves a gap"
            )
        ranges.append(OffsetRange(p, begin, until))
    return ranges


def replay(loader: TopicLoader, partitions: Sequence[int]) -> LoadResult:
    """Try the rows of the quarantine again: those that are understood now go over to the table.

    Each goes over once, whatever dies when. What still does not parse stays where it is, as it is.
    """
    topic, tables = loader.job.topic, loader.tables
    held = tables.table.positions(topic, partitions)
    with tables.table.store.lease(WORK) as mine:
        reader = QuarantineReader(tables.quarantine, topic)
        job = replace(loader.job, reader=reader, stem=mine.id)
        again = _without_deleted(TopicLoader(tables, job, loader.task_runner, loader.split_ranges))
        staged = again.write_ranges(list(held.values()))
        rows = [f for task in staged for f in task.rows]
        for task in staged:
            for file in task.quarantined:  # they are in the quarantine already
                tables.quarantine.store.delete(file.path)
        if rows:
            number = next_number(tables.table, tables.quarantine)
            execute_intent(tables.table, tables.quarantine, Intent(number, "replay", topic, (), rows, ()), mine.id)
    done = result_of([], (), staged)
    return replace(done, files=len(rows), size_bytes=sum(f.size_bytes for f in rows))


@dataclass(frozen=True, slots=True)
class QuarantineReader:
    """A `TopicReader` of the quarantined records."""

    quarantine: TableReader
    topic: str

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range; those of an unfinished load after it are not included."""
        columns = ["topic", "partition", "offset", "record_time", "key", "raw", "headers"]
        schema = RECORDS.append(pa.field("headers", HEADERS))
        wanted: Any = pc.field("topic") == self.topic
        wanted &= pc.field("partition") == offsets.partition
        wanted &= (pc.field("offset") >= offsets.first_offset) & (pc.field("offset") < offsets.end_offset)
        for file in self.quarantine.files():
            for rows in read_row_groups(self.quarantine.store, file.path, columns):
                found = rows.select(columns).filter(wanted)
                found = found.drop_columns("topic").rename_columns(schema.names).cast(schema)
                yield from found.combine_chunks().to_batches()
