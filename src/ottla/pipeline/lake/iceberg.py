"""Implements Iceberg tables through `pyiceberg`: a store has the files, a catalog (`catalog.py`) the newest metadata.

A partition's position is in the properties of the snapshot that brought its rows (`ottla.positions`, all positions of
the table as JSON); a snapshot of another writer, which has none, is skipped. A commit names the
snapshot it was checked against, and the catalog swaps one metadata file for another or refuses: the check is part of
the swap. Manifests and metadata are durable (`iceberg_io.py`) before the catalog names them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.pipeline.lake.catalog import IMPLEMENTATION, STORE, Catalog, catalog_of
from ottla.pipeline.lake.file_writer import staged_files
from ottla.pipeline.lake.lake_store import LakeStore, StoredObject
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
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.remote_frame import remote_frame
from ottla.pipeline.lake.schema import canonical_schema, grown
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.offset_range import OffsetRange

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as OpenCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame, SparkSession

LAYOUT = Layout(data="data/", partition_columns_in_files=True)
_POSITIONS, _TRANSACTIONS, _WHAT = "ottla.positions", "ottla.marks", "ottla.what"
_PARTITION_BY = "ottla.partition.by"
_METADATA = "metadata/"
_METADATA_VERSIONS_KEPT = 20
_LOADS_MAX = 5
_TABLE_PROPERTIES = {
    "commit.retry.num-retries": "0",  # a commit that lost is checked again here
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(_METADATA_VERSIONS_KEPT),
}


class IcebergLakeTable:
    """A `LakeTable`. It keeps nothing but the place: every call asks the catalog. With a version it is only read."""

    layout = LAYOUT
    store: LakeStore
    """The store of the files, with the credentials that the catalog gave when it was last asked."""

    def __init__(self, store: LakeStore, version: int | None = None, catalog: Catalog | None = None) -> None:
        self.store = store
        self._of_catalog = catalog if catalog is not None else catalog_beside(store)
        self._version = version
        """The id of a snapshot; None for the newest."""

    @property
    def name(self) -> str:
        """The store's, and the catalog's."""
        return self.store.name

    def exists(self) -> bool:
        """Return whether the catalog knows the table."""
        self._check_format()
        if not self._of_catalog.exists():
            return False
        with self._catalog() as catalog:
            return bool(catalog.table_exists(self._identifier))

    def create(self, spec: TableSpec) -> None:
        """Create an empty table, unless there is one."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        if self.exists():
            return
        gives_credentials = self._of_catalog.gives_credentials
        if not gives_credentials:
            self.store.verify()
        if not gives_credentials and (other := _foreign_metadata(self.store)) is not None:
            raise TableMismatch(
                f"{self.store.url} holds an Iceberg table of another catalog ({other}). Load into another lake"
            )
        with self._catalog() as catalog:
            catalog.create_namespace_if_not_exists(self._of_catalog.namespace)
            schema = _iceberg_schema(spec.schema)
            fields = [
                PartitionField(schema.find_field(name).field_id, 1000 + n, IdentityTransform(), name)
                for n, name in enumerate(spec.partition_by)
            ]
            with contextlib.suppress(TableAlreadyExistsError, CommitFailedException):  # another load made it
                catalog.create_table(
                    self._identifier,
                    schema,
                    location=_location(self.store),
                    partition_spec=PartitionSpec(*fields),
                    properties=_TABLE_PROPERTIES | {_PARTITION_BY: ",".join(spec.partition_by), **_mapping(schema)},
                )

    def spec(self) -> TableSpec:
        """Return the table's specification from the catalog."""
        with self._table() as table:
            by = table.properties.get(_PARTITION_BY, "")
            return TableSpec(_arrow_schema(table, self._snapshot(table)), tuple(by.split(",")) if by else ())

    def add_columns(self, schema: pa.Schema) -> None:
        """Commit a change of the metadata."""

        def attempt(table: Table) -> None:
            have = _arrow_schema(table)
            wanted = grown(have, schema)
            if wanted != have:
                with table.transaction() as change, change.update_schema() as update:
                    update.union_by_name(wanted)

        self._until_first(attempt)

    def positions(self, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        """Return the positions in the newest snapshot that has them."""
        with self._table() as table:
            return _positions(_snapshot_property(table, _POSITIONS, self._snapshot(table)), topic, partitions)

    def transaction_version(self, name: str) -> int:
        """Return the version in the newest snapshot that has it."""
        with self._table() as table:
            return int(_snapshot_property(table, _TRANSACTIONS, self._snapshot(table)).get(name, 0))

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        with self._table() as table:
            return dict(table.properties)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Commit a change of the metadata."""

        def attempt(table: Table) -> None:
            with table.transaction() as change:
                change.set_properties(dict(properties))

        self._until_first(attempt)

    def commit(self, change: Change) -> None:
        """Commit one snapshot: files, positions and application transactions."""
        self._until_first(lambda table: self._commit_once(table, change))

    def version(self) -> str:
        """Return the newest snapshot's id."""
        with self._table() as table:
            snapshot = table.current_snapshot()
            return str(snapshot.snapshot_id) if snapshot else "0"

    def committed_ms(self) -> int | None:
        """Return the time of the newest snapshot."""
        with self._table() as table:
            snapshot = table.current_snapshot()
            return snapshot.timestamp_ms if snapshot else None

    def files(self) -> list[TableFile]:
        """List the files as the newest snapshot has them."""
        with self._table() as table:
            by = table.properties.get(_PARTITION_BY, "").split(",")
            return [self._table_file(file, by) for file in _data_files(table, self._snapshot(table))]

    def paths(self) -> list[str]:
        """List the paths that any reader of Iceberg opens."""
        return [self.store.location(file.path) for file in self.files()]

    def own_files(self) -> list[StoredObject]:
        """List the data files, and manifests where all metadata files in the directory are this table's."""
        with self._table() as table:
            own = staged_files(self.store, LAYOUT, [n for n in table.properties.get(_PARTITION_BY, "").split(",") if n])
            if _foreign_metadata(self.store, str(table.metadata.table_uuid)) is not None:
                return own
            return [*own, *(stored for stored in self.store.objects(_METADATA) if stored.key.endswith(".avro"))]

    def expire(self, before_ms: int) -> int:
        """Forget snapshots, then delete the data files and manifests that no remaining one has."""
        self._until_first(_repeat_positions)
        with self._table() as table:
            kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
            if all(s.timestamp_ms >= before_ms or s.snapshot_id in kept for s in table.snapshots()):
                return 0  # a commit would write metadata of an unchanged table
            before = _needed(table)
            table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(before_ms / 1000, UTC)).commit()
        with self._table() as table:
            keys = (self.store.key(location) for location in before - _needed(table))
            gone = [key for key in keys if key is not None and self.store.head(key) is not None]
        for key in gone:
            self.store.delete(key)
        return sum(key.endswith(".parquet") for key in gone)

    def referenced_keys(self) -> set[str]:
        """List the files of all snapshots there are, with their manifests and the metadata itself."""
        with self._table() as table:
            metadata = [table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)]
            keys = {self.store.key(location) for location in (*_needed(table), *metadata)}
            return {key for key in keys if key is not None}

    def dataframe(self, spark: SparkSession, files: Sequence[str] | None = None) -> DataFrame:
        """Have Spark read the files, which hold all columns."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if self.store.is_remote:
            return remote_frame(spark, self, files)
        schema = from_arrow_schema(self.spec().schema)
        paths = self.paths() if files is None else list(files)
        if not paths:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*paths)

    def _check_format(self) -> None:
        """Raise TableMismatch if there is a Delta table; where a catalog gives the credentials, it has them alone."""
        if not self._of_catalog.gives_credentials:
            check_format(self.store, TableFormat.ICEBERG)

    @property
    def _identifier(self) -> tuple[str, ...]:
        return (*self._of_catalog.namespace, self.store.name)

    def _catalog(self) -> AbstractContextManager[OpenCatalog]:
        return self._of_catalog.open({"py-io-impl": IMPLEMENTATION, STORE: self.store})

    @contextlib.contextmanager
    def _table(self) -> Iterator[Table]:
        from pyiceberg.exceptions import NoSuchTableError

        self._check_format()
        if not self._of_catalog.exists():
            raise TableMismatch(f"there is no Iceberg table at {self.store.url}")
        with self._catalog() as catalog:
            try:
                yield self._load(catalog)
            except NoSuchTableError as error:
                raise TableMismatch(f"there is no Iceberg table at {self.store.url}") from error

    def _load(self, catalog: OpenCatalog) -> Table:
        """Load the table as it is now; again where commits of others removed the metadata that the catalog named."""
        for _ in range(_LOADS_MAX - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._loaded(catalog)
        return self._loaded(catalog)

    def _loaded(self, catalog: OpenCatalog) -> Table:
        table = catalog.load_table(self._identifier)
        if self._of_catalog.gives_credentials:
            self.store = table.io.store.at(table.location())  # type: ignore[attr-defined]
        return table

    def _snapshot(self, table: Table) -> Snapshot | None:
        if self._version is None:
            return table.current_snapshot()
        snapshot = table.snapshot_by_id(self._version)
        if snapshot is None:
            raise TableMismatch(f"{self.store.url} has no snapshot {self._version}, or no longer")
        return snapshot

    def _until_first(self, attempt: Callable[[Table], None]) -> None:
        """Try on the table as it is now, and again after each conflicting commit.

        A ValidationException is tried again, too: threads of PyIceberg share an evaluator of manifests, which may leave
        out a manifest, so that a file that is in the table is reported as missing. What is really missing is refused
        by the checks of the next attempt.
        """
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        assert self._version is None, "an older snapshot is only read"
        for _ in commit_attempts(self.store.url):
            with self._table() as table:
                try:
                    attempt(table)
                except (CommitFailedException, ValidationException):
                    continue
                except Exception as error:
                    if self._of_catalog.is_conflict(error):
                        continue
                    raise
                return

    def _commit_once(self, table: Table, change: Change) -> None:
        newest = table.current_snapshot()
        positions, versions = (_snapshot_property(table, name, newest) for name in (_POSITIONS, _TRANSACTIONS))
        held = _positions(positions, change.topic, [r.partition for r in (*change.ranges, *change.replaced)])
        by = table.properties.get(_PARTITION_BY, "").split(",")
        present = (
            {self._table_file(f, by).path: f for f in _data_files(table, table.current_snapshot())}
            if change.depends_on_files
            else {}
        )
        check_change(change, held, versions, present)
        for p, r in held_after(change, held).items():
            positions.setdefault(change.topic, {})[str(p)] = [r.first_offset, r.end_offset]
        versions |= {t.name: t.new for t in change.transactions}
        properties = {_POSITIONS: json.dumps(positions), _TRANSACTIONS: json.dumps(versions), _WHAT: change.what}
        with table.transaction() as transaction:
            if change.schema is not None:
                _change_types(transaction, change.schema)
            update = transaction.update_snapshot(snapshot_properties=properties)
            with update.overwrite() if change.remove else update.fast_append() as snapshot:
                for file in change.remove:
                    snapshot.delete_data_file(present[file.path])
                for added in change.add:
                    snapshot.append_data_file(self._data_file(transaction, added))

    def _data_file(self, transaction: Transaction, file: StagedFile) -> DataFile:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        # it warns, file by file, of columns whose limits we leave out: those of long texts and bytes help no reader
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        location = f"{_location(self.store)}/{file.path}"
        return parquet_file_to_data_file(transaction._table.io, transaction.table_metadata, location)  # noqa: SLF001

    def _table_file(self, file: DataFile, by: Sequence[str]) -> TableFile:
        path = self.store.key(file.file_path) or file.file_path
        values = dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
        return TableFile(path, file.file_size_in_bytes, file.record_count, {name: values[name] for name in by if name})


def _snapshot_property(table: Table, name: str, snapshot: Snapshot | None) -> dict[str, Any]:
    """Return a property of the newest snapshot, up to one, that has it; a rollback of the table reverts it too."""
    while snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if name in summary:
            found: dict[str, Any] = json.loads(summary[name])
            return found
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    return {}


def _repeat_positions(table: Table) -> None:
    """Add a snapshot with the positions and transactions if the newest one is another writer's, which has none.

    Otherwise they would expire with the snapshot that has them, and all records would be loaded a second time.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or (snapshot.summary is not None and _POSITIONS in snapshot.summary.additional_properties):
        return
    found = {name: json.dumps(_snapshot_property(table, name, snapshot)) for name in (_POSITIONS, _TRANSACTIONS)}
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=found | {_WHAT: "repeat positions"})
        with update.fast_append():
            pass


