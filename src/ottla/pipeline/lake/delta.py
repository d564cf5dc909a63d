"""Implements Delta tables in a store, through `deltalake`: no catalog and no jar.

A partition's position is an application transaction in Delta's log (`ottla/<topic>/<partition>`, version = the next
offset to load): it is in the commit that adds the files and survives checkpoints of the log. A commit is tried for
exactly the version after the one it was checked against; where another writer has committed that version, everything
is checked again. So the check is part of the swap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.core.clock import SystemClock
from ottla.pipeline.lake.delta_log_repair import repair_log, sync_log
from ottla.pipeline.lake.file_writer import partition_value_text, staged_files
from ottla.pipeline.lake.lake_store import LakeStore, StoredObject, StoreError
from ottla.pipeline.lake.lake_table import (
    Change,
    Layout,
    StagedFile,
    TableFile,
    TableMismatch,
    TableSpec,
    check_change,
    check_format,
    commit_attempts,
    held_after,
)
from ottla.pipeline.lake.parquet_files import footer_of
from ottla.pipeline.lake.remote_frame import remote_frame
from ottla.pipeline.lake.schema import END_US, canonical_schema, grown
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.offset_range import OffsetRange

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

LAYOUT = Layout(data="", partition_columns_in_files=False)
_MS_PER_HOUR = 3_600_000
_CHECKPOINT_EVERY = 50
"""Commits; the library's own checkpoints would not be durable."""
_DELETION_VECTORS = "deletionVectors"
_TIMES = frozenset({"record_time", "event_time"})
_LAST_LIMIT_US = END_US - 1000
"""The last millisecond of the year 9999: a later limit would be rounded up into the next year and is left out."""


