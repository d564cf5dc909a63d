"""Reads the files of one bucket: the changes that tasks wrote, and the rows that the table has.

Only the columns that decide (key, place, time) are in memory for all of a bucket; the rows themselves go through
row group by row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ottla.core.runtime import new_uuid
from ottla.pipeline.changes.rule import BUCKET, DELETED, ChangeRule
from ottla.pipeline.event_time import EVENT_TIME
from ottla.pipeline.lake.file_writer import TableWriter
from ottla.pipeline.lake.lake_table import LakeTable, StagedFile, TableFile, TableMismatch, TableSpec
from ottla.pipeline.lake.parquet_files import read_columns, read_row_groups
from ottla.pipeline.lake.rewrite import read, target_of, with_all_columns
from ottla.pipeline.lake.schema import conform

NO_TIME = np.iinfo(np.int64).min
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


class KeyInTwoPartitions(TableMismatch):
    """Two partitions have records of one key: offsets do not say which of them is newer. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class MergeSpec:
    """The parameters of a merge besides its bucket. Serialized to the tasks."""

    table: LakeTable
    spec: TableSpec
    """The table's columns and partitioning, as the merge was planned."""
    rule: ChangeRule
    stem: str
    """The beginning of the names of its files: the id of the load's lease."""
    file_bytes: int

    def writer(self) -> TableWriter:
        """Return a writer of the table's files. Names are never used again: a task may run twice."""
        stem = f"{self.stem}-{new_uuid().hex[:12]}"
        return TableWriter(target_of(self.table, self.spec, file_bytes=self.file_bytes), stem)


@dataclass(frozen=True, slots=True)
class BucketWork:
    """Names the files that are merged in one bucket."""

    bucket: int
    changes: Sequence[StagedFile]
    files: Sequence[TableFile]
    """The table's files that may have rows of the keys."""


@dataclass(frozen=True, slots=True)
class BucketChanges:
    """The deciding columns of a bucket's changes, sorted by key and then by offset."""

    order: Longs
    """The place of each change in the files, read one after the other."""
    firsts: Longs
    """The beginning of each key in the order."""
    ends: Longs
    keys: pa.Array
    """The identity of each key, in the order of `firsts`."""
    partitions: Longs
    """By key."""
    deleted: Flags
    """By change, in the order."""
    times_us: Longs
    """The event time by change, in the order; NO_TIME where it has none."""

    @staticmethod
    def read(job: MergeSpec, work: BucketWork) -> BucketChanges:
        """Read them. Raises KeyInTwoPartitions."""
        column_names = (*job.rule.identity_columns, "partition", "offset", EVENT_TIME, DELETED)
        parts = [read_columns(job.table.store, file.path, column_names) for file in work.changes]
        columns = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        identities = job.rule.identities(columns)
        codes = identities.dictionary_encode().indices.to_numpy().astype(np.int64)
        partitions, offsets = (columns[name].to_numpy().astype(np.int64) for name in ("partition", "offset"))
        order = np.lexsort((offsets, partitions, codes))
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        ends = np.append(starts[1:], len(order))
        moved = np.flatnonzero(partitions[order[starts]] != partitions[order[ends - 1]])
        keys = identities.take(pa.array(order[starts]))
        if len(moved):
            one, other = order[starts[moved[0]]], order[ends[moved[0]] - 1]
            _refuse(keys[moved[0]].as_py(), (partitions[one], offsets[one]), (partitions[other], offsets[other]))
        times = pc.fill_null(columns[EVENT_TIME].cast(pa.int64()), NO_TIME).to_numpy()
        deleted = columns[DELETED].to_numpy()
        return BucketChanges(order, starts, ends, keys, partitions[order[starts]], deleted[order], times[order])

    def find(self, identities: pa.Array) -> Longs:
        """Return the number of the key of each row; -1 for keys that do not change."""
        numbers = pc.fill_null(pc.index_in(identities, value_set=self.keys), -1)
        return np.asarray(numbers.to_numpy(), dtype=np.int64)

    def check_partitions(self, rows: pa.Table, keys: Longs) -> None:
        """Raise KeyInTwoPartitions if a row's record was in another partition than the change of its key."""
        where = np.flatnonzero(keys >= 0)
        have = rows["partition"].to_numpy()[where]
        wrong = np.flatnonzero(have != self.partitions[keys[where]])
        if len(wrong):
            at, key = where[wrong[0]], keys[where[wrong[0]]]
            _refuse(self.keys[key].as_py(), (have[wrong[0]], rows["offset"][at].as_py()), (self.partitions[key], None))


def _refuse(key: bytes, one: tuple[int, int], other: tuple[int, int | None]) -> None:
    second = f"partition {other[0]}" + (f" at offset {other[1]}" if other[1] is not None else "")
    raise KeyInTwoPartitions(
        f"key {key!r} is in partition {one[0]} at offset {one[1]} and in {second}: offsets do not say which is newer. "
        "A key belongs to one partition; where partitions were added to the topic, load a copy of it made by key"
    )


def deciding_columns(job: MergeSpec, file: TableFile) -> pa.Table:
    """Read the columns of a table's file that decide whether its rows change."""
    names = (*job.rule.identity_columns, "partition", "offset", *(f.name for f in job.rule.version_columns))
    rows = read_columns(job.table.store, file.path, names)
    types = {f.name: f.type for f in job.spec.schema}
    for name in job.rule.identity_columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows), types[name]))
    return rows


def table_rows(job: MergeSpec, file: TableFile) -> Iterator[pa.Table]:
    """Yield the rows of a table's file, with all columns that the table has."""
    for rows in read(job.table, file, job.spec):
        yield with_all_columns(rows, job.spec)


def change_rows(job: MergeSpec, work: BucketWork) -> Iterator[pa.Table]:
    """Yield the rows of change files in the table's columns, without those of a version's validity."""
    names = [f.name for f in job.spec.schema]
    types = {f.name: f.type for f in job.spec.schema}
    for file in work.changes:
        for rows in read_row_groups(job.table.store, file.path):
            columns: dict[str, Any] = {}
            for name in names:
                if name == BUCKET:
                    columns[name] = pa.repeat(pa.scalar(work.bucket, pa.int32()), len(rows))
                elif name in rows.column_names:
                    columns[name] = conform(rows[name], types[name])[0]
                else:
                    columns[name] = pa.nulls(len(rows), types[name])
            yield pa.table(columns)
