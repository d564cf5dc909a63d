"""The Delta table: what a commit promises, read back by DuckDB from the files alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import pytest
from tests.pipeline.memory_log import MemoryTopic

from ottla.pipeline.balance import tally
from ottla.pipeline.lake import DeltaLake, LakeError, Load, LostRaceError, NotContiguousError, OffsetRange, TableSpec
from ottla.pipeline.landing import PARTITION_BY, QUARANTINE, REQUESTS, LandingJob, land_piece
from ottla.pipeline.load import LoadResult, Piece, load

GOOD = b'203.0.113.9 - - [17/May/2015:%02d:05:03 +0000] "GET /a HTTP/1.1" 200 5'
BAD = b"not a line"


class Lake:
    """Both tables of a topic in memory, loaded in this process."""

    def __init__(self, root: Path, topic: MemoryTopic, topic_id: str = "id-1") -> None:
        self.topic = topic
        self.table = DeltaLake(root / "requests", TableSpec("web", topic_id, REQUESTS, PARTITION_BY))
        self.quarantine = DeltaLake(root / "quarantine", TableSpec("web", topic_id, QUARANTINE))
        self.job = LandingJob("web", topic, self.table.path, self.quarantine.path)
        self.table.create()
        self.quarantine.create()

    def load(self) -> LoadResult:
        return load(
            self.topic.spans(),
            table=self.table,
            quarantine=self.quarantine,
            land=lambda pieces: [land_piece(self.job, piece) for piece in pieces],
        )


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic({0: [GOOD % hour for hour in range(20)], 1: [GOOD % 3, BAD, None, GOOD % 4, b""], 2: []})


@pytest.fixture
def lake(tmp_path: Path, topic: MemoryTopic) -> Lake:
    return Lake(tmp_path / "a lake", topic)


def by_duckdb(table: DeltaLake, what: str) -> list[tuple[object, ...]]:
    return duckdb.execute(f"select {what} from read_parquet($1, hive_partitioning = true)", [table.files()]).fetchall()


def test_every_offset_is_in_one_of_the_tables_once(lake: Lake) -> None:
    lake.load()
    rows = by_duckdb(lake.table, 'partition, "offset"') + by_duckdb(lake.quarantine, 'partition, "offset"')
    assert Counter(rows) == dict.fromkeys([(0, o) for o in range(20)] + [(1, o) for o in range(5)], 1)


def test_rows_are_filed_under_their_events_day_and_hour(lake: Lake) -> None:
    lake.load()
    days = by_duckdb(
        lake.table, "distinct event_date = event_time::date and event_hour = hour(event_time at time zone 'UTC')"
    )
    assert days == [(True,)]
    assert any("event_date=2015-05-17/event_hour=3/" in file for file in lake.table.files())


def test_what_does_not_parse_is_kept_whole_with_its_place_and_reason(lake: Lake) -> None:
    lake.load()
    kept = by_duckdb(lake.quarantine, 'topic, partition, "offset", reason, raw')
    assert sorted(kept, key=str) == [
        ("web", 1, 1, "not a line of a common or combined access log", BAD),
        ("web", 1, 2, "the record has no value", None),
        ("web", 1, 4, "the line is empty", b""),
    ]


def test_loading_again_loads_only_what_is_new(lake: Lake, topic: MemoryTopic) -> None:
    assert lake.load().rows == 22
    version = lake.table.version()
    assert lake.load().did_nothing
    assert lake.table.version() == version
    topic.values[2].append(GOOD % 9)
    again = lake.load()
    assert (again.rows, again.ranges) == (1, [OffsetRange(2, 0, 1)])
    assert lake.table.positions(range(4)) == {0: 20, 1: 5, 2: 1}


def test_of_two_loads_that_began_at_one_position_one_commits(lake: Lake) -> None:
    first, second = (land_piece(lake.job, Piece(OffsetRange(0, 0, 20), 0)) for _ in range(2))
    lake.table.commit(Load([first.offsets], first.rows))
    with pytest.raises(NotContiguousError):
        lake.table.commit(Load([second.offsets], second.rows))
    assert by_duckdb(lake.table, "count(*)") == [(20,)]


def test_a_commit_is_refused_when_another_one_came_after_the_check(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the commit another process may be quicker: then Delta itself must refuse."""
    first, second = (land_piece(lake.job, Piece(OffsetRange(0, 0, 20), 0)) for _ in range(2))
    before = lake.table._open()
    lake.table.commit(Load([first.offsets], first.rows))
    monkeypatch.setattr(lake.table, "_open", lambda: before)
    with pytest.raises(LostRaceError):
        lake.table.commit(Load([second.offsets], second.rows))
    monkeypatch.undo()
    assert by_duckdb(lake.table, "count(*)") == [(20,)]


def test_landed_files_are_invisible_until_they_are_committed(lake: Lake) -> None:
    land_piece(lake.job, Piece(OffsetRange(0, 0, 20), 0))
    assert lake.table.files() == []


def test_a_topic_made_anew_is_not_loaded_on_top_of_the_old_one(tmp_path: Path, lake: Lake, topic: MemoryTopic) -> None:
    lake.load()
    with pytest.raises(LakeError, match="made anew"):
        Lake(tmp_path / "a lake", topic, topic_id="id-2")


def test_an_empty_log_makes_no_commit(tmp_path: Path) -> None:
    lake = Lake(tmp_path, MemoryTopic({0: []}))
    assert lake.load().did_nothing
    assert lake.table.version() == 0


def test_counts_for_the_balance_come_from_the_files(lake: Lake) -> None:
    lake.load()
    counted = tally(lake.table.files(), {0: OffsetRange(0, 5, 20), 1: OffsetRange(1, 0, 5)})
    assert {p: (c.rows, c.distinct) for p, c in counted.items()} == {0: (15, 15), 1: (2, 2)}
