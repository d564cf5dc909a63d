"""Loads of a topic in memory into real tables of both formats, read back by DuckDB from the files alone."""

from __future__ import annotations

import errno
import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipeline.audit.readers import TableOffsetReader
from ottla.pipeline.event_time import Granularity, TimeFrom, TimeRule
from ottla.pipeline.formats.access_log import AccessLog
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.formats.plain import Raw
from ottla.pipeline.lake import intent
from ottla.pipeline.lake.lake_store import PRIVATE
from ottla.pipeline.lake.lake_table import Change, CommitConflict, LakeTable, TableMismatch, register_topic
from ottla.pipeline.lake.orphan_files import remove_orphans
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import Tables
from ottla.pipeline.loading.header_columns import header_columns
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.loading.plan import CannotLoad
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import HEADERS
from tests.pipeline import memory_log
from tests.pipeline.memory_log import Bench, MemoryTopic, Values
from tests.support.lakes import directory_of

GOOD = b'203.0.113.9 - - [17/May/2015:%02d:05:03 +0000] "GET /a HTTP/1.1" 200 5'
BAD = b"not a line"
BY_HOUR = RowMapping(AccessLog(), TimeRule(TimeFrom.FORMAT, granularity=Granularity.HOUR))
OBJECTS = RowMapping(JsonObjects())


@pytest.fixture(params=list(TableFormat))
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    found: TableFormat = request.param
    return found


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic({0: [GOOD % hour for hour in range(20)], 1: [GOOD % 3, BAD, None, GOOD % 4, b""], 2: []})


@pytest.fixture
def bench(tmp_path: Path, topic: MemoryTopic, table_format: TableFormat) -> Bench:
    return Bench(tmp_path / "a lake", topic, BY_HOUR, table_format=table_format)


def objects(*rows: Any) -> Values:
    return [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]


def test_every_offset_is_in_one_of_the_tables_once(bench: Bench) -> None:
    result = bench.load()
    bench.check_every_offset_once()
    assert (result.records, result.rows, result.quarantined, result.late) == (25, 22, 3, 0)


def test_rows_are_partitioned_by_their_events_day_and_hour(bench: Bench) -> None:
    bench.load()
    day, hour = "(event_time at time zone 'UTC')::date", "hour(event_time at time zone 'UTC')"
    assert bench.rows(f"distinct {day} = event_date::date and {hour} = event_hour::int") == [True]
    assert any("late=false/event_date=2015-05-17/event_hour=3/" in path for path in bench.table.paths())


def test_a_load_makes_one_file_of_a_directory_however_many_partitions_come_into_it(bench: Bench) -> None:
    bench.load()
    hours = [file.partition_values["event_hour"] for file in bench.table.files()]
    assert len(hours) == len(set(hours)) == 20


def test_unparsed_records_are_quarantined_whole_with_offset_and_reason(bench: Bench) -> None:
    result = bench.load()
    kept = bench.quarantined_files('topic, partition, "offset", reason, raw, key, headers[1].value')
    assert sorted(kept, key=str) == [
        ("web", 1, 1, "not a line of a common or combined access log", BAD, b"1", b"1"),
        ("web", 1, 2, "the record has no value", None, b"1", b"2"),
        ("web", 1, 4, "the line is empty", b"", b"1", b"4"),
    ]
    assert dict(result.reasons) == Counter(row[3] for row in kept)


def test_loading_again_loads_only_what_is_new(bench: Bench, topic: MemoryTopic) -> None:
    assert bench.load().rows == 22
    version = bench.table.version()
    assert bench.load().did_nothing
    assert bench.table.version() == version
    topic.values[2].append(GOOD % 9)
    again = bench.load()
    assert (again.rows, again.ranges) == (1, [OffsetRange(2, 0, 1)])
    held = bench.table.positions("web", range(4))
    assert {p: r.end_offset for p, r in held.items()} == {0: 20, 1: 5, 2: 1}


def test_of_two_loads_that_began_at_one_position_one_brings_the_rows(bench: Bench, topic: MemoryTopic) -> None:
    """The other finds that there is nothing left to do."""
    loading, other = bench.loading(), bench.loading()
    real = loading.task_runner

    def other_is_quicker(job: Any, parts: Any) -> Any:
        staged = real(job, parts)
        if not other.tables.table.positions("web", [0]):
            other.run(topic.bounds())
        return staged

    loading.task_runner = other_is_quicker
    assert loading.run(topic.bounds()).did_nothing
    bench.check_every_offset_once()