class DeltaLakeTable:
    """A `LakeTable`. It keeps nothing but the place: every call asks the store. With a version it is only read."""

    layout = LAYOUT

    def __init__(self, store: LakeStore, version: int | None = None) -> None:
        self.store = store
        self._version = version

    @property
    def name(self) -> str:
        """Return the directory's name."""
        return self.store.name

    def exists(self) -> bool:
        """Return whether Delta's log has begun."""
        from deltalake import DeltaTable

        check_format(self.store, TableFormat.DELTA)
        repair_log(self.store)
        with self.store.library_errors():
            return bool(DeltaTable.is_deltatable(self.store.url, storage_options=self._options()))

    def create(self, spec: TableSpec) -> None:
        """Create an empty table, unless there is one."""
        from deltalake import DeltaTable, Schema

        if self.exists():
            return
        self.store.verify()
        with self.store.library_errors():
            DeltaTable.create(
                self.store.url,
                schema=Schema.from_arrow(spec.schema),
                mode="ignore",  # another load may make it in this moment
                partition_by=list(spec.partition_by),
                configuration={},
                storage_options=self._options(),
            )
        sync_log(self.store)

    def spec(self) -> TableSpec:
        """Return the table's specification from Delta's log."""
        table = self._open()
        return TableSpec(_schema_of(table), tuple(table.metadata().partition_columns))

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in a commit that changes no file."""
        from deltalake import CommitProperties, Schema

        def attempt(table: DeltaTable) -> None:
            have = _schema_of(table)
            wanted = grown(have, schema)
            if wanted != have:
                table.alter.add_columns(
                    Schema.from_arrow(pa.schema([f for f in wanted if f not in have])).fields,
                    commit_properties=CommitProperties(max_commit_retries=0),
                    post_commithook_properties=_no_hooks(),
                )

        self._until_first(attempt)

    def positions(self, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        """Return the loaded ranges, from the newest commit."""
        return _positions(self._open(), topic, partitions)

    def transaction_version(self, name: str) -> int:
        """Return the version, from the newest commit."""
        return self._open().transaction_version(_transaction_id(name)) or 0

    def properties(self) -> dict[str, str]:
        """Return the table's configuration."""
        return dict(self._open().metadata().configuration)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties, in a commit that changes no file."""
        from deltalake import CommitProperties

        def attempt(table: DeltaTable) -> None:
            table.alter.set_table_properties(
                dict(properties),
                raise_if_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_no_hooks(),
            )

        self._until_first(attempt)

    def commit(self, change: Change) -> None:
        """Write one entry in Delta's log: files, positions and application transactions."""

        def attempt(table: DeltaTable) -> None:
            self._check(table, change)
            self._write(table, change)

        self._until_first(attempt)
        self._checkpoint_now_and_then()

    def version(self) -> str:
        """Return the number of the newest commit."""
        return str(self._open().version())

    def committed_ms(self) -> int | None:
        """Return the time of the newest entry of the log."""
        history = self._open().history(1)
        return int(history[0]["timestamp"]) if history else None

    def files(self) -> list[TableFile]:
        """List the files from Delta's log."""
        return _files(self._open(), self.store)

    def paths(self) -> list[str]:
        """List the paths that any reader of Delta opens."""
        return [self.store.location(file.path) for file in self.files()]

    def own_files(self) -> list[StoredObject]:
        """List the data files: the log's own files are removed by `expire`."""
        return staged_files(self.store, LAYOUT, self.spec().partition_by)

    def expire(self, before_ms: int) -> int:
        """Vacuum removed files, write a checkpoint, then delete the log entries before it."""
        table = self._open()
        hours = max(0, (SystemClock().wall_ms() - before_ms) // _MS_PER_HOUR)
        gone = table.vacuum(
            retention_hours=hours,
            enforce_retention_duration=False,
            dry_run=False,
            post_commithook_properties=_no_hooks(),
        )
        table = self._open()
        table.create_checkpoint()
        sync_log(self.store)  # before the entries that it repeats may go
        table.cleanup_metadata()
        return len(gone)

    def referenced_keys(self) -> set[str]:
        """List present files and removed ones that were not vacuumed yet."""
        removed = self._open().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True)
        return {*(file.path for file in self.files()), *removed}

    def dataframe(self, spark: SparkSession, files: Sequence[str] | None = None) -> DataFrame:
        """Have Spark read the files; the columns the table is partitioned by come from the directories' names."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if self.store.is_remote:
            return remote_frame(spark, self, files)
        arrow = self.spec().schema
        schema = from_arrow_schema(arrow)
        paths = self.paths() if files is None else list(files)
        if not paths:
            return spark.createDataFrame([], schema)
        frame = spark.read.schema(schema).option("basePath", self.store.url).parquet(*paths)
        return frame.select(*(f"`{name}`" for name in arrow.names))

    def _options(self) -> dict[str, str]:
        return dict(self.store.library_options())

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        check_format(self.store, TableFormat.DELTA)
        repair_log(self.store)
        try:
            with self.store.library_errors():
                table = DeltaTable(self.store.url, version=self._version, storage_options=self._options())
        except TableNotFoundError as error:
            raise TableMismatch(f"there is no Delta table at {self.store.url}") from error
        except (DeltaError, StoreError, ValueError) as error:
            if self._version is None:
                raise
            raise TableMismatch(f"{self.store.url} has no version {self._version}, or no longer") from error
        if _DELETION_VECTORS in (table.protocol().reader_features or ()):
            raise TableMismatch(
                f"{self.store.url}: another writer enabled deletion vectors, which the pipeline does not read. Set "
                "delta.enableDeletionVectors = false, run REORG TABLE ... APPLY (PURGE), and drop the table feature "
                f"{_DELETION_VECTORS}."
            )
        return table

    def _until_first(self, attempt: Callable[[DeltaTable], None]) -> None:
        """Try on the table as it is now, and again after each conflicting commit; make the commit durable."""
        from deltalake.exceptions import CommitFailedError

        assert self._version is None, "an older version is only read"
        for _ in commit_attempts(self.store.url):
            try:
                with self.store.library_errors():
                    attempt(self._open())
            except CommitFailedError:
                continue  # another writer committed that version: check everything against it
            sync_log(self.store)
            return

    def _checkpoint_now_and_then(self) -> None:
        table = self._open()
        if int(table.version()) % _CHECKPOINT_EVERY == 0:
            table.create_checkpoint()
            sync_log(self.store)

    def _check(self, table: DeltaTable, change: Change) -> None:
        partitions = {r.partition for r in (*change.ranges, *change.replaced)}
        versions = {t.name: table.transaction_version(_transaction_id(t.name)) or 0 for t in change.transactions}
        files = {f.path for f in _files(table, self.store)} if change.depends_on_files else set()
        check_change(change, _positions(table, change.topic, partitions), versions, files)
        if self.store.is_remote:  # a lease that was lost there does not keep files from being removed as orphans
            for file in change.add:
                if self.store.head(file.path) is None:
                    raise FileNotFoundError(self.store.location(file.path))

    def _write(self, table: DeltaTable, change: Change) -> None:
        from deltalake import CommitProperties, Schema

        schema = change.schema if change.schema is not None else _schema_of(table)
        commit_info = {"ottla.what": change.what}  # for people: the transactions are what is checked
        if change.ranges or change.replaced:
            commit_info["ottla.topic"] = change.topic
            commit_info["ottla.offsets"] = json.dumps(
                {r.partition: [r.first_offset, r.end_offset] for r in (*change.ranges, *change.replaced)}
            )
        actions: list[Any] = [_add_action(file, data_change=not change.same_rows) for file in change.add]
        if change.schema is None:
            actions += [_remove_action(file, data_change=not change.same_rows) for file in change.remove]
        table.create_write_transaction(
            actions,
            mode="append" if change.schema is None else "overwrite",
            schema=Schema.from_arrow(schema),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=CommitProperties(
                custom_metadata=commit_info,
                app_transactions=_transactions(change, _positions_of_change(table, change)),
                max_commit_retries=0,
            ),
            post_commithook_properties=_no_hooks(),
        )


def _no_hooks() -> Any:
    from deltalake.transaction import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _schema_of(table: DeltaTable) -> pa.Schema:
    return canonical_schema(pa.schema(table.schema().to_arrow()))


def _files(table: DeltaTable, store: LakeStore) -> list[TableFile]:
    """List the files of the newest version. Other writers may leave out how many rows a file has: its footer has it."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = {
        name.removeprefix("partition."): actions[name].to_pylist()
        for name in actions.column_names
        if name.startswith("partition.")
    }
    known = zip(*(actions[name].to_pylist() for name in ("path", "size_bytes", "num_records")), strict=True)
    return [
        TableFile(
            path,
            size,
            footer_of(store, path).num_rows if rows is None else rows,
            {name: partition_value_text(values[n]) for name, values in names.items()},
        )
        for n, (path, size, rows) in enumerate(known)
    ]


