"""Windows kept up to date say what a batch over the same rows says, whatever pieces came and whatever died when."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.lake.file_writer import TableWriter
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import AppTransaction, Change, CommitConflict, LakeTable, TableSpec
from ottla.pipeline.lake.rewrite import target_of
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.stream.aggregate import Aggregate, Windows, function_of, storable
from ottla.pipeline.stream.errors import InvalidFunction
from ottla.pipeline.stream.measures import InvalidMeasure, parse_measure
from ottla.pipeline.stream.results import Message, Results
from ottla.pipeline.stream.update import REPLACED, LateRowPolicy, ResultUpdater, Stream, interval_of, join_periods
from tests.support.examples import examples
from tests.support.lakes import lake_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "requests"
SOURCE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("client", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("late", pa.bool_()),
        ("event_date", pa.date32()),
    ]
)
START = datetime(2015, 5, 17, 10, tzinfo=UTC)
MEASURES = {
    "requests": "count",
    "big": "count if bytes > 500",
    "sent": "sum(bytes)",
    "clients": "distinct(client)",
    "median": "quantile(bytes, 0.5)",
    "mean": "avg(bytes)",
    "paths": "top(path, 2)",
}
TRAFFIC = Aggregate(
    Windows("10 minutes"),
    [parse_measure(name, text) for name, text in MEASURES.items()],
    dimensions=["kind"],
    columns={"kind": "substring_index(path, '/', 2)"},
    condition="bytes >= 0",
)


class Died(Exception):
    """The process was killed here."""


@dataclass
class Topic:
    """A compacted topic: the last value of each key. It may die on the way in."""

    kept: dict[bytes, bytes] = field(default_factory=dict)
    deaths: int = 0

    def publish(self, messages: Iterable[Message]) -> None:
        for count, message in enumerate(messages):
            if self.deaths and count == 2:
                self.deaths -= 1
                raise Died
            if message.value is None:
                self.kept.pop(message.key, None)
            else:
                self.kept[message.key] = message.value

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(value) for _, value in sorted(self.kept.items())]


class Source:
    """A table that is loaded piece by piece."""

    def __init__(self, table: LakeTable) -> None:
        self.table = table
        self.ends: dict[int, int] = {}
        self.rows: list[dict[str, Any]] = []
        table.create(TableSpec(SOURCE, ("event_date",)))

    def load(self, rows: list[dict[str, Any]]) -> None:
        placed = []
        before = dict(self.ends)
        for row in rows:
            offset = self.ends.get(row["partition"], 0)
            self.ends[row["partition"]] = offset + 1
            time = row["event_time"]
            placed.append({"topic": TOPIC, "offset": offset, "event_date": time and time.date(), "late": False, **row})
        ranges = [OffsetRange(p, before.get(p, 0), end) for p, end in self.ends.items() if before.get(p) != end]
        self.rows += placed
        files = self.write(placed, f"load-{sum(self.ends.values())}")
        self.table.commit(Change("load", topic=TOPIC, ranges=ranges, add=files))

    def write(self, rows: list[dict[str, Any]], stem: str) -> Any:
        writer = TableWriter(target_of(self.table, self.table.spec()), stem)
        writer.add(pa.Table.from_pylist(rows, SOURCE))
        return writer.finish()

    @property
    def held(self) -> Mapping[str, Mapping[int, OffsetRange]]:
        return {TOPIC: self.table.positions(TOPIC, range(4))}


def some_rows(seed: int, count: int = 60) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "partition": rng.randrange(3),
            "event_time": START + timedelta(seconds=rng.randrange(7200)),
            "client": rng.choice("abcdef"),
            "path": rng.choice(["/blog/x", "/blog/y", "/api", "/api/v|1", None]),
            "bytes": rng.randrange(1000),
        }
        for _ in range(count)
    ]


@pytest.fixture(params=list(TableFormat))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return lake_in(tmp_path / "lake", request.param)


@pytest.fixture
def delta(tmp_path: Path) -> Lake:
    return lake_in(tmp_path / "lake")


def stream(
    aggregate: Any = TRAFFIC,
    *,
    key: list[str] | None = None,
    late: LateRowPolicy = LateRowPolicy.UPDATE,
    text: str = "v1",
) -> Stream:
    return Stream("traffic", Windows("10 minutes"), aggregate, key or ["kind"], text, late)


def follower(
    spark: SparkSession, source: Source, lake: Lake, topic: Topic | None, what: Stream | None = None
) -> ResultUpdater:
    what = what or stream()
    results = Results(lake.table("traffic"), what.key, stem=f"s{random.random()}")
    return ResultUpdater(spark, what, source.table, results, topic.publish if topic else None)


def batch(spark: SparkSession, rows: list[dict[str, Any]], aggregate: Any = TRAFFIC) -> list[dict[str, Any]]:
    found = storable(aggregate(spark.createDataFrame(pa.Table.from_pylist(rows, SOURCE).to_pandas()))).toArrow()
    return in_order(found.to_pylist())


def results(lake: Lake, key: tuple[str, ...] = ("kind",)) -> list[dict[str, Any]]:
    rows = Results(lake.table("traffic"), key, stem="reader").rows().drop_columns(["window_date"])
    return in_order(rows.to_pylist())


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["window_start"], str(row.get("kind"))))


def test_a_table_loaded_in_pieces_gives_the_windows_of_a_batch(spark: SparkSession, lake: Lake) -> None:
    source, topic = Source(lake.table("requests")), Topic()
    rows = some_rows(seed=1)
    for at in range(0, len(rows), 20):
        source.load(rows[at : at + 20])
        follower(spark, source, lake, topic).advance(source.held)
    expected = batch(spark, source.rows)
    assert results(lake) == expected
    assert len(topic.kept) == len(expected)
    assert [row["sent"] for row in topic.rows()] == [
        row["sent"] for row in sorted(expected, key=lambda r: next(k for k in topic.kept if has(topic, k, r)))
    ]


def has(topic: Topic, key: bytes, row: dict[str, Any]) -> bool:
    value = json.loads(topic.kept[key])
    same_start = value["window_start"] == row["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")
    return bool(same_start and value["kind"] == row["kind"])


def test_nothing_new_does_nothing(spark: SparkSession, delta: Lake) -> None:
    source = Source(delta.table("requests"))
    source.load(some_rows(seed=2, count=10))
    follower(spark, source, delta, None).advance(source.held)
    version = delta.table("traffic").version()
    assert follower(spark, source, delta, None).advance(source.held).windows == 0
    assert delta.table("traffic").version() == version


@pytest.mark.parametrize("seed", range(examples(4)))
def test_killed_anywhere_and_started_again_it_ends_with_the_windows_of_a_batch(
    spark: SparkSession, delta: Lake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    source, topic = Source(delta.table("requests")), Topic()
    commit = type(source.table).commit
    deaths = {"before": 0, "after": 0}

    def dying(table: LakeTable, change: Change) -> None:
        if table.name == "traffic" and rng.random() < 0.3:
            deaths["before"] += 1
            raise Died
        commit(table, change)
        if table.name == "traffic" and rng.random() < 0.3:
            deaths["after"] += 1
            raise Died

    rows = some_rows(seed + 10)
    for at in range(0, len(rows), 20):
        source.load(rows[at : at + 20])
        topic.deaths = rng.randrange(2)
        with monkeypatch.context() as patch:
            patch.setattr(type(source.table), "commit", dying)
            for _ in range(3):
                try:
                    follower(spark, source, delta, topic).advance(source.held)
                    break
                except Died:
                    continue
    topic.deaths = 0
    follower(spark, source, delta, topic).advance(source.held)
    assert sum(deaths.values()) > 0
    expected = batch(spark, source.rows)
    assert results(delta) == expected
    assert {row["sent"] for row in topic.rows()} == {row["sent"] for row in expected}
    assert len(topic.kept) == len(expected)


def test_of_two_streams_at_once_one_loses_the_race_and_nothing_is_counted_twice(
    spark: SparkSession, delta: Lake
) -> None:
    source = Source(delta.table("requests"))
    source.load(some_rows(seed=3, count=20))
    follower(spark, source, delta, None).advance(source.held)
    source.load(some_rows(seed=4, count=20))
    slow = follower(spark, source, delta, None)
    commit = slow._results.commit

    def overtaken(step: Any) -> None:
        follower(spark, source, delta, None).advance(source.held)
        commit(step)

    slow._results.commit = overtaken  # type: ignore[method-assign]
    with pytest.raises(CommitConflict):
        slow.advance(source.held)
    assert results(delta) == batch(spark, source.rows)


def test_a_changed_definition_recomputes_all_windows_and_removes_the_old_keys(spark: SparkSession, delta: Lake) -> None:
    source, topic = Source(delta.table("requests")), Topic()
    source.load(some_rows(seed=5, count=30))
    follower(spark, source, delta, topic).advance(source.held)
    other = Aggregate(Windows("10 minutes"), [parse_measure("n", "count")], ["client"])
    changed = stream(other, key=["client"], text="v2")
    follower(spark, source, delta, topic, changed).advance(source.held)
    expected = batch(spark, source.rows, other)
    found = results(delta, ("client",))
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert len(topic.kept) == len(expected)
    assert all("client" in row and "sent" not in row for row in topic.rows())


def test_rows_that_were_replaced_in_the_source_change_their_windows(spark: SparkSession, delta: Lake) -> None:
    source, topic = Source(delta.table("requests")), Topic()
    source.load(some_rows(seed=6, count=30))
    follower(spark, source, delta, topic).advance(source.held)
    source.rows = [row for row in source.rows if row["client"] != "a"]
    files = source.write(source.rows, "again")
    source.table.commit(
        Change("backfill", remove=source.table.files(), add=files, transactions=[AppTransaction(REPLACED, 0, 1)])
    )
    follower(spark, source, delta, topic).advance(source.held)
    assert results(delta) == batch(spark, source.rows)
    assert len(topic.kept) == len(results(delta))


def test_late_rows_change_their_window_or_are_left_out_as_the_job_says(spark: SparkSession, delta: Lake) -> None:
    source = Source(delta.table("requests"))
    rows = some_rows(seed=7, count=20)
    source.load([{**row, "late": n % 4 == 0} for n, row in enumerate(rows)])
    follower(spark, source, delta, None, stream(late=LateRowPolicy.DROP)).advance(source.held)
    assert results(delta) == batch(spark, [row for row in source.rows if not row["late"]])


def test_overlapping_windows_are_kept_up_to_date_too(spark: SparkSession, delta: Lake) -> None:
    sliding = Aggregate(Windows("30 minutes", "10 minutes"), TRAFFIC.measures, TRAFFIC.dimensions, TRAFFIC.columns)
    what = Stream("traffic", sliding.windows, sliding, ["kind"], "sliding")
    source = Source(delta.table("requests"))
    for seed in (8, 9):
        source.load(some_rows(seed, count=20))
        follower(spark, source, delta, None, what).advance(source.held)
    assert results(delta) == batch(spark, source.rows, sliding)


def per_client(rows: DataFrame) -> DataFrame:
    """A person's own function."""
    from pyspark.sql import functions as F

    start = F.window("event_time", "10 minutes").getField("start").alias("window_start")
    return rows.groupBy(start, "client").agg(F.sum("bytes").alias("sent"))