def test_a_recreated_topic_is_not_loaded_into_the_old_table(bench: Bench) -> None:
    bench.load()
    with pytest.raises(TableMismatch, match="recreated"):
        register_topic(bench.table, "web", "id-2")


def test_an_empty_log_makes_no_commit(tmp_path: Path, table_format: TableFormat) -> None:
    bench = Bench(tmp_path, MemoryTopic({0: []}), BY_HOUR, table_format=table_format)
    before = bench.table.version()
    assert bench.load().did_nothing
    assert bench.table.version() == before


def test_counts_for_the_audit_come_from_the_files(bench: Bench) -> None:
    bench.load()
    rows = TableOffsetReader(bench.table, "web")
    counted = {
        p: sorted(o for some in rows.read(p, first, 20) for o in some.offsets.tolist()) for p, first in ((0, 5), (1, 0))
    }
    assert counted == {0: list(range(5, 20)), 1: [0, 3]}


def test_a_table_with_another_partitioning_is_refused(bench: Bench, tmp_path: Path, topic: MemoryTopic) -> None:
    with pytest.raises(TableMismatch, match="partitioned by"):
        Bench(
            tmp_path / "a lake",
            topic,
            RowMapping(AccessLog(), TimeRule(TimeFrom.FORMAT)),
            table_format=TableFormat.DELTA if bench.table.layout.data == "" else TableFormat.ICEBERG,
        )


def test_deleted_offsets_are_skipped_and_reported_with_on_loss_skip(bench: Bench, topic: MemoryTopic) -> None:
    bench.load(end={0: 5, 1: 5, 2: 0})
    topic.starts[0] = 8
    with pytest.raises(CannotLoad, match="offsets 5 to 7 were deleted"):
        bench.load()
    result = bench.load(on_loss=OnLoss.SKIP)
    assert result.lost == [OffsetRange(0, 5, 8)]
    assert sorted(bench.rows('"offset"', "partition = 0")) == [0, 1, 2, 3, 4, *range(8, 20)]
    assert bench.table.positions("web", [0]) == {0: OffsetRange(0, 0, 20)}


# ---- Lateness


def test_late_rows_have_a_partition_of_their_own_and_are_counted(tmp_path: Path, table_format: TableFormat) -> None:
    """Records are made one second apart; an event more than ten seconds before its record is late."""
    events = [{"at": datetime.fromtimestamp(n - (n % 3) * 6, UTC).isoformat(), "n": n} for n in range(30, 60)]
    values = [*objects({"at": "1970-01-01T00:00:00Z", "n": -1}) * 30, *objects(*events)]
    mapping = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at", lateness_ms=10_000))
    bench = Bench(tmp_path, MemoryTopic({0: values}), mapping, table_format=table_format)
    result = bench.load()
    late = set(bench.rows('"offset"', "late::boolean"))
    assert late == set(range(11, 30)) | {n for n in range(30, 60) if n % 3 == 2}
    assert result.late == len(late)
    assert {f.partition_values["late"] for f in bench.table.files()} == {"true", "false"}
    bench.check_every_offset_once()


