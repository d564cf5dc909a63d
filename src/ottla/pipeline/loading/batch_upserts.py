"""Applies the micro-batches of a stream to a table whose rows change: what `foreachBatch` calls.

A batch is applied once: its number is an application transaction of the commit, so a batch that Spark repeats after a
crash is recognised. Spark's tasks write change files, a second set of tasks merges them, as a load does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.core.runtime import new_uuid
from ottla.pipeline.changes.apply import ChangeApplier
from ottla.pipeline.changes.rule import BUCKET, DELETED, IS_CURRENT, KEY, ChangeRule, keep_rule
from ottla.pipeline.event_time import EVENT_TIME
from ottla.pipeline.lake.file_writer import FILE_BYTES, FileTarget, TableWriter
from ottla.pipeline.lake.lake_table import AppTransaction, LakeTable, StagedFile, TableMismatch, TableSpec
from ottla.pipeline.lake.rewrite import promote_types, target_of
from ottla.pipeline.lake.schema import canonical_schema, conform
from ottla.pipeline.loading.row_mapping import COORDINATES
from ottla.pipeline.loading.spark_tasks import merge_on_spark
from ottla.pipeline.topic_reader import TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMESTAMP = "timestamp"
_NEEDED = ("topic", "partition", "offset", TIMESTAMP)
_LEFT_OUT = (*_NEEDED, "timestampType")


@dataclass(frozen=True, slots=True)
class BatchUpserts:
    """Applies micro-batches to one table. Call it with a batch and its number."""

    table: LakeTable
    rule: ChangeRule
    query: str
    """Names the stream: the numbers of its batches are kept under it. It belongs to one checkpoint."""
    deleted: str | None = None
    """A column of booleans: whether the row's key is deleted."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the query's name can be part of a file's."""
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.query):
            raise ValueError(f"query: {self.query!r} is not made of letters, digits, '_', '.' and '-'")

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Apply a batch, unless it was applied already.

        Raises TableMismatch if the batch does not fit the table or its number is before the last one that was applied,
        and LeaseTaken if another process applies one.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = canonical_schema(to_arrow_schema(batch.schema, timezone="UTC"))
        fields = self._fields(columns)
        self._prepare(fields)
        applied = self.table.transaction_version(self._name)
        if applied == number + 1:
            return
        if applied > number:
            raise TableMismatch(
                f"{self.table.store.url}: batch {number} of {self.query} is before batch {applied - 1}, which was "
                "applied. The checkpoint is another one: name the query otherwise"
            )
        with self.table.store.lease(f"batches-{self.query}") as mine:
            changes = self._write(batch, mine.id)
            applier = ChangeApplier(self.rule, merge_on_spark(batch.sparkSession), mine.id, FILE_BYTES)
            applier.commit(self.table, "", (), changes, [AppTransaction(self._name, applied, number + 1)])

    @property
    def _name(self) -> str:
        return f"batches/{self.query}"

    def _fields(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the batch that are the table's own. Raises TableMismatch if one is missing."""
        needed_columns = (*_NEEDED, *self.rule.identity_columns, *((self.deleted,) if self.deleted else ()))
        if missing := [name for name in needed_columns if name not in columns.names]:
            raise TableMismatch(f"the batch has no column {', '.join(missing)}; it needs {', '.join(needed_columns)}")
        return pa.schema([f for f in columns if f.name not in (*_LEFT_OUT, self.deleted)])

    def _prepare(self, fields: pa.Schema) -> None:
        """Make the table, or give it the columns and the types of the batch."""
        own = [*COORDINATES, pa.field(EVENT_TIME, TIME), *self.rule.columns]
        self.table.create(TableSpec(pa.schema([*own, *fields]), self.rule.partition_by))
        keep_rule(self.table, self.rule)
        if losers := promote_types(self.table, fields, new_uuid().hex[:12]):
            raise TableMismatch(f"{self.table.store.url}: {'.'.join(losers[0])} has values that a wider type has not")
        self.table.add_columns(fields)

    def _write(self, batch: DataFrame, stem: str) -> list[StagedFile]:
        """Write the change files, by a task for each part of the batch."""
        spec, rule, deleted = self.table.spec(), self.rule, self.deleted
        target = target_of(self.table, spec)

        def tasks(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pa.set_cpu_count(1)  # Spark already runs one task per core
            tables = (_change_rows(pa.Table.from_batches([part]), spec, rule, deleted) for part in parts if len(part))
            files = [json.dumps(asdict(file)) for file in _write_files(target, f"{stem}-{new_uuid().hex[:12]}", tables)]
            yield pa.record_batch({"file": pa.array(files, pa.string())})

        rows = batch.mapInArrow(tasks, "file string").collect()
        return [StagedFile(**json.loads(row.file)) for row in rows]


def _write_files(target: FileTarget, stem: str, tables: Iterable[pa.Table]) -> Sequence[StagedFile]:
    writer = TableWriter(target, stem)
    try:
        for rows in tables:
            writer.add(rows)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _change_rows(rows: pa.Table, spec: TableSpec, rule: ChangeRule, deleted: str | None) -> pa.Table:
    """Return the rows of a change file. Raises TableMismatch where a value does not fit its column."""
    columns: dict[str, Any] = {"record_time": rows[TIMESTAMP], EVENT_TIME: rows[TIMESTAMP]}
    columns |= {name: rows[name] for name in rows.column_names if name not in (TIMESTAMP, "timestampType", deleted)}
    for field in spec.schema:
        if field.name in columns:
            columns[field.name], misfits = conform(columns[field.name], field.type)
            if misfits is not None:
                raise TableMismatch(f"a value of column {field.name} is no {field.type}")
    changes = pa.table({f.name: columns[f.name] for f in spec.schema if f.name in columns})
    identities = rule.identities(changes)
    if identities.null_count:
        raise TableMismatch(f"a row has no {' or '.join(rule.identity_columns)}, its key")
    flags: Any = pa.repeat(pa.scalar(value=False), len(rows))
    if deleted is not None:
        flags = pc.fill_null(rows[deleted], fill_value=False)
    changes = changes.append_column(DELETED, flags).append_column(BUCKET, rule.bucket_numbers(identities))
    if rule.history:
        changes = changes.append_column(IS_CURRENT, pa.repeat(pa.scalar(value=False), len(rows)))
    return changes


def key_rule(key: Sequence[str], *, history: bool, buckets: int) -> ChangeRule:
    """Return the rule of a table whose rows are identified by columns; `key` alone is a record's key."""
    return ChangeRule(history=history, key_fields=() if list(key) == [KEY] else tuple(key), buckets=buckets)


ApplyBatch = Callable[["DataFrame", int], None]
"""The function that `foreachBatch` takes."""
