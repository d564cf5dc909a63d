"""Reads both sides of an audit: a lake table's rows by their offsets, and the log's records.

A table is read a range of offsets at a time. The limits of each row group of its files are read once, from the files'
footers; reading a range then opens only the row groups that may hold some of it, and of those only the narrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.core.settings import LONG_MAX
from ottla.pipeline.audit.compare import Flags, Longs, OffsetColumns
from ottla.pipeline.audit.model import NO_TIME
from ottla.pipeline.event_time import without
from ottla.pipeline.lake.lake_table import TableFile, TableReader
from ottla.pipeline.lake.parquet_files import footer_of, read_columns
from ottla.pipeline.lake.schema import outside_of_years
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import TopicReader

_LATE = "late"
_LIMITED = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class _Part:
    """One row group of one file, and what it can hold."""

    file: TableFile
    row_group: int
    topics: tuple[str, str] | None
    """The first and the last in the alphabet; None where the file does not say."""
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def may_hold(self, topic: str, partition: int, first: int, end: int) -> bool:
        if self.topics is not None and not self.topics[0] <= topic <= self.topics[1]:
            return False
        in_partition = self.partitions[0] <= partition <= self.partitions[1]
        return in_partition and self.offsets[0] < end and self.offsets[1] >= first


class TableOffsetReader:
    """A table's rows of one topic, as of the moment this was made. An `OffsetReader`."""

    def __init__(self, table: TableReader, topic: str) -> None:
        self._table, self._topic = table, topic
        self._parts = [part for file in table.files() for part in self._parts_of(file)] if table.exists() else []

    def read(self, partition: int, first_offset: int, end_offset: int) -> Iterator[OffsetColumns]:
        """Yield the rows of a range, row group by row group."""
        for part in self._parts:
            if part.may_hold(self._topic, partition, first_offset, end_offset):
                columns = self._read(part, partition, first_offset, end_offset)
                if len(columns.offsets):
                    yield columns

    def _parts_of(self, file: TableFile) -> Iterator[_Part]:
        footer = footer_of(self._table.store, file.path)
        column_index = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            limits = {name: group.column(column_index[name]).statistics for name in _LIMITED if name in column_index}
            known = {name: (s.min, s.max) for name, s in limits.items() if s is not None and s.has_min_max}
            everything = (0, LONG_MAX)
            yield _Part(
                file, number, known.get("topic"), known.get("partition", everything), known.get("offset", everything)
            )

    def _read(self, part: _Part, partition: int, first: int, end: int) -> OffsetColumns:
        columns = (*_LIMITED, "record_time", _LATE)
        rows = read_columns(self._table.store, part.file.path, columns, part.row_group)
        at = rows["offset"]
        wanted: Any = pc.and_(pc.greater_equal(at, first), pc.less(at, end))
        wanted = pc.and_(wanted, pc.equal(rows["partition"], partition))
        if "topic" in rows.column_names:
            wanted = pc.and_(wanted, pc.equal(rows["topic"], self._topic))
        rows = rows.filter(wanted)
        return OffsetColumns(rows["offset"].to_numpy(), times_ms(rows["record_time"]), self._late(part, rows))

    def _late(self, part: _Part, rows: pa.Table) -> Flags | None:
        if _LATE in rows.column_names:
            return np.asarray(rows[_LATE].fill_null(False).to_numpy(), dtype=np.bool_)
        late = part.file.partition_values.get(_LATE)
        return None if late is None else np.full(len(rows), late == "true", dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class LogOffsetReader:
    """The log as its readers see it. An `OffsetReader`."""

    reader: TopicReader
    """One that leaves keys and values out, if there is one: they are not looked at."""
    progress: Callable[[int], None] = lambda _: None
    """Called with the number of records counted since the last call."""

    def read(self, partition: int, first_offset: int, end_offset: int) -> Iterator[OffsetColumns]:
        """Yield the records of a range."""
        for batch in self.reader.read(OffsetRange(partition, first_offset, end_offset)):
            if len(batch):
                self.progress(len(batch))
                yield OffsetColumns(batch.column("offset").to_numpy(), times_ms(batch.column("record_time")))


def times_ms(column: pa.Array | pa.ChunkedArray) -> Longs:
    """Return milliseconds since 1970, -1 where there is no time: tables have none outside of the years 1 to 9999.

    >>> times_ms(pa.array([1_500, None, 1 << 62], pa.timestamp("us", tz="UTC"))).tolist()
    [1, -1, -1]
    """
    found = without(column, outside_of_years(column)).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return np.asarray(pc.fill_null(found, NO_TIME).to_numpy(), dtype=np.int64)