def test_a_row_without_event_time_is_quarantined(tmp_path: Path) -> None:
    values = objects({"at": "2015-05-17"}, {"at": "soon"}, {"at": None}, {})
    bench = Bench(tmp_path, MemoryTopic({0: values}), RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at")))
    bench.load()
    assert bench.rows() == [0]
    assert set(bench.quarantined_files("reason")) == {"there is no event time in field at"}


def test_the_time_is_found_by_a_pattern_in_the_value(tmp_path: Path) -> None:
    rule = TimeRule(TimeFrom.PATTERN, pattern=r"at (?P<time>\d+)", form="timestamp_ms", granularity=Granularity.NONE)
    values: Values = [b"x at 1431856800000 y", b"nothing"]
    bench = Bench(tmp_path, MemoryTopic({0: values}), RowMapping(Raw(), rule))
    bench.load()
    assert bench.rows("epoch_ms(event_time)") == [1431856800000]
    assert bench.quarantined_files('"offset"') == [1]


# ---- Schema changes


def test_new_fields_become_columns_at_the_end_in_the_order_they_came(tmp_path: Path, table_format: TableFormat) -> None:
    topic = MemoryTopic({0: objects({"b": 1, "a": "x"})})
    bench = Bench(tmp_path, topic, OBJECTS, table_format=table_format)
    bench.load()
    topic.values[0] += objects({"a": "y", "c": {"d": 1}}, {"c": {"e": [True]}, "f": 0.5})
    bench.load()
    names = bench.table.spec().schema.names
    assert names[-4:] == ["b", "a", "c", "f"]
    assert dict(bench.rows('"offset", c')) == {0: None, 1: {"d": 1, "e": None}, 2: {"d": None, "e": [True]}}
    assert bench.quarantined_files() == []


def test_integers_are_promoted_to_doubles_in_loaded_files(tmp_path: Path, table_format: TableFormat) -> None:
    topic = MemoryTopic({0: objects({"n": 1}, {"n": 2}), 1: objects({"n": 7})})
    bench = Bench(tmp_path, topic, OBJECTS, table_format=table_format)
    bench.load()
    topic.values[0] += objects({"n": 2.5}, {"n": 3})
    bench.load()
    assert bench.table.spec().schema.field("n").type == pa.float64()
    assert set(bench.rows("n, typeof(n)")) == {(v, "DOUBLE") for v in (1.0, 2.0, 2.5, 3.0, 7.0)}
    bench.check_every_offset_once()


def test_a_wider_value_within_a_load_promotes_the_whole_column(tmp_path: Path) -> None:
    values = objects(*({"n": n} for n in range(40)), {"n": 0.5}, *({"n": n} for n in range(40)))
    bench = Bench(tmp_path, MemoryTopic({0: values}), OBJECTS)
    bench.load()
    assert set(bench.rows("typeof(n)")) == {"DOUBLE"}
    bench.check_every_offset_once()


def test_tasks_that_met_other_types_agree_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.pipeline.loading import plan

    monkeypatch.setattr(plan, "TASK_OFFSETS_MIN", 1)
    topic = MemoryTopic({0: objects({"n": 1, "x": 1}), 1: objects({"n": 0.5}, {"x": "text"}), 2: objects({"n": 2})})
    bench = Bench(tmp_path, topic, OBJECTS)
    bench.load()
    found = {(0, 1.0, "DOUBLE"), (1, 0.5, "DOUBLE"), (2, 2.0, "DOUBLE")}
    assert set(bench.rows("partition, n, typeof(n)")) == found
    assert bench.quarantined_files("partition, reason") == [(1, "field x is a text, and the table has a number")]
    bench.check_every_offset_once()


def test_a_quarantined_record_decides_no_type_for_the_tasks_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.pipeline.loading import plan

    monkeypatch.setattr(plan, "TASK_OFFSETS_MIN", 1)
    large = (1 << 53) + 1
    topic = MemoryTopic(
        {
            0: objects({"n": 1, "x": 1}),
            1: objects({"n": 0.5, "x": "text"}),
            2: objects({"n": large}),
            3: objects({"n": 0.5}),
        }
    )
    bench = Bench(tmp_path, topic, OBJECTS)
    bench.load()
    assert set(bench.rows("partition, n, typeof(n)")) == {(0, 1, "BIGINT"), (2, large, "BIGINT")}
    assert sorted(bench.quarantined_files("partition")) == [1, 3]
    bench.check_every_offset_once()


def test_an_empty_list_is_one_whatever_its_task_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.pipeline.loading import plan

    monkeypatch.setattr(plan, "TASK_OFFSETS_MIN", 1)
    monkeypatch.setattr(memory_log, "BATCH_RECORDS", 2)
    empty = {"tags": [], "o": {"inner": []}, "e": {}}
    topic = MemoryTopic(
        {
            0: objects(empty, {}, {"n": 1}, empty, {"tags": None}),
            1: objects(empty, {"n": 2}, {"tags": ["a"], "o": {"inner": [1]}, "e": {"x": 1}}, empty),
            2: objects({}, empty),
        }
    )
    bench = Bench(tmp_path, topic, OBJECTS)
    bench.load()
    found = sorted(bench.rows('partition, "offset", tags, o.inner, e is null', "tags is not null"))
    assert found == [(p, o, [], [], False) for p, o in ((0, 0), (0, 3), (1, 0))] + [
        (1, 2, ["a"], [1], False),
        (1, 3, [], [], False),
        (2, 1, [], [], False),
    ]
    bench.check_every_offset_once()


def test_a_field_of_another_type_quarantines_its_record(tmp_path: Path, table_format: TableFormat) -> None:
    topic = MemoryTopic({0: objects({"n": 1})})
    bench = Bench(tmp_path, topic, OBJECTS, table_format=table_format)
    bench.load()
    topic.values[0] += objects({"n": "one"}, {"n": [1]}, {"n": None}, {"n": 3}, {"n": {"x": 1}})
    bench.load()
    assert sorted(bench.rows()) == [0, 3, 4]
    assert dict(bench.quarantined_files('"offset", reason')) == {
        1: "field n is a text, and the table has a number",
        2: "field n is an array, and the table has a number",
        5: "field n is an object, and the table has a number",
    }


def test_a_batch_without_a_valid_record_is_quarantined(tmp_path: Path) -> None:
    topic = MemoryTopic({0: objects({"n": 1}), 1: [b"", None, b"no json"]})
    bench = Bench(tmp_path, topic, OBJECTS)
    bench.load()
    topic.values[1] += [b"{"]
    bench.load()
    assert len(bench.quarantined_files()) == 4
    bench.check_every_offset_once()


def test_a_batch_of_records_of_another_type_is_quarantined(tmp_path: Path) -> None:
    topic = MemoryTopic({0: objects({"n": 1})})
    bench = Bench(tmp_path, topic, OBJECTS)
    bench.load()
    topic.values[0] += objects({"n": "one"})
    bench.load()
    assert bench.quarantined_files("reason") == ["field n is a text, and the table has a number"]


def test_a_column_with_a_number_that_no_double_holds_is_not_promoted(tmp_path: Path) -> None:
    large = (1 << 53) + 1
    topic = MemoryTopic({0: objects({"n": large})})
    bench = Bench(tmp_path, topic, OBJECTS)
    bench.load()
    topic.values[0] += objects({"n": 0.5}, {"n": 4.0}, {"n": 5})
    bench.load()
    assert sorted(bench.rows("n")) == [4, 5, large]
    assert bench.quarantined_files('"offset"') == [1]


def test_declared_columns_have_their_type_and_never_another(tmp_path: Path) -> None:
    columns = {"n": "int", "at": "timestamp", "when": "timestamp_s", "p": "decimal(6,2)"}
    mapping = RowMapping(JsonObjects(declared=columns), columns=columns)
    values = objects(
        {"n": 1, "at": "2015-05-17T10:00:00+02:00", "when": 1431856800, "p": 1.25},
        {"n": "2", "at": "2015-05-17", "when": "1431856800"},
        {"n": 2.5},
        {"at": "never"},
        {"n": 1 << 40},
        {"n": {"x": 1}},
    )
    bench = Bench(tmp_path, MemoryTopic({0: values}), mapping)
    bench.load()
    types = bench.table.spec().schema
    assert [str(types.field(n).type) for n in ("n", "at", "when", "p")] == [
        "int32",
        "timestamp[us, tz=UTC]",
        "timestamp[us, tz=UTC]",
        "decimal128(6, 2)",
    ]
    hour = 1431849600
    assert bench.rows('"offset", n, epoch("at"), epoch("when"), p::varchar', '"offset" = 0') == [
        (0, 1, hour, 1431856800, "1.25")
    ]
    assert dict(bench.quarantined_files('"offset", reason')) == {
        2: "field n is no int",
        3: "field at is no timestamp",
        4: "field n is no int",
        5: "field n is an object",
    }
    assert bench.rows("n", '"offset" = 1') == [2]


def test_fields_named_as_columns_of_ours_get_an_underscore(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MemoryTopic({0: objects({"offset": 99, "Topic": "x", "late": 1})}), OBJECTS)
    bench.load()
    assert bench.rows('"offset", offset_, Topic_, late_') == [(0, 99, "x", 1)]


def test_columns_do_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.pipeline.loading import row_mapping as rows

    monkeypatch.setattr(rows, "COLUMNS_MAX", 10)  # seven are ours
    bench = Bench(tmp_path, MemoryTopic({0: objects(*({f"f{n}": n} for n in range(6)))}), OBJECTS)
    bench.load()
    assert sorted(bench.rows()) == [0, 1, 2]
    assert set(bench.quarantined_files("reason")) == {f"field f{n} would be column 4 of the table" for n in (3, 4, 5)}


def test_key_and_headers_are_columns_where_they_are_wanted(tmp_path: Path, table_format: TableFormat) -> None:
    mapping = RowMapping(Raw(), keep=("key", "headers"))
    bench = Bench(tmp_path, MemoryTopic({3: [b"v", None]}), mapping, table_format=table_format)
    bench.load()
    assert sorted(bench.rows('"offset", key, value, headers[1].key, headers[1].value')) == [
        (0, b"3", b"v", "h", b"0"),
        (1, b"3", None, "h", b"1"),
    ]


# ---- Backfills and replays


def everything(bench: Bench) -> Any:
    return sorted(bench.rows("* exclude (record_time)"), key=str), sorted(bench.quarantined_files("*"), key=str)


def test_a_backfill_gives_the_same_rows(bench: Bench) -> None:
    bench.load()
    before = everything(bench)
    for _ in range(2):
        result = bench.backfill({0: 5, 1: 1}, {0: 12, 1: 5})
        assert result.ranges == [OffsetRange(0, 5, 12), OffsetRange(1, 1, 5)]
        assert everything(bench) == before
    assert bench.load().did_nothing


def test_a_backfill_with_other_settings_replaces_the_old_rows(bench: Bench) -> None:
    bench.load()
    mapping = RowMapping(AccessLog(), TimeRule(TimeFrom.RECORD, granularity=Granularity.HOUR))
    other = Bench(directory_of(bench.table).parent, bench.topic, mapping, table_format=_format_of(bench))
    other.backfill({0: 0, 1: 0}, {0: 10, 1: 5})
    bench.check_every_offset_once()
    assert set(bench.rows("year(event_time)", 'partition = 0 and "offset" < 10')) == {1970}
    assert set(bench.rows("year(event_time)", 'partition = 0 and "offset" >= 10')) == {2015}


def _format_of(bench: Bench) -> TableFormat:
    return TableFormat.DELTA if bench.table.layout.data == "" else TableFormat.ICEBERG


def test_a_backfill_may_begin_before_the_first_load(bench: Bench) -> None:
    bench.load(first={0: 10, 1: 2, 2: 0})
    assert min(bench.rows('"offset"', "partition = 0")) == 10
    bench.backfill({0: 0, 1: 0}, {})
    bench.check_every_offset_once()
    assert bench.table.positions("web", [0]) == {0: OffsetRange(0, 0, 20)}


def test_a_backfill_that_would_leave_a_gap_is_refused(bench: Bench) -> None:
    bench.load(first={0: 10, 1: 2, 2: 0})
    with pytest.raises(CannotLoad, match="leaves a gap"):
        bench.backfill({0: 0}, {0: 8})


def test_a_backfill_of_deleted_offsets_is_refused_before_anything_changes(bench: Bench, topic: MemoryTopic) -> None:
    bench.load()
    before = everything(bench)
    topic.starts[0] = 8
    with pytest.raises(CannotLoad, match="offsets 5 to 7 of the table: the log no longer has the records"):
        bench.backfill({0: 5}, {0: 12})
    assert everything(bench) == before


def test_a_replay_moves_records_that_parse_now_into_the_table_once(tmp_path: Path, table_format: TableFormat) -> None:
    values = objects({"n": 1}, b"no json", {"n": "2"}, {"n": 3})
    topic = MemoryTopic({0: values, 1: objects({"n": "4"})})
    strict = Bench(tmp_path, topic, RowMapping(JsonObjects(), columns={"n": "boolean"}), table_format=table_format)
    strict.load()
    assert len(strict.quarantined_files()) == 3, "numbers are booleans to Arrow, texts are not"
    lenient = Bench(tmp_path, topic, RowMapping(JsonObjects()), table_format=table_format)
    before = lenient.table.positions("web", [0, 1])
    result = lenient.replay()
    assert (result.rows, lenient.quarantined_files("raw")) == (0, [b"no json", b'{"n": "2"}', b'{"n": "4"}'])
    understands = Bench(tmp_path, topic, RowMapping(JsonObjects(), columns={"n": "string"}), table_format=table_format)
    assert understands.replay().rows == 0, "the table's column is a boolean"
    assert lenient.table.positions("web", [0, 1]) == before
    lenient.check_every_offset_once()


class Crash(Exception):
    """The process died here."""


class Deadly:
    """A table whose commit may be the last thing the process does."""

    def __init__(self, table: LakeTable, *, before: bool = False, after: bool = False) -> None:
        self._table, self._before, self._after = table, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, change: Change) -> None:
        if self._before:
            raise Crash
        self._table.commit(change)
        if self._after:
            raise Crash


