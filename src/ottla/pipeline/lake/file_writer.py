"""Writes a table's Parquet files: few and large ones, in bounded memory, durable before a commit names them.

Rows gather per directory (a day, an hour) and go out as row groups into files that stay open until they are large
enough, so a load makes about one file per directory and task, however much it brings. No reader sees a file
before a commit names it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.pipeline.lake.lake_store import LakeStore, Output, StoredObject
from ottla.pipeline.lake.lake_table import Layout, StagedFile

STAGED_FILE = re.compile(r"part-(?:[A-Za-z0-9_]+-)?[0-9a-f]{12}(?:-[0-9a-z]+)*-\d+\.parquet")
"""The names of the files that `TableWriter` writes, by the id of a lease or a task. No other writer uses them."""
ROW_GROUP_BYTES = 32 << 20
"""Of one directory's rows in memory: then they go out."""
GATHERED_BYTES_MAX = 96 << 20
"""Of all directories' rows in memory: then the largest go out until half is left."""
FILE_BYTES = 256 << 20
"""A file this large is closed and another one begun."""
OPEN_FILES_MAX = 64

_CLIMBING = frozenset({"offset", "record_time", "event_time"})
"""Numbers that climb: small as differences, useless as a dictionary."""
_LIMITS = ("topic", "partition", "offset", "record_time", "event_time")
"""Columns whose least and greatest value a commit contains."""


def staged_files(table: LakeStore, layout: Layout, partition_by: Sequence[str]) -> list[StoredObject]:
    """Return a table's files that a `TableWriter` wrote for it, by their names and directories."""
    directories = "".join(f"{re.escape(name)}=[^/]*/" for name in partition_by)
    key_pattern = re.compile(f"{re.escape(layout.data)}{directories}{STAGED_FILE.pattern}")
    return [stored for stored in table.objects(layout.data) if key_pattern.fullmatch(stored.key)]


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Names the place and the layout of one table's files: a value, for it is sent to the tasks."""

    store: LakeStore
    layout: Layout
    partition_by: tuple[str, ...]
    file_bytes: int = FILE_BYTES


def discard(target: FileTarget, files: Iterable[StagedFile]) -> None:
    """Delete files that no commit names. What cannot be deleted now is an orphaned file, which maintenance deletes."""
    for file in files:
        with contextlib.suppress(OSError):
            target.store.delete(file.path)