def _positions(properties: Mapping[str, Any], topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
    kept = properties.get(topic, {})
    return {p: OffsetRange(p, *kept[str(p)]) for p in partitions if str(p) in kept}


def _data_files(table: Table, snapshot: Snapshot | None) -> list[DataFile]:
    """List the data files of a snapshot. Raises TableMismatch if rows in them are deleted by delete files."""
    from pyiceberg.manifest import ManifestContent

    if snapshot is None:
        return []
    found = []
    for manifest in snapshot.manifests(table.io):
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entries and manifest.content == ManifestContent.DELETES:
            raise TableMismatch(
                f"{table.name()[-1]}: another writer deleted rows by delete files, which the pipeline does not read. "
                "Set write.delete.mode = copy-on-write there, and rewrite the data files (rewrite_data_files with "
                "delete-file-threshold 1)."
            )
        found += [entry.data_file for entry in entries]
    return found


def _needed(table: Table) -> set[str]:
    """Return the location of every data file, manifest and list of manifests of every snapshot the table remembers."""
    paths: set[str] = set()
    seen: set[str] = set()
    for snapshot in table.snapshots():
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            paths.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            paths.update(entry.data_file.file_path for entry in entries)
    return paths


def _foreign_metadata(store: LakeStore, table_uuid: str | None = None) -> str | None:
    """Return the name of another table's metadata; one without snapshots was left by a `create` that was killed."""
    for metadata in [entry.key for entry in store.objects(_METADATA) if entry.key.endswith(".metadata.json")]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found = json.loads(store.get(metadata))
            if found.get("snapshots") and found.get("table-uuid") != table_uuid:
                return metadata.removeprefix(_METADATA)
    return None


def catalog_beside(store: LakeStore) -> Catalog:
    """Return the catalog of a table in a lake that names none. Raises InvalidCatalog for a table on an object store."""
    return catalog_of(None, store.at(posixpath.dirname(store.url)))


def _location(store: LakeStore) -> str:
    """Return the location as Iceberg's metadata has it."""
    return f"file://{store.url}" if isinstance(store, LocalStore) else store.url


def _iceberg_schema(schema: pa.Schema) -> Schema:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def _arrow_schema(table: Table, snapshot: Snapshot | None = None) -> pa.Schema:
    """Return the newest schema, or that of an older snapshot."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = table.schema()
    if snapshot is not None and snapshot.schema_id is not None and snapshot != table.current_snapshot():
        schema = table.schemas()[snapshot.schema_id]
    return canonical_schema(schema_to_pyarrow(schema, include_field_ids=False))


def _mapping(schema: Schema) -> dict[str, str]:
    """Map a file's columns to those of the table by name: tasks write files before the table has the column."""
    return {"schema.name-mapping.default": schema.name_mapping.model_dump_json()}


def _change_types(transaction: Transaction, wanted: pa.Schema) -> None:
    """Make the columns those of `wanted`. Every file is rewritten in the same commit, so any change is compatible."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    have = _arrow_schema(transaction._table)  # noqa: SLF001
    changes = list(_changed((), have, wanted))
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for path, kind in changes:
            new = _pyarrow_to_schema_without_ids(pa.schema([pa.field("x", kind)])).fields[0].field_type
            update.update_column(path, field_type=new)
        update.union_by_name(wanted)


def _changed(
    above: tuple[str, ...], have: pa.Schema | pa.StructType, wanted: pa.Schema | pa.StructType
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """Yield the paths and new types of leaves whose type changes."""
    for field in have:
        new = wanted.field(field.name).type
        yield from _changed_type((*above, field.name), field.type, new)


def _changed_type(
    path: tuple[str, ...], have: pa.DataType, wanted: pa.DataType
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    if pa.types.is_struct(have) and pa.types.is_struct(wanted):
        yield from _changed(path, have, wanted)
    elif pa.types.is_list(have) and pa.types.is_list(wanted):
        yield from _changed_type((*path, "element"), have.value_type, wanted.value_type)
    elif pa.types.is_map(have) and pa.types.is_map(wanted):
        yield from _changed_type((*path, "value"), have.item_type, wanted.item_type)
    elif have != wanted:
        yield path, wanted