DEATHS: dict[str, dict[str, dict[str, bool]]] = {
    "before the quarantine's commit": {"quarantine": {"before": True}},
    "after the quarantine's commit": {"quarantine": {"after": True}},
    "before the table's commit": {"table": {"before": True}},
    "after the table's commit": {"table": {"after": True}},
}


def deadly(bench: Bench, death: str) -> Tables:
    where = DEATHS[death]
    table: Any = Deadly(bench.table, **where.get("table", {}))
    quarantine: Any = Deadly(bench.quarantine, **where.get("quarantine", {}))
    return Tables(table, quarantine)


@pytest.mark.parametrize("death", DEATHS)
def test_a_crashed_backfill_is_completed_by_the_next_load(bench: Bench, death: str) -> None:
    from ottla.pipeline.loading.backfill import backfill_topic

    bench.load()
    mapping = RowMapping(AccessLog(), TimeRule(TimeFrom.RECORD, granularity=Granularity.HOUR))
    other = Bench(directory_of(bench.table).parent, bench.topic, mapping, table_format=_format_of(bench))
    with pytest.raises(Crash):
        backfill_topic(other.loading(deadly(other, death)), bench.topic.bounds(), {0: 0, 1: 0}, {})
    assert intent.complete_intent(bench.table, bench.quarantine)
    assert not intent.complete_intent(bench.table, bench.quarantine)
    bench.check_every_offset_once()
    assert set(bench.rows("year(event_time)")) == {1970}