class _OpenFile:
    """One file that is being written."""

    def __init__(self, name: str, output: Output, schema: pa.Schema, values: Mapping[str, str]) -> None:
        self.name, self.schema, self.values = name, schema, values
        self.rows = 0
        self.lows: dict[str, Any] = {}
        self.highs: dict[str, Any] = {}
        self._output = output
        self._writer = pq.ParquetWriter(output.sink, schema, **_options(schema))

    @property
    def size_bytes(self) -> int:
        """Return the bytes written so far."""
        return int(self._output.sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(rows, row_group_size=len(rows))
        self.rows += len(rows)
        for name in _LIMITS:
            if name in rows.column_names:
                self._note_limits(name, rows[name])

    def _note_limits(self, name: str, column: pa.ChunkedArray) -> None:
        found = pc.min_max(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).as_py()
        if found["min"] is not None:
            self.lows[name] = min(found["min"], self.lows.get(name, found["min"]))
            self.highs[name] = max(found["max"], self.highs.get(name, found["max"]))

    def close(self) -> StagedFile:
        """Finish it; its bytes are durable, its name not yet."""
        self._writer.close()
        written = self._output.close()
        return StagedFile(
            self.name, written.size_bytes, self.rows, self.values, written.modified_ms, self.lows, self.highs
        )

    def abandon(self) -> None:
        """Drop the file unfinished."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._output.abandon()


@dataclass(slots=True)
class _Gathered:
    """Rows of one directory, waiting to be written."""

    tables: list[pa.Table] = field(default_factory=list)
    size_bytes: int = 0


class TableWriter:
    """Writes rows of one table: `add` as often as wanted, then `finish` or `abandon`. `stem` makes the names unique."""

    def __init__(self, target: FileTarget, stem: str) -> None:
        self._target, self._stem = target, stem
        self._numbers = itertools.count()
        self._gathered: dict[tuple[str, ...], _Gathered] = {}
        self._gathered_bytes = 0
        self._open: dict[tuple[str, ...], _OpenFile] = {}
        self._done: list[StagedFile] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows that have the table's partition columns; more columns than before are fine."""
        for key, part in split(rows, self._target.partition_by):
            if not self._target.layout.partition_columns_in_files:
                part = part.drop_columns(list(self._target.partition_by))  # noqa: PLW2901 - the directory says it
            waiting = self._gathered.setdefault(key, _Gathered())
            waiting.tables.append(part)
            size = part.nbytes
            waiting.size_bytes += size
            self._gathered_bytes += size
            if waiting.size_bytes >= ROW_GROUP_BYTES:
                self._write_out(key)
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            for key in sorted(self._gathered, key=lambda k: -self._gathered[k].size_bytes):
                self._write_out(key)
                if self._gathered_bytes < GATHERED_BYTES_MAX // 2:
                    break

    def finish(self) -> list[StagedFile]:
        """Write what waits; returns the files, durable with their names."""
        for key in list(self._gathered):
            self._write_out(key)
        for key in list(self._open):
            self._close(key)
        if self._done:
            self._target.store.sync_names(file.path for file in self._done)
        return self._done

    def abandon(self) -> None:
        """Delete what was written."""
        for file in self._open.values():
            file.abandon()
        for done in self._done:
            self._target.store.delete(done.path)
        self._open, self._done, self._gathered, self._gathered_bytes = {}, [], {}, 0

    def _write_out(self, key: tuple[str, ...]) -> None:
        waiting = self._gathered.pop(key)
        self._gathered_bytes -= waiting.size_bytes
        rows = pa.concat_tables(waiting.tables, promote_options="default")
        file = self._open.get(key)
        if file is not None and file.schema != rows.schema:
            self._close(key)
            file = None
        if file is None:
            file = self._begin(key, rows.schema)
        file.write(rows)
        if file.size_bytes >= self._target.file_bytes:
            self._close(key)

    def _begin(self, key: tuple[str, ...], schema: pa.Schema) -> _OpenFile:
        if len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))  # the one that was begun first
        values = dict(zip(self._target.partition_by, key, strict=True))
        directory = "".join(f"{name}={value}/" for name, value in values.items())
        name = f"{self._target.layout.data}{directory}part-{self._stem}-{next(self._numbers)}.parquet"
        self._open[key] = _OpenFile(name, self._target.store.output(name), schema, values)
        return self._open[key]

    def _close(self, key: tuple[str, ...]) -> None:
        self._done.append(self._open.pop(key).close())


def split(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Yield the rows of each combination of the columns in `by`, in order, with the values as directories' names."""
    if not len(rows):
        return
    limits = [pc.min_max(rows[name]).as_py() for name in by]
    if all(limit["min"] == limit["max"] for limit in limits):  # the usual case: one day, nothing late
        yield tuple(partition_value_text(limit["min"]) for limit in limits), rows
        return
    order = pa.array(range(len(rows)), pa.int64())
    keys = pa.table({"": order, **{name: rows[name] for name in by}})
    rows = rows.take(pc.sort_indices(keys, [(name, "ascending") for name in (*by, "")]))
    columns = [rows[name].combine_chunks() for name in by]
    changes: Any = None
    for column in columns:
        change = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        changes = change if changes is None else pc.or_(changes, change)
    firsts = [0, *(at + 1 for at in pc.indices_nonzero(changes).to_pylist())]
    for first, end in itertools.pairwise([*firsts, len(rows)]):
        yield tuple(partition_value_text(column[first].as_py()) for column in columns), rows.slice(first, end - first)


def partition_value_text(value: object) -> str:
    """Return a partition column's value as both table formats write it.

    >>> partition_value_text(True), partition_value_text(7)
    ('true', '7')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(schema: pa.Schema) -> dict[str, Any]:
    climbing = [f.name for f in schema if f.name in _CLIMBING]
    return {
        "compression": "zstd",
        "use_dictionary": [path for f in schema if f.name not in _CLIMBING for path in _leaves(f.name, f.type)],
        "column_encoding": dict.fromkeys(climbing, "DELTA_BINARY_PACKED"),
        "write_statistics": climbing + [f.name for f in schema if f.name in _LIMITS or not _is_bulky(f.type)],
    }


def _leaves(path: str, kind: pa.DataType) -> Iterable[str]:
    """Yield Parquet's paths of the columns worth a dictionary: texts and small numbers, not bytes or fractions."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif not (pa.types.is_floating(kind) or pa.types.is_binary(kind) or pa.types.is_map(kind)):
        yield path


def _is_bulky(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_nested(kind))