def test_a_user_defined_function_is_kept_up_to_date_like_a_declared_aggregate(spark: SparkSession, delta: Lake) -> None:
    reference = f"{__name__}:per_client"
    own = function_of(reference, {reference})
    source = Source(delta.table("requests"))
    for seed in (10, 11):
        source.load(some_rows(seed, count=20))
        follower(spark, source, delta, None, stream(own, key=["client"])).advance(source.held)
    expected = batch(spark, source.rows, own)
    assert sorted(results(delta, ("client",)), key=str) == sorted(expected, key=str)


def test_a_function_that_gives_no_window_is_refused_by_name(spark: SparkSession, delta: Lake) -> None:
    source = Source(delta.table("requests"))
    source.load(some_rows(seed=12, count=5))
    what = stream(lambda rows: rows.select("client"), key=["client"])
    with pytest.raises(InvalidFunction, match="'traffic' gives no column window_start; it has client"):
        follower(spark, source, delta, None, what).advance(source.held)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("nothing", "write module:function"),
        ("no_such_module:f", "No module named"),
        ("json:nope", "has no function nope"),
    ],
)
def test_a_function_that_is_not_there_is_named(reference: str, reason: str) -> None:
    with pytest.raises(InvalidFunction, match=reason):
        function_of(reference, {reference})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no measure"),
        ("median(x)", "write one of count, sum"),
        ("sum", "sum of what"),
        ("sum()", "sum of what"),
        ("count(x)", "count if x is not null"),
        ("quantile(x)", "needs a column and a number"),
        ("quantile(x, 2)", "between 0 and 1"),
        ("quantile(x, y)", "'y' is no number"),
        ("top(x, 0)", "from 1 to"),
        ("top(x, 1.5)", "from 1 to"),
        ("count if ", "if what"),
    ],
)
def test_an_invalid_measure_is_reported(text: str, reason: str) -> None:
    with pytest.raises(InvalidMeasure, match=reason):
        parse_measure("m", text)


def test_an_if_inside_brackets_belongs_to_the_expression() -> None:
    wanted = parse_measure("m", "sum(case when a if b end) if c > 0")
    assert (wanted.about, wanted.condition) == ("case when a if b end", "c > 0")


def test_time_intervals_are_merged_to_a_bounded_number() -> None:
    minute = timedelta(minutes=1)
    found = join_periods([(START + n * 3 * minute, START + n * 3 * minute + minute) for n in range(10)], at_most=2)
    assert len(found) == 2
    assert (found[0][0], found[-1][1]) == (START, START + 28 * minute)


@pytest.mark.parametrize("text", ["", "5", "minutes", "0 minutes", "5 moons", "-1 day"])
def test_an_invalid_duration_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        interval_of(text)