@pytest.mark.parametrize("death", DEATHS)
def test_a_crashed_replay_is_completed_by_the_next_load(tmp_path: Path, table_format: TableFormat, death: str) -> None:
    from ottla.pipeline.loading.backfill import replay

    topic = MemoryTopic({0: objects({"at": "2015-05-17"}, {"at": "17/May/2015"}, {"at": "?"}, {"at": "17/May/2015"})})
    rule = TimeRule(TimeFrom.FIELD, field="at")
    bench = Bench(tmp_path, topic, RowMapping(JsonObjects(), rule), table_format=table_format)
    bench.load()
    assert sorted(bench.quarantined_files()) == [1, 2, 3]
    other = Bench(
        tmp_path,
        topic,
        RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at", form="%d/%b/%Y")),
        table_format=table_format,
    )
    with pytest.raises(Crash):
        replay(other.loading(deadly(other, death)), [0])
    intent.complete_intent(bench.table, bench.quarantine)
    assert (sorted(bench.rows()), bench.quarantined_files()) == ([0, 1, 3], [2])
    assert bench.load().did_nothing
    assert bench.replay().rows == 0


def test_an_intent_is_not_completed_while_its_process_holds_the_lease(bench: Bench) -> None:
    from ottla.pipeline.loading.backfill import backfill_topic

    bench.load()
    with pytest.raises(Crash):
        backfill_topic(bench.loading(deadly(bench, "before the table's commit")), bench.topic.bounds(), {0: 0}, {})
    with bench.table.store.lease(intent.WORK):
        assert not intent.complete_intent(bench.table, bench.quarantine)
    assert intent.complete_intent(bench.table, bench.quarantine)