def _application(topic: str, partition: int) -> str:
    return f"ottla/{topic}/{partition}"


def _start_id(topic: str, partition: int) -> str:
    return f"ottla-start/{topic}/{partition}"


def _transaction_id(name: str) -> str:
    return f"ottla-mark/{name}"


def _positions(table: DeltaTable, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
    found = {}
    for p in partitions:
        end = table.transaction_version(_application(topic, p))
        if end is not None:
            found[p] = OffsetRange(p, table.transaction_version(_start_id(topic, p)) or 0, end)
    return found


def _positions_of_change(table: DeltaTable, change: Change) -> dict[int, OffsetRange]:
    partitions = {r.partition for r in (*change.ranges, *change.replaced)}
    return held_after(change, _positions(table, change.topic, partitions))


def _transactions(change: Change, after: Mapping[int, OffsetRange]) -> list[Any]:
    from deltalake import Transaction

    transactions = [Transaction(_transaction_id(t.name), t.new) for t in change.transactions if t.new != t.expected]
    for p, held in sorted(after.items()):
        transactions.append(Transaction(_application(change.topic, p), held.end_offset))
        transactions.append(Transaction(_start_id(change.topic, p), held.first_offset))
    return transactions


def _add_action(file: StagedFile, *, data_change: bool) -> Any:
    """Describe a new file to Delta. Row counts and limits let readers skip files unopened."""
    from deltalake.transaction import AddAction

    limits = {
        "minValues": {name: _limit(name, value, up=False) for name, value in file.lows.items()},
        "maxValues": {
            name: _limit(name, value, up=True)
            for name, value in file.highs.items()
            if name not in _TIMES or value <= _LAST_LIMIT_US
        },
    }
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition_values),
        modification_time=file.modified_ms,
        data_change=data_change,
        stats=json.dumps({"numRecords": file.rows, **limits, "nullCount": {}}),
    )


def _limit(name: str, value: Any, *, up: bool) -> Any:
    """Convert a limit to Delta's: of times in whole milliseconds, which must not exclude what they limit."""
    if name not in _TIMES:
        return value
    at_ms = -(-value // 1000) if up else value // 1000
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _remove_action(file: TableFile, *, data_change: bool) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, data_change, SystemClock().wall_ms(), file.size_bytes, dict(file.partition_values))
