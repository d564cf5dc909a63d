"""Reads both sides of an audit: a lake table's rows by their offsets, and the log's records.

A table is read a range of offsets at a time. The limits of each row group of its files are read once, from the files'
footers; reading a range then opens only the row groups that may hold some of it, and of those only the narrow columns,
or all of them if their content is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.core.settings import LONG_MAX
from ottla.pipeline.audit.compare import Flags, Longs, OffsetColumns
from ottla.pipeline.audit.model import NO_TIME
from ottla.pipeline.lake.content_hash import Words, record_checksums, row_checksums
from ottla.pipeline.lake.lake_table import TableFile, TableReader
from ottla.pipeline.lake.parquet_files import footer_of, read_columns
from ottla.pipeline.lake.schema import outside_of_years, without
from ottla.pipeline.loading.row_mapping import RowMapper, RowMapping
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

    def __init__(self, table: TableReader, topic: str, checksums: Checksums | None = None) -> None:
        self._table, self._topic, self._checksums = table, topic, checksums
        self._columns: Collection[str] = (*_LIMITED, "record_time", _LATE)
        if checksums is not None and table.exists():
            self._columns = table.spec().schema.names
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
        rows = read_columns(self._table.store, part.file.path, self._columns, part.row_group)
        at = rows["offset"]
        wanted: Any = pc.and_(pc.greater_equal(at, first), pc.less(at, end))
        wanted = pc.and_(wanted, pc.equal(rows["partition"], partition))
        if "topic" in rows.column_names:
            wanted = pc.and_(wanted, pc.equal(rows["topic"], self._topic))
        rows = rows.filter(wanted)
        checksums = None if self._checksums is None else self._checksums(rows)
        return OffsetColumns(
            rows["offset"].to_numpy(), times_ms(rows["record_time"]), self._late(part, rows), checksums
        )

    def _late(self, part: _Part, rows: pa.Table) -> Flags | None:
        if _LATE in rows.column_names:
            return np.asarray(rows[_LATE].fill_null(False).to_numpy(), dtype=np.bool_)
        late = part.file.partition_values.get(_LATE)
        return None if late is None else np.full(len(rows), late == "true", dtype=np.bool_)


Checksums = Callable[[pa.Table], Words]
"""Computes the checksums of rows' content."""


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """Makes of records the rows that a load makes of them, to compare their checksums."""

    mapping: RowMapping
    topic: str
    fields: pa.Schema
    """The table's field columns."""
    partition_by: Sequence[str]
    loaded: Mapping[int, OffsetRange]
    """By partition: other records are not looked at, as they have no rows."""

    def mapper(self) -> RowMapper:
        """Return what makes the rows of one range."""
        return RowMapper(self.mapping, self.topic, self.fields)

    def columns(self, mapper: RowMapper, records: pa.RecordBatch) -> tuple[Words, Flags]:
        """Return the checksums of the records' rows, and which records have one."""
        checksums, makes_row = np.zeros(len(records), np.uint64), np.zeros(len(records), np.bool_)
        loaded = self.loaded.get(records.column("partition")[0].as_py())
        offsets = records.column("offset").to_numpy()
        if loaded is None:
            return checksums, makes_row
        first, end = np.searchsorted(offsets, (loaded.first_offset, loaded.end_offset))
        if first < end:
            rows = mapper.map(records.slice(first, end - first)).rows
            at = np.searchsorted(offsets, rows["offset"].to_numpy())
            checksums[at] = row_checksums(rows, self.partition_by)
            makes_row[at] = True
        return checksums, makes_row


@dataclass(frozen=True, slots=True)
class LogOffsetReader:
    """The log as its readers see it. An `OffsetReader`."""

    reader: TopicReader
    progress: Callable[[int], None] = lambda _: None
    """Called with the number of records counted since the last call."""
    expected: ExpectedRows | None = None
    """If the content is compared too; the reader then brings headers."""

    def read(self, partition: int, first_offset: int, end_offset: int) -> Iterator[OffsetColumns]:
        """Yield the records of a range. Raises what their format raises if the content is compared."""
        mapper = None if self.expected is None else self.expected.mapper()
        for batch in self.reader.read(OffsetRange(partition, first_offset, end_offset)):
            if len(batch):
                self.progress(len(batch))
                offsets, times = batch.column("offset").to_numpy(), times_ms(batch.column("record_time"))
                if self.expected is None or mapper is None:
                    yield OffsetColumns(offsets, times)
                    continue
                rows, makes_row = self.expected.columns(mapper, batch)
                yield OffsetColumns(offsets, times, None, record_checksums(batch), rows, makes_row)


def times_ms(column: pa.Array | pa.ChunkedArray) -> Longs:
    """Return milliseconds since 1970, -1 where there is no time: tables have none outside of the years 1 to 9999.

    >>> times_ms(pa.array([1_500, None, 1 << 62], pa.timestamp("us", tz="UTC"))).tolist()
    [1, -1, -1]
    """
    found = without(column, outside_of_years(column)).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return np.asarray(pc.fill_null(found, NO_TIME).to_numpy(), dtype=np.int64)
