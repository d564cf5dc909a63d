"""One suite for every table format: what a commit guarantees, read back by DuckDB from the files alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path, PurePath
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.expressions import visitors
from pyiceberg.manifest import ManifestFile

from ottla.core.clock import SystemClock
from ottla.core.files import SystemFile, SystemFiles
from ottla.pipeline.lake import file_writer
from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.file_writer import TableWriter, split
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake_store import PRIVATE, LeaseTaken
from ottla.pipeline.lake.lake_table import (
    AppTransaction,
    Change,
    CommitConflict,
    LakeTable,
    NotContiguous,
    StagedFile,
    TableMismatch,
    TableSpec,
    register_topic,
    topics_of,
)
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.orphan_files import remove_orphans
from ottla.pipeline.lake.rewrite import Compacted, compact, promote_types, target_of, without_ranges, without_rows_of
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import TIME
from tests.support.lakes import delta_in, directory_of, iceberg_in, lake_in

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("record_time", TIME),
        ("late", pa.bool_()),
        ("event_date", pa.date32()),
        ("n", pa.int64()),
    ]
)
BY = ("late", "event_date")
DAYS = (date(2015, 5, 17), date(2015, 5, 18))


@pytest.fixture(params=[delta_in, iceberg_in], ids=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    make: Callable[[Path], LakeTable] = request.param
    made = make(tmp_path / "a lake" / "events")
    assert not made.exists()
    made.create(TableSpec(SCHEMA, BY))
    assert made.exists()
    return made


def another(table: LakeTable) -> LakeTable:
    """The same table as another process has it."""
    return type(table)(table.store)  # type: ignore[call-arg]


def rows(first: int, end: int, *, partition: int = 0, topic: str = "t", n: Any = None) -> pa.Table:
    offsets = range(first, end)
    return pa.table(
        {
            "topic": pa.array([topic] * len(offsets)),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "record_time": pa.array([datetime(2015, 5, 17, tzinfo=UTC)] * len(offsets), TIME),
            "late": pa.array([o % 5 == 4 for o in offsets]),
            "event_date": pa.array([DAYS[o % 2] for o in offsets], pa.date32()),
            "n": pa.array([o * 10 for o in offsets], pa.int64()) if n is None else n,
        }
    )


def stage(table: LakeTable, what: pa.Table, stem: str = "x") -> list[StagedFile]:
    writer = TableWriter(target_of(table, table.spec()), f"{stem}-{next(STEMS)}")
    writer.add(what)
    return writer.finish()


STEMS = iter(range(1_000_000))


def load(table: LakeTable, first: int, end: int, **more: Any) -> None:
    topic, partition = more.get("topic", "t"), more.get("partition", 0)
    files = stage(table, rows(first, end, **more))
    table.commit(Change("load", topic, ranges=[OffsetRange(partition, first, end)], add=files))


def by_duckdb(table: LakeTable, what: str) -> list[tuple[Any, ...]]:
    if not table.paths():
        return []
    options = "hive_partitioning = true, hive_types = {late: BOOLEAN, event_date: DATE}, union_by_name = true"
    return duckdb.execute(f"select {what} from read_parquet($1, {options})", [table.paths()]).fetchall()


def offsets(table: LakeTable) -> list[int]:
    return sorted(o for (o,) in by_duckdb(table, '"offset"'))


def test_rows_and_position_come_in_one_commit(table: LakeTable) -> None:
    load(table, 5, 20)
    load(table, 20, 30)
    load(table, 0, 4, partition=3)
    assert table.positions("t", range(5)) == {0: OffsetRange(0, 5, 30), 3: OffsetRange(3, 0, 4)}
    assert table.positions("another", [0]) == {}
    got = by_duckdb(another(table), 'partition, "offset", late, event_date, n')
    wanted = [(0, o, o % 5 == 4, DAYS[o % 2], o * 10) for o in range(5, 30)]
    assert sorted(got) == sorted(wanted + [(3, o, o % 5 == 4, DAYS[o % 2], o * 10) for o in range(4)])


def test_rows_are_partitioned_by_their_partition_columns(table: LakeTable) -> None:
    load(table, 0, 10)
    assert {tuple(f.partition_values.items()) for f in table.files()} == {
        (("late", late), ("event_date", day)) for late in ("true", "false") for day in ("2015-05-17", "2015-05-18")
    }
    assert sum(f.rows for f in table.files()) == 10


def test_files_are_invisible_until_they_are_committed(table: LakeTable) -> None:
    assert stage(table, rows(0, 10))
    assert table.files() == []


@pytest.mark.parametrize(("first", "end"), [(11, 20), (9, 20), (0, 10), (10, 9)])
def test_a_commit_that_does_not_follow_the_last_one_is_refused(table: LakeTable, first: int, end: int) -> None:
    load(table, 0, 10)
    before = table.version()
    with pytest.raises(NotContiguous):
        table.commit(Change("load", "t", ranges=[OffsetRange(0, first, end)], add=stage(table, rows(10, 20))))
    assert table.version() == before
    assert offsets(table) == list(range(10))


def test_two_ranges_of_a_partition_in_one_commit_are_refused(table: LakeTable) -> None:
    with pytest.raises(NotContiguous):
        table.commit(Change("load", "t", ranges=[OffsetRange(0, 0, 4), OffsetRange(0, 4, 8)]))


def test_topics_share_a_table_and_have_positions_of_their_own(table: LakeTable) -> None:
    load(table, 0, 10)
    load(table, 7, 9, topic="u")
    assert table.positions("t", [0]) == {0: OffsetRange(0, 0, 10)}
    assert table.positions("u", [0]) == {0: OffsetRange(0, 7, 9)}


class CutIn:
    """Commits from another writer at the worst moment: after all checks, before the swap."""

    def __init__(self, table: LakeTable, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
        name = "_check" if isinstance(table, DeltaLakeTable) else "_data_file"
        real = getattr(type(table), name)

        def cut_in(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(type(table), name, real)
            found = real(*args, **more)
            act()
            return found

        monkeypatch.setattr(type(table), name, cut_in)


def test_the_check_belongs_to_the_swap(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    files, theirs = stage(table, rows(0, 10)), stage(table, rows(0, 10))
    change = Change("load", "t", ranges=[OffsetRange(0, 0, 10)], add=theirs)
    CutIn(table, monkeypatch, lambda: another(table).commit(change))
    with pytest.raises(NotContiguous):
        table.commit(Change("load", "t", ranges=[OffsetRange(0, 0, 10)], add=files))
    assert offsets(table) == list(range(10))


def test_a_commit_that_others_do_not_touch_happens_after_theirs(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, theirs = stage(table, rows(0, 10)), stage(table, rows(0, 4, partition=1))
    change = Change("load", "t", ranges=[OffsetRange(1, 0, 4)], add=theirs)
    CutIn(table, monkeypatch, lambda: another(table).commit(change))
    table.commit(Change("load", "t", ranges=[OffsetRange(0, 0, 10)], add=files))
    assert Counter(by_duckdb(table, "partition")) == {(0,): 10, (1,): 4}
    assert table.positions("t", [0, 1]) == {0: OffsetRange(0, 0, 10), 1: OffsetRange(1, 0, 4)}


def test_a_mark_moves_only_from_where_it_is(table: LakeTable) -> None:
    assert table.transaction_version("replay") == 0
    table.commit(Change("mark", transactions=[AppTransaction("replay", 0, 4)]))
    assert another(table).transaction_version("replay") == 4
    with pytest.raises(CommitConflict):
        table.commit(Change("mark", transactions=[AppTransaction("replay", 3, 4)]))
    load(table, 0, 5)
    table.commit(Change("load", "t", ranges=[OffsetRange(0, 5, 6)], transactions=[AppTransaction("replay", 4, 4)]))
    assert table.transaction_version("replay") == 4


def test_a_position_ahead_is_reset_only_from_its_current_value(table: LakeTable) -> None:
    load(table, 0, 10)
    load(table, 10, 20)
    out = without_ranges(table, "t", [OffsetRange(0, 10, 20)], "y")
    again = stage(table, rows(10, 15))
    change = Change("load", "t", [OffsetRange(0, 10, 15)], {0: 20}, add=[*out.add, *again], remove=out.remove)
    table.commit(change)
    assert offsets(table) == list(range(15))
    assert table.positions("t", [0]) == {0: OffsetRange(0, 0, 15)}
    with pytest.raises(NotContiguous):
        table.commit(Change("load", "t", [OffsetRange(0, 10, 12)], {0: 20}))


def test_a_range_is_replaced_at_once(table: LakeTable) -> None:
    load(table, 10, 20)
    load(table, 20, 30)
    replaced = OffsetRange(0, 14, 24)
    out = without_ranges(table, "t", [replaced], "y")
    new = stage(table, rows(14, 24, n=pa.array([-1] * 10, pa.int64())))
    table.commit(Change("replace", "t", replaced=[replaced], add=[*out.add, *new], remove=out.remove))
    got = dict(by_duckdb(table, '"offset", n'))
    assert got == {o: -1 if 14 <= o < 24 else o * 10 for o in range(10, 30)}
    assert table.positions("t", [0]) == {0: OffsetRange(0, 10, 30)}


def test_a_replaced_range_may_begin_before_all_that_was_loaded_but_leave_no_gap(table: LakeTable) -> None:
    load(table, 10, 20)
    table.commit(Change("replace", "t", replaced=[OffsetRange(0, 5, 10)], add=stage(table, rows(5, 10))))
    assert table.positions("t", [0]) == {0: OffsetRange(0, 5, 20)}
    for first, end in ((0, 4), (15, 21), (25, 30)):
        with pytest.raises(NotContiguous):
            table.commit(Change("replace", "t", replaced=[OffsetRange(0, first, end)]))
    with pytest.raises(NotContiguous):
        table.commit(Change("replace", "t", replaced=[OffsetRange(1, 0, 4)]))


def test_rows_are_taken_out_by_their_coordinates(table: LakeTable) -> None:
    load(table, 0, 10)
    load(table, 0, 10, partition=1)
    gone = stage(table, rows(3, 5, partition=1))
    out = without_rows_of(table, table.store, [file.path for file in gone], "y")
    table.commit(Change("take out", add=out.add, remove=out.remove))
    assert sorted(by_duckdb(table, 'partition, "offset"')) == [
        (p, o) for p in (0, 1) for o in range(10) if (p, o) not in {(1, 3), (1, 4)}
    ]


def test_of_two_changes_of_the_same_files_the_second_is_refused(table: LakeTable) -> None:
    load(table, 0, 10)
    first, second = (without_ranges(table, "t", [OffsetRange(0, 0, 5)], stem) for stem in ("y", "z"))
    table.commit(Change("take out", add=first.add, remove=first.remove))
    with pytest.raises(CommitConflict):
        table.commit(Change("take out", add=second.add, remove=second.remove))
    assert offsets(table) == list(range(5, 10))


def test_columns_are_added_at_the_end_and_older_rows_have_none(table: LakeTable) -> None:
    load(table, 0, 4)
    more = pa.schema([("s", pa.struct([("x", pa.int64())])), ("n", pa.int64())])
    table.add_columns(more)
    table.add_columns(more)
    table.add_columns(pa.schema([("s", pa.struct([("y", pa.string())]))]))
    kind = pa.struct([("x", pa.int64()), ("y", pa.string())])
    assert table.spec().schema.names == [*SCHEMA.names, "s"]
    assert table.spec().schema.field("s").type == kind
    new = rows(4, 6).append_column("s", pa.array([{"x": 1, "y": "a"}, None], kind))
    table.commit(Change("load", "t", ranges=[OffsetRange(0, 4, 6)], add=stage(table, new)))
    got = dict(by_duckdb(table, '"offset", s'))
    assert got == {0: None, 1: None, 2: None, 3: None, 4: {"x": 1, "y": "a"}, 5: None}


def test_a_column_is_widened_in_every_file_and_no_value_changes(table: LakeTable) -> None:
    load(table, 0, 6)
    assert promote_types(table, pa.schema([("n", pa.float64())]), "w") == []
    assert table.spec().schema.field("n").type == pa.float64()
    load(table, 6, 8, n=pa.array([0.5, 1.5]))
    got = by_duckdb(table, '"offset", n, typeof(n)')
    assert {(o, n) for o, n, _ in got} == {(o, o * 10.0) for o in range(6)} | {(6, 0.5), (7, 1.5)}
    assert {kind for _, _, kind in got} == {"DOUBLE"}
    assert table.positions("t", [0]) == {0: OffsetRange(0, 0, 8)}


def test_a_column_with_a_value_too_large_for_the_wider_type_stays_as_it_is(table: LakeTable) -> None:
    load(table, 0, 2, n=pa.array([1, (1 << 53) + 1]))
    assert promote_types(table, pa.schema([("n", pa.float64())]), "w") == [("n",)]
    assert table.spec().schema.field("n").type == pa.int64()
    assert sorted(by_duckdb(table, "n")) == [(1,), ((1 << 53) + 1,)]


def test_widening_a_table_that_grew_meanwhile_is_refused(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    load(table, 0, 2)
    real = TableWriter.finish

    def grow(writer: TableWriter) -> list[StagedFile]:
        monkeypatch.setattr(TableWriter, "finish", real)
        load(another(table), 2, 4)
        return real(writer)

    monkeypatch.setattr(TableWriter, "finish", grow)
    with pytest.raises(CommitConflict):
        promote_types(table, pa.schema([("n", pa.float64())]), "w")
    assert table.spec().schema.field("n").type == pa.int64()
    assert offsets(table) == list(range(4))


def test_compaction_merges_files_and_changes_no_row(table: LakeTable) -> None:
    for first in range(0, 40, 4):
        load(table, first, first + 4)
    before, files = sorted(by_duckdb(table, "*"), key=str), len(table.files())
    compacted = compact(table, "c")
    assert (compacted.files_before, compacted.files_after, compacted.rows) == (files, 4, 40)
    assert len(table.files()) == 4
    assert sorted(by_duckdb(table, "*"), key=str) == before
    assert table.positions("t", [0]) == {0: OffsetRange(0, 0, 40)}
    assert compact(table, "c").files_before == 0


def test_compaction_is_tried_again_where_pyiceberg_leaves_out_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads share an evaluator: one thread replaces the limits of the manifest that another one judges."""
    table = iceberg_in(tmp_path / "lake" / "events")
    table.create(TableSpec(SCHEMA, BY))
    for first in range(0, 40, 4):
        load(table, first, first + 4)
    before = sorted(by_duckdb(table, "*"), key=str)
    visitor_type = visitors._ManifestEvalVisitor
    real = visitor_type.eval
    left_out = []

    def leave_one_out(visitor: visitors._ManifestEvalVisitor, manifest: ManifestFile) -> bool:
        left_out.append(manifest)
        return len(left_out) > 1 and real(visitor, manifest)

    monkeypatch.setattr(visitor_type, "eval", leave_one_out)
    assert compact(table, "c").rows == 40
    assert left_out
    assert sorted(by_duckdb(table, "*"), key=str) == before


