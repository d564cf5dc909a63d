"""Rewrites a table's files: removes rows, promotes column types, merges small files.

All of them read what the newest commit has, write files that no reader sees, and end as one `Change`: readers find the
table before or after it. Each streams row group by row group.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.lake.file_writer import FILE_BYTES, FileTarget, TableWriter
from ottla.pipeline.lake.lake_store import LakeStore
from ottla.pipeline.lake.lake_table import (
    Change,
    LakeTable,
    StagedFile,
    TableFile,
    TableMismatch,
    TableReader,
    TableSpec,
)
from ottla.pipeline.lake.parquet_files import footer_of, read_columns, read_row_groups
from ottla.pipeline.lake.schema import Path, conform, exact_longs, find_leaf, promoted_columns
from ottla.pipeline.offset_range import OffsetRange

Keep = Callable[[pa.Table], Any]
"""From rows with their coordinates to a mask of those that stay."""
_COORDINATES = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class FileSwap:
    """Files to remove, and the ones to put in their place."""

    remove: Sequence[TableFile]
    add: Sequence[StagedFile]


def target_of(table: LakeTable, spec: TableSpec, *, file_bytes: int = FILE_BYTES) -> FileTarget:
    """Return the directory and the layout of new files of a table."""
    return FileTarget(table.store, table.layout, spec.partition_by, file_bytes)


def without_ranges(table: LakeTable, topic: str, ranges: Iterable[OffsetRange], stem: str) -> FileSwap:
    """Remove the rows of these offsets of a topic."""
    wanted = [r for r in ranges if r.count]

    def keep(rows: pa.Table) -> Any:
        inside: Any = pa.scalar(value=False)
        for r in wanted:
            at = rows["offset"]
            part = pc.and_(pc.equal(rows["partition"], r.partition), pc.greater_equal(at, r.first_offset))
            inside = pc.or_(inside, pc.and_(part, pc.less(at, r.end_offset)))
        return pc.invert(pc.and_(pc.equal(rows["topic"], topic), inside))

    def touched(key: str) -> bool:
        return any(_may_hold(table.store, key, topic, r) for r in wanted)

    return _without(table, keep, touched, stem) if wanted else FileSwap((), ())


def without_rows_of(table: LakeTable, store: LakeStore, keys: Iterable[str], stem: str) -> FileSwap:
    """Remove the rows whose coordinates (topic, partition, offset) are in these Parquet files of a store."""
    gone: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for key in keys:
        rows = read_columns(store, key, _COORDINATES)
        by_partition = rows.group_by(["topic", "partition"], use_threads=False).aggregate([("offset", "list")])
        for group in by_partition.to_pylist():
            gone[group["topic"], group["partition"]] += group["offset_list"]
    if not gone:
        return FileSwap((), ())
    sets = {key: pa.array(offsets, pa.int64()) for key, offsets in gone.items()}

    def keep(rows: pa.Table) -> Any:
        out: Any = pa.scalar(value=False)
        for (topic, partition), offsets in sets.items():
            same = pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition))
            out = pc.or_(out, pc.and_(same, pc.is_in(rows["offset"], value_set=offsets)))
        return pc.invert(out)

    spans = [(t, OffsetRange(p, pc.min(o).as_py(), pc.max(o).as_py() + 1)) for (t, p), o in sets.items()]
    return _without(table, keep, lambda at: any(_may_hold(table.store, at, t, r) for t, r in spans), stem)


def _without(table: LakeTable, keep: Keep, touched: Callable[[str], bool], stem: str) -> FileSwap:
    spec = table.spec()
    remove, writer = [], TableWriter(target_of(table, spec), stem)
    try:
        for file in table.files():
            if not touched(file.path):
                continue
            rows = read_columns(table.store, file.path, _COORDINATES)
            if pc.all(keep(rows)).as_py():
                continue
            remove.append(file)
            for rows in read(table, file, spec):
                writer.add(rows.filter(keep(rows)))
        return FileSwap(remove, writer.finish())
    except BaseException:
        writer.abandon()
        raise


def _may_hold(store: LakeStore, key: str, topic: str, wanted: OffsetRange) -> bool:
    """Return whether a file may hold a part of the range, by the limits of each row group in its footer."""
    footer = footer_of(store, key)
    names = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    for n in range(footer.num_row_groups):
        limits = {name: footer.row_group(n).column(names[name]).statistics for name in _COORDINATES}
        if any(limit is None or not limit.has_min_max for limit in limits.values()):
            return True
        topics, partitions, offsets = (limits[name] for name in _COORDINATES)
        inside = offsets.min < wanted.end_offset and offsets.max >= wanted.first_offset
        if topics.min <= topic <= topics.max and partitions.min <= wanted.partition <= partitions.max and inside:
            return True
    return False


def read(table: TableReader, file: TableFile, spec: TableSpec) -> Iterator[pa.Table]:
    """Yield a file's rows, row group by row group, with the columns it is partitioned by; columns it lacks stay out."""
    types = {f.name: f.type for f in spec.schema}
    for rows in read_row_groups(table.store, file.path):
        columns = {name: rows[name] for name in rows.column_names}
        for name in spec.partition_by:
            value = pa.scalar(file.partition_values[name]).cast(types[name])
            columns[name] = pa.repeat(value, len(rows))
        names = [name for name in spec.schema.names if name in columns]
        yield pa.table([conform(columns[name], types[name])[0] for name in names], names=names)