def interrupted(bench: Bench, kind: str, death: str) -> Bench:
    """Begin a replay or a backfill that dies; returns the same tables as its next run has them."""
    from ottla.pipeline.loading.backfill import backfill_topic, replay

    bench.topic.values = {0: objects({"at": "2015-05-17"}, {"at": "17/May/2015"}, {"at": "?"}, {"at": "17/May/2015"})}
    root, table_format = directory_of(bench.table).parent / "interrupted", _format_of(bench)
    Bench(root, bench.topic, AT, table_format=table_format).load()
    other = Bench(root, bench.topic, AT_BY_FORM, table_format=table_format)
    loading = other.loading(deadly(other, death))
    work = {
        "replay": lambda: replay(loading, [0]),
        "backfill": lambda: backfill_topic(loading, other.topic.bounds(), {0: 0}, {}),
    }
    with pytest.raises(Crash):
        work[kind]()
    other.stem = "again"
    return other


AT = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at"))
AT_BY_FORM = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at", form="%d/%b/%Y"))


def again(bench: Bench, kind: str) -> None:
    if kind == "replay":
        bench.replay()
    else:
        bench.backfill({0: 0}, {})


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("kind", ["replay", "backfill"])
def test_an_intent_that_cannot_be_completed_is_abandoned_and_stops_nothing(bench: Bench, kind: str, death: str) -> None:
    """Its files are gone: another program's vacuum deleted what no version names."""
    found = interrupted(bench, kind, death)
    for table in (found.table, found.quarantine):
        for path in set(directory_of(table).rglob("*.parquet")) - {Path(path) for path in table.paths()}:
            if "_delta_log" not in path.parts:
                path.unlink()
    warnings: list[str] = []
    done = intent.complete_intent(found.table, found.quarantine, warnings.append)
    assert done or f"an interrupted {kind}" in warnings[0], warnings
    assert done or "was abandoned" in warnings[0]
    found.topic.values[0] += objects({"at": "18/May/2015"})
    assert found.load().rows == 1
    compact(found.table, "compact")
    again(found, kind)
    found.check_every_offset_once()
    assert not intent.complete_intent(found.table, found.quarantine, warnings.append)