def tree(table: LakeTable) -> dict[str, bytes]:
    """Every file of the lake but the leases."""
    files = [path for path in directory_of(table).parent.rglob("*") if path.is_file() and PRIVATE not in path.parts]
    return {str(path): path.read_bytes() for path in files}


def maintain(table: LakeTable, stem: str, *, file_bytes: int = 1 << 20) -> Compacted:
    now_ms = SystemClock().wall_ms()
    done = compact(table, stem, file_bytes=file_bytes)
    table.expire(now_ms - 7 * 86_400_000)
    remove_orphans(table, now_ms=now_ms)
    return done


def test_a_second_compaction_of_an_unchanged_table_changes_nothing(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 1)  # every file has rows enough for a row group of its own
    load(table, 0, 10)
    load(table, 10, 20)
    wide = pa.schema([*SCHEMA, pa.field("added", pa.struct([pa.field("x", pa.int64())]))])
    table.add_columns(wide)
    added = pa.array([{"x": o} for o in range(20, 30)], wide.field("added").type)
    for first, column in ((20, added), (30, added.cast(pa.struct([("x", pa.int64()), ("y", pa.string())])))):
        if "y" in str(column.type):
            table.add_columns(pa.schema([pa.field("added", column.type)]))
        files = stage(table, rows(first, first + 10).append_column("added", column), stem="0123456789ab")
        table.commit(Change("load", "t", ranges=[OffsetRange(0, first, first + 10)], add=files))
    values = sorted(by_duckdb(table, '"offset", n, added.x'), key=str)
    assert maintain(table, "0123456789ac").files_after == 4, "one of each directory"
    assert sorted(by_duckdb(table, '"offset", n, added.x'), key=str) == values
    before, version = tree(table), table.version()
    again = maintain(table, "0123456789ad")
    assert (again.files_before, table.version(), tree(table)) == (0, version, before)