def promote_types(table: LakeTable, wanted: pa.Schema, stem: str) -> list[Path]:
    """Promote the table's columns to the types of `wanted`, by rewriting every file in one commit.

    Readers of a table expect one type per column in all files. Returns the columns that hold a value which the wider
    type cannot hold exactly: then nothing was changed. Raises CommitConflict if the table grew meanwhile.
    """
    spec = table.spec()
    columns = list(promoted_columns(spec.schema, wanted))
    if not columns:
        return []
    schema = pa.schema([wanted.field(f.name) if f.name in wanted.names else f for f in spec.schema])
    files = table.files()
    writer = TableWriter(target_of(table, spec), stem)
    new = TableSpec(schema, spec.partition_by)
    try:
        for file in files:
            for rows in read(table, file, spec):
                fitted = {f.name: conform(rows[f.name], schema.field(f.name).type) for f in rows.schema}
                if any(misfits is not None for _, misfits in fitted.values()):
                    writer.abandon()
                    held = {path for f in rows.schema for path in exact_longs(rows[f.name], (f.name,))}
                    return sorted(path for path in held if find_leaf(schema, path) == (path, pa.float64()))
                writer.add(pa.table({name: values for name, (values, _) in fitted.items()}))
        table.commit(Change("type promotion", remove=files, add=writer.finish(), same_rows=True, schema=new.schema))
    except BaseException:
        writer.abandon()
        raise
    return []


@dataclass(frozen=True, slots=True)
class Compacted:
    """Holds the result of a compaction."""

    files_before: int
    files_after: int
    rows: int
    size_bytes: int


def compact(
    table: LakeTable, stem: str, *, file_bytes: int = FILE_BYTES, progress: Callable[[int], None] = lambda _: None
) -> Compacted:
    """Merge small files of a directory into ones of about `file_bytes`, without changing a row.

    A directory at a time, a commit each: what was done stays done. A merged file that is still small is merged again,
    so that another compaction of the unchanged table finds nothing to do. Loads that commit meanwhile lose nothing;
    a change of the same files (a backfill) makes this one raise CommitConflict.
    """
    spec = table.spec()
    target = target_of(table, spec, file_bytes=sys.maxsize)  # one file from each merge, or merging would not end
    files = {file.path: file for file in table.files()}
    before, rewritten = set(files), set[str]()
    rows = merges = 0
    while bins := list(_bins(files.values(), file_bytes)):
        for small in bins:
            merged = _merge(table, spec, small, TableWriter(target, f"{stem}-{merges}"))
            merges += 1
            for file in small:
                del files[file.path]
            files |= {file.path: file for file in merged}
            rewritten.update(file.path for file in small)
            rows += sum(file.rows for file in merged)
            progress(sum(file.rows for file in merged))
    made = [file for path, file in files.items() if path not in before]
    return Compacted(len(before & rewritten), len(made), rows, sum(file.size_bytes for file in made))


def _merge(table: LakeTable, spec: TableSpec, small: Sequence[TableFile], writer: TableWriter) -> list[StagedFile]:
    try:
        for file in small:
            for part in read(table, file, spec):
                writer.add(with_all_columns(part, spec))
        merged = writer.finish()
        _check_same_rows(small, merged)
        assert len(merged) == 1, "all rows have the columns of the table"
        table.commit(Change("compact", remove=small, add=merged, same_rows=True))
    except BaseException:
        writer.abandon()
        raise
    return merged


def with_all_columns(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Add the columns that the table got after the file was written: rows of one schema go into one file."""
    for field in spec.schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(len(rows), field.type))
    return rows.select(spec.schema.names)


def _check_same_rows(files: Sequence[TableFile], merged: Sequence[TableFile]) -> None:
    before, after = sum(f.rows for f in files), sum(f.rows for f in merged)
    if before != after:
        raise TableMismatch(f"merging {len(files)} files of {before} rows gave {after} rows; nothing was changed")


def _bins(files: Iterable[TableFile], file_bytes: int) -> Iterator[list[TableFile]]:
    """Yield files of one directory that are worth merging: each less than half of what a file should be."""
    directories: Mapping[tuple[tuple[str, str], ...], list[TableFile]] = defaultdict(list)
    for file in files:
        if file.size_bytes < file_bytes // 2:
            directories[tuple(sorted(file.partition_values.items()))].append(file)
    for _, small in sorted(directories.items()):
        merged: list[TableFile] = []
        size = 0
        for file in small:
            if merged and size + file.size_bytes > file_bytes:
                if len(merged) > 1:
                    yield merged
                merged, size = [], 0
            merged.append(file)
            size += file.size_bytes
        if len(merged) > 1:
            yield merged