def test_an_abandoned_replay_loses_no_record_before_it_is_run_again(bench: Bench) -> None:
    """It stopped between its two commits."""
    found = interrupted(bench, "replay", "after the table's commit")
    shutil.rmtree(directory_of(found.table) / PRIVATE)
    assert set(found.rows() + found.quarantined_files()) == {0, 1, 2, 3}
    found.replay()
    found.check_every_offset_once()


def test_an_intent_that_fails_for_now_is_completed_by_a_later_command(bench: Bench) -> None:
    class Full(Deadly):
        def commit(self, change: Change) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    found = interrupted(bench, "backfill", "after the quarantine's commit")
    full: Any = Full(found.table)
    warnings: list[str] = []
    assert not intent.complete_intent(full, found.quarantine, warnings.append)
    assert "No space left on device. The next command tries again." in warnings[0]
    assert "backfill of web (partition 0, offsets 0 to 3)" in warnings[0]
    with pytest.raises(CommitConflict, match="an earlier backfill of requests is not completed"):
        found.backfill({0: 0}, {})
    assert intent.complete_intent(found.table, found.quarantine)
    found.check_every_offset_once()


def test_an_intent_that_cannot_be_read_is_set_aside(bench: Bench) -> None:
    bench.load()
    (directory_of(bench.table) / PRIVATE).mkdir(exist_ok=True)
    (directory_of(bench.table) / PRIVATE / "intent.json").write_text("{")
    assert remove_orphans(bench.table, now_ms=0).files == 0
    warnings: list[str] = []
    assert not intent.complete_intent(bench.table, bench.quarantine, warnings.append)
    assert "intent.json cannot be read" in warnings[0]
    bench.backfill({0: 0}, {})
    bench.check_every_offset_once()


# ---- Headers


def test_headers_become_columns_of_their_declared_types(tmp_path: Path, table_format: TableFormat) -> None:
    mapping = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="h", form="timestamp_s"), headers={"h": "long"})
    topic = MemoryTopic({0: objects({"h": "a field"}, {"n": 1}, b"none", {"n": 2})})
    bench = Bench(tmp_path, topic, mapping, table_format=table_format)
    bench.load()
    assert sorted(bench.rows('"offset", h, h_, n')) == [(0, 0, "a field", None), (1, 1, None, 1), (3, 3, None, 2)]
    assert bench.quarantined_files('"offset", headers[1].value') == [(2, b"2")]


def test_of_several_headers_the_last_counts_and_one_of_another_type_is_a_reason() -> None:
    def one(*values: bytes | None) -> list[dict[str, Any]]:
        return [{"key": "x", "value": b"9"}, *({"key": "h", "value": value} for value in values)]

    rows = [one(b"1", b"2"), one(), None, one(None), one(b"x"), one(b"\xff")]
    records = pa.record_batch({"headers": pa.array(rows, HEADERS)})
    found, reasons = header_columns(records, {"h": "int", "none": "string"})
    assert found["h"].to_pylist() == [2, None, None, None, None, None]
    assert found["none"].to_pylist() == [None] * 6
    assert reasons.to_pylist() == [None] * 4 + ["field h is no int", "header h is not UTF-8"]
    found, reasons = header_columns(records.slice(4), {"h": "binary"})
    assert (found["h"].to_pylist(), reasons.null_count) == ([b"x", b"\xff"], 2)