@pytest.mark.parametrize("seed", range(3))
def test_compaction_settles_whatever_the_sizes_of_files(
    table: LakeTable, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 4_000)
    chance, end = random.Random(seed), 0
    for _ in range(12):
        first, end = end, end + chance.choice([1, 50, 300, 2000])
        noise = pa.array([chance.getrandbits(62) for _ in range(first, end)], pa.int64())
        load(table, first, end, n=noise)
    maintain(table, "0123456789ac", file_bytes=40_000)
    assert offsets(table) == list(range(end))
    before, version = tree(table), table.version()
    again = maintain(table, "0123456789ad", file_bytes=40_000)
    assert (again.files_before, table.version(), tree(table)) == (0, version, before)


def test_a_load_that_commits_while_files_are_merged_loses_nothing(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table, 0, 10)
    load(table, 10, 20)
    real = TableWriter.finish

    def load_too(writer: TableWriter) -> list[StagedFile]:
        monkeypatch.setattr(TableWriter, "finish", real)
        load(another(table), 20, 30)
        return real(writer)

    monkeypatch.setattr(TableWriter, "finish", load_too)
    compact(table, "c")
    assert offsets(table) == list(range(30))
    assert table.positions("t", [0]) == {0: OffsetRange(0, 0, 30)}


def test_files_of_versions_that_are_remembered_stay_until_they_expire(table: LakeTable) -> None:
    load(table, 0, 10)
    load(table, 10, 20)
    old = table.paths()
    compact(table, "c")
    now_ms = SystemClock().wall_ms()
    remove_orphans(table, now_ms=now_ms + 10_000_000, grace_ms=0)
    assert all(Path(path).exists() for path in old), "a reader may be at them"
    gone = table.expire(now_ms + 5_000)
    assert gone == len(old)
    assert not any(Path(path).exists() for path in old)
    assert offsets(table) == list(range(20))
    assert table.positions("t", [0]) == {0: OffsetRange(0, 0, 20)}
    load(table, 20, 30)
    assert offsets(another(table)) == list(range(30))


