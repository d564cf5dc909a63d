"""Delta and Iceberg tables on a real server of the S3 protocol, read back by their own libraries, not by ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from ottla.core.clock import SystemClock
from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.catalog import catalog_of
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_store import LakeStore, StoreError, UnsafeStore
from ottla.pipeline.lake.lake_table import Change, CommitConflict, LakeTable, NotContiguous, TableMismatch, TableSpec
from ottla.pipeline.lake.object_store import ObjectStore
from ottla.pipeline.lake.orphan_files import remove_orphans
from ottla.pipeline.lake.rewrite import compact, without_ranges
from ottla.pipeline.lake.store_settings import StoreSettings
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.offset_range import OffsetRange
from tests.contracts.test_lake_tables import BY, SCHEMA, load, rows, stage
from tests.support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("versitygw", tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(params=list(TableFormat))
def lake(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Lake:
    store = server.store(f"{new_uuid().hex}/lake")
    return Lake(store, request.param, catalog_of(f"sqlite:///{tmp_path / 'catalog.db'}", store))


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    made = lake.table("events")
    assert not made.exists()
    made.create(TableSpec(SCHEMA, BY))
    assert made.exists()
    return made


def keys_in(store: LakeStore) -> list[str]:
    return [found.key for found in store.objects()]


def another(lake: Lake) -> LakeTable:
    """The same table as another process has it."""
    return lake.table("events")


def rows_by_its_library(table: LakeTable, tmp_path: Path) -> pa.Table:
    """Read the table with nothing of this pipeline."""
    store = table.store
    assert isinstance(store, ObjectStore)
    assert store.settings.endpoint is not None
    if table.layout.data == "":
        options = {
            "aws_endpoint": store.settings.endpoint,
            "aws_region": REGION,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "allow_http": "true",
        }
        return pa.table(DeltaTable(store.url, storage_options=options).to_pyarrow_table())
    catalog = SqlCatalog(
        "ottla",
        uri=f"sqlite:///{tmp_path / 'catalog.db'}",
        **{
            "s3.endpoint": store.settings.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        },
    )
    return catalog.load_table(("lake", "events")).scan().to_arrow()


def offsets(table: LakeTable, tmp_path: Path) -> list[int]:
    found: list[int] = sorted(rows_by_its_library(table, tmp_path)["offset"].to_pylist())
    return found


def test_rows_and_positions_are_committed_together(lake: Lake, table: LakeTable, tmp_path: Path) -> None:
    load(table, 0, 10)
    load(table, 10, 25)
    assert offsets(table, tmp_path) == list(range(25))
    assert another(lake).positions("t", [0]) == {0: OffsetRange(0, 0, 25)}
    assert sum(file.rows for file in another(lake).files()) == 25
    assert {file.partition_values["late"] for file in table.files()} == {"true", "false"}
    assert lake.table_names() == [], "a quarantine is missing"


def test_of_two_writers_that_commit_at_once_one_is_refused(lake: Lake, table: LakeTable, tmp_path: Path) -> None:
    load(table, 0, 10)
    files, others = stage(table, rows(10, 20)), stage(table, rows(10, 20), stem="o")
    another(lake).commit(Change("load", "t", ranges=[OffsetRange(0, 10, 20)], add=others))
    with pytest.raises(NotContiguous):
        table.commit(Change("load", "t", ranges=[OffsetRange(0, 10, 20)], add=files))
    assert offsets(table, tmp_path) == list(range(20))


def test_writers_of_different_partitions_all_succeed(lake: Lake, table: LakeTable, tmp_path: Path) -> None:
    load(table, 0, 5, partition=0)
    load(another(lake), 0, 5, partition=1)
    load(table, 5, 9, partition=0)
    assert another(lake).positions("t", [0, 1]) == {0: OffsetRange(0, 0, 9), 1: OffsetRange(1, 0, 5)}
    assert offsets(table, tmp_path) == sorted([*range(9), *range(5)])


def test_properties_and_columns_are_kept(lake: Lake, table: LakeTable) -> None:
    table.set_properties({"ottla.x": "1"})
    table.add_columns(pa.schema([("more", pa.string())]))
    assert another(lake).properties()["ottla.x"] == "1"
    assert "more" in another(lake).spec().schema.names


def test_compaction_expiry_and_orphans(lake: Lake, table: LakeTable, tmp_path: Path) -> None:
    for first in range(0, 40, 5):
        load(table, first, first + 5)
    before = len(table.files())
    done = compact(table, "0123456789ab")
    assert (done.rows, len(table.files())) == (40, done.files_after)
    assert len(table.files()) < before
    stage(table, rows(40, 50), stem="dead0dead0de")
    now_ms = SystemClock().wall_ms() + 3_600_000
    with table.store.lease("load-t") as mine:
        kept = stage(table, rows(40, 50), stem=mine.id)
        assert remove_orphans(table, now_ms=now_ms).files >= 2
        table.commit(Change("load", "t", ranges=[OffsetRange(0, 40, 50)], add=kept))
    assert table.expire(now_ms) >= before
    remove_orphans(table, now_ms=now_ms)
    assert offsets(another(lake), tmp_path) == list(range(50))
    data = {found.key for found in table.store.objects(table.layout.data) if found.key.endswith(".parquet")}
    assert {key for key in data if "_delta_log" not in key} == {file.path for file in table.files()}


def test_rows_are_replaced(lake: Lake, table: LakeTable, tmp_path: Path) -> None:
    load(table, 0, 20)
    out = without_ranges(table, "t", [OffsetRange(0, 5, 10)], "0123456789ab")
    again = stage(table, rows(5, 10))
    change = Change("replace", "t", replaced=[OffsetRange(0, 5, 10)], add=[*out.add, *again], remove=out.remove)
    table.commit(change)
    with pytest.raises(CommitConflict):
        another(lake).commit(change)
    assert offsets(table, tmp_path) == list(range(20))


def test_a_commit_that_names_a_removed_file_is_refused(lake: Lake, table: LakeTable, tmp_path: Path) -> None:
    files = stage(table, rows(0, 10))
    table.store.delete(files[0].path)
    with pytest.raises(FileNotFoundError):
        table.commit(Change("load", "t", ranges=[OffsetRange(0, 0, 10)], add=files))
    assert offsets(another(lake), tmp_path) == []


def test_a_missing_table_is_reported_by_its_location(lake: Lake) -> None:
    with pytest.raises(TableMismatch, match=f"there is no .* table at {lake.store.url}/none"):
        lake.table("none").files()


def test_an_error_names_the_place_and_no_credentials(server: S3Server) -> None:
    wrong = (("aws_access_key_id", ACCESS_KEY), ("aws_secret_access_key", "not-the-secret-key"))
    settings = StoreSettings(server.endpoint, REGION, vended=wrong)
    table = Lake(ObjectStore("s3://lakes/wrong", settings)).table("events")
    for attempt in (table.exists, lambda: table.create(TableSpec(SCHEMA, BY)), lambda: table.store.get("x")):
        with pytest.raises(StoreError, match="s3://lakes/wrong/events") as found:
            attempt()
        text = str(found.value)
        assert ACCESS_KEY not in text
        assert "not-the-secret-key" not in text
        assert len(text) < 500
    assert "not-the-secret-key" not in repr(table.store)


def test_no_table_is_made_where_conditions_are_ignored(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running("s3proxy", tmp_path_factory.mktemp("s3proxy")) as ignoring:
        for table_format in TableFormat:
            store = ignoring.store(table_format)
            lake = Lake(store, table_format, catalog_of(f"sqlite:///{ignoring.data / 'catalog.db'}", store))
            with pytest.raises(UnsafeStore, match="does not keep the condition"):
                lake.table("events").create(TableSpec(SCHEMA, BY))
            assert [key for key in keys_in(store) if not key.startswith("events/_ottla/probe-")] == []