def test_orphans_are_removed_but_nothing_of_work_in_progress(table: LakeTable) -> None:
    load(table, 0, 10)
    with table.store.lease("load-t") as mine:
        theirs = stage(table, rows(10, 20), stem=mine.id)
        orphans = stage(table, rows(10, 20), stem="dead0dead0de")
        now_ms = SystemClock().wall_ms()
        assert remove_orphans(table, now_ms=now_ms).files == 0, "too young"
        removed = remove_orphans(table, now_ms=now_ms + 10_000_000)
        assert (removed.files, removed.size_bytes) == (len(orphans), sum(f.size_bytes for f in orphans))
        table.commit(Change("load", "t", ranges=[OffsetRange(0, 10, 20)], add=theirs))
    remove_orphans(table, now_ms=now_ms + 10_000_000)
    assert offsets(table) == list(range(20))


def test_files_of_other_writers_are_never_deleted(table: LakeTable) -> None:
    load(table, 0, 10)
    load(table, 10, 20)
    foreign = [
        directory_of(table) / name
        for name in (
            "part-00000-3f2a91c4-5d6e-4f70-8192-a3b4c5d6e7f8-c000.snappy.parquet",
            "data/part-0.parquet",
            "data/late=false/event_date=2015-05-17/00000-0-3f2a91c4-5d6e-4f70-8192-a3b4c5d6e7f8.parquet",
            "late=false/event_date=2015-05-17/export.parquet",
            "late=false/event_date=2015-05-17/sub/part-dead0dead0de-0.parquet",
            "other_table/part-dead0dead0de-0.parquet",
            "exports/2015.avro",
        )
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
        os.utime(path, (0, 0))
    compact(table, "0123456789ab")
    now_ms = SystemClock().wall_ms()
    table.expire(now_ms + 5_000)
    assert remove_orphans(table, now_ms=now_ms + 10_000_000).files == 0
    assert [path for path in foreign if not path.exists()] == []


def test_a_directory_with_a_table_of_the_other_format_is_refused(table: LakeTable) -> None:
    load(table, 0, 10)
    before = sorted(path for path in directory_of(table).rglob("*") if path.is_file())
    other: LakeTable = (IcebergLakeTable if isinstance(table, DeltaLakeTable) else DeltaLakeTable)(table.store)
    operations: list[Callable[[], object]] = [
        lambda: other.create(TableSpec(SCHEMA, BY)),
        other.exists,
        other.files,
        lambda: other.expire(SystemClock().wall_ms() + 5_000),
        lambda: remove_orphans(other, now_ms=SystemClock().wall_ms() + 10_000_000),
        lambda: compact(other, "c"),
    ]
    for operation in operations:
        with pytest.raises(TableMismatch, match="holds a table in the format"):
            operation()
    assert sorted(path for path in directory_of(table).rglob("*") if path.is_file()) == before
    assert offsets(another(table)) == list(range(10))
    for made in (table, other):
        lake = lake_in(
            directory_of(table).parent, TableFormat.DELTA if isinstance(made, DeltaLakeTable) else TableFormat.ICEBERG
        )
        directory_of(made).with_name("events_quarantine").mkdir(exist_ok=True)
        assert lake.table_names() == (["events"] if made is table else [])


def test_an_iceberg_table_of_another_catalog_is_refused(tmp_path: Path) -> None:
    theirs = iceberg_in(tmp_path / "lake" / "events")
    theirs.create(TableSpec(SCHEMA, BY))
    load(theirs, 0, 10)
    (tmp_path / "lake" / "catalog.db").rename(tmp_path / "theirs.db")
    with pytest.raises(TableMismatch, match="another catalog "):
        theirs.create(TableSpec(SCHEMA, BY))


def test_one_at_a_time_holds_a_lease(table: LakeTable) -> None:
    with table.store.lease("load-t"), pytest.raises(LeaseTaken, match="process"), table.store.lease("load-t"):
        pass
    with table.store.lease("load-t"):
        pass


def test_a_recreated_topic_is_detected_by_its_id(table: LakeTable) -> None:
    register_topic(table, "t", "id-1")
    register_topic(table, "u", "")
    register_topic(another(table), "t", "id-1")
    register_topic(table, "t", "")
    with pytest.raises(TableMismatch, match="recreated"):
        register_topic(table, "t", "id-2")
    assert topics_of(table) == ["t", "u"]


def test_properties_are_kept(table: LakeTable) -> None:
    table.set_properties({"complete.until": "14:00", "x": "1"})
    table.set_properties({"x": "2"})
    found = another(table).properties()
    assert (found["complete.until"], found["x"]) == ("14:00", "2")


def test_a_table_that_is_not_there_is_an_error(table: LakeTable, tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match="there is no"):
        type(table)(LocalStore(tmp_path / "nowhere" / "none")).files()  # type: ignore[call-arg]


def test_creating_a_table_again_leaves_it_as_it_is(table: LakeTable) -> None:
    load(table, 0, 3)
    another(table).create(TableSpec(pa.schema([("other", pa.string())])))
    assert offsets(table) == [0, 1, 2]
    assert table.spec().partition_by == BY


def test_the_time_of_the_last_commit_is_known(table: LakeTable) -> None:
    before_ms = SystemClock().wall_ms()
    load(table, 0, 3)
    committed_ms = table.committed_ms()
    assert committed_ms is not None
    assert before_ms <= committed_ms <= SystemClock().wall_ms()


def test_the_files_that_a_commit_names_are_on_the_disk_before_it_and_the_commit_after_it(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spies on both calls that sync note the order in which files and directories became durable."""
    order: list[str] = []
    real_file, real_directory = SystemFile.sync, SystemFiles.sync_directory

    def sync(file: SystemFile) -> None:
        order.append(str(Path(f"/proc/self/fd/{file.descriptor()}").readlink()))
        real_file(file)

    def sync_directory(files: SystemFiles, path: PurePath) -> None:
        order.append(f"{path}/")
        real_directory(files, path)

    monkeypatch.setattr(SystemFile, "sync", sync)
    monkeypatch.setattr(SystemFiles, "sync_directory", sync_directory)
    files = stage(table, rows(0, 10))
    synced = list(order)
    for file in files:
        path = directory_of(table) / file.path
        assert str(path) in synced
        above = [directory for directory in path.parents if directory_of(table) in (directory, *directory.parents)]
        assert {f"{directory}/" for directory in above} <= set(synced[synced.index(str(path)) :])
    order.clear()
    table.commit(Change("load", "t", ranges=[OffsetRange(0, 0, 10)], add=files))
    if (directory_of(table) / "_delta_log").exists():
        assert str(directory_of(table) / "_delta_log" / "00000000000000000001.json") in order
        assert order[-3:-1] == [f"{directory_of(table)}/_delta_log/", f"{directory_of(table)}/"]
    else:
        metadata = {Path(path).suffixes[-1] for path in order if "/metadata/" in path and not path.endswith("/")}
        assert metadata == {".avro", ".json"}
        assert f"{directory_of(table)}/metadata/" in order


def test_an_intents_files_are_not_removed(table: LakeTable) -> None:
    load(table, 0, 10)
    files = stage(table, rows(0, 5), stem="0123456789ab")
    window = [asdict(OffsetRange(0, 0, 5))]
    intent = {"number": 1 << 20, "what": "replace", "topic": "t", "window": window, "quarantined": []}
    intent["rows"] = [asdict(file) for file in files]
    (directory_of(table) / PRIVATE).mkdir(exist_ok=True)
    (directory_of(table) / PRIVATE / "intent.json").write_text(json.dumps(intent))
    removed = remove_orphans(table, now_ms=SystemClock().wall_ms() + 10_000_000)
    assert removed.files == 0
    assert all((directory_of(table) / file.path).exists() for file in files)


partition_rows = st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 5)), max_size=60)


@given(partition_rows)
def test_rows_are_split_by_directory_and_keep_their_order(found: list[tuple[bool, int, int]]) -> None:
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    table = pa.table(
        {
            "late": pa.array(columns[0], pa.bool_()),
            "day": pa.array(columns[1], pa.int32()),
            "x": pa.array(columns[2], pa.int64()),
            "n": pa.array(range(len(found)), pa.int64()),
        }
    )
    parts = list(split(table, ["late", "day"]))
    assert [key for key, _ in parts] == sorted({(str(late).lower(), str(day)) for late, day, _ in found})
    for (late, day), part in parts:
        wanted = [n for n, row in enumerate(found) if (str(row[0]).lower(), str(row[1])) == (late, day)]
        assert part["n"].to_pylist() == wanted


@pytest.mark.slow
def test_processes_that_commit_at_once_all_commit_and_lose_nothing(table: LakeTable) -> None:
    processes, times = 4, 5
    command = [sys.executable, "-m", "tests.contracts.committing", str(directory_of(table)), type(table).__name__]
    root = Path(__file__).parents[2]
    running = [subprocess.Popen([*command, str(p), str(times)], cwd=root) for p in range(processes)]
    assert [process.wait() for process in running] == [0] * processes
    assert table.positions("t", range(processes)) == {p: OffsetRange(p, 0, times) for p in range(processes)}
    properties = table.properties()
    assert {properties[f"p{p}"] for p in range(processes)} == {str(times - 1)}
