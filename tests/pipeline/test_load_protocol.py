"""The commit protocol under every schedule of crashes and of loads that overtake each other, without Spark or a broker.

A model of the tables (rows by file, a position per partition) goes through the real `TopicLoader`. Before and after each of
its outside steps a load may die, or another load may run, wholly or until it dies too. Loads do not agree on what is
wrong with a record, as loads with other settings would not. At every moment each offset below the table's position must
be in the table or in the quarantine, exactly once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.formats.plain import Text
from ottla.pipeline.lake.lake_table import (
    Change,
    CommitConflict,
    LakeTable,
    NotContiguous,
    StagedFile,
    TableSpec,
    check_change,
    held_after,
)
from ottla.pipeline.lake.rewrite import FileSwap
from ottla.pipeline.loading.commit_protocol import LoadLimits, LoadResult, Tables, TopicLoader
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.loading.plan import CannotLoad, plan, split_among_tasks
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec
from ottla.pipeline.offset_range import OffsetRange
from tests.support.examples import examples

Rows = list[tuple[int, int]]
TOPIC = "t"


class Crash(Exception):
    """The process died here."""


@dataclass(frozen=True)
class LoadAttempt:
    """A load: what it finds wrong, after how many steps it dies, and who comes between its steps."""

    wrong_every: int
    dies_after: int | None = None
    between: tuple[tuple[int, LoadAttempt], ...] = ()


class ModelTable:
    """A table as the port documents it: a commit happens whole or not at all, on what it was checked against."""

    def __init__(self, lake: ModelLake) -> None:
        self.lake = lake
        self.files: list[StagedFile] = []
        self.held: dict[int, OffsetRange] = {}
        self.versions: dict[str, int] = {}

    def positions(self, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        return {p: self.held[p] for p in partitions if p in self.held}

    def transaction_version(self, name: str) -> int:
        return self.versions.get(name, 0)

    def spec(self) -> TableSpec:
        return TableSpec(pa.schema([]))

    def add_columns(self, schema: pa.Schema) -> None:
        """The model's rows have none."""

    def commit(self, change: Change) -> None:
        self.lake.step()
        check_change(change, self.held, self.versions, {f.path for f in self.files})
        gone = {f.path for f in change.remove}
        self.files = [f for f in self.files if f.path not in gone] + list(change.add)
        self.held |= held_after(change, self.held)
        self.versions |= {t.name: t.new for t in change.transactions}
        self.lake.step()  # dead after the commit, before anybody heard of it

    def rows(self) -> Rows:
        return [row for f in self.files for row in self.lake.contents[f.path]]


@dataclass
class ModelLake:
    """Logs, both tables, and the loads at work."""

    log: dict[int, int] = field(default_factory=dict)
    contents: dict[str, Rows] = field(default_factory=dict)
    attempts: list[list[Any]] = field(default_factory=list)
    table: ModelTable = field(init=False)
    quarantine: ModelTable = field(init=False)

    def __post_init__(self) -> None:
        self.table, self.quarantine = ModelTable(self), ModelTable(self)

    def step(self) -> None:
        self.check()
        if not self.attempts:
            return
        attempt, done = self.attempts[-1]
        self.attempts[-1][1] = done + 1
        for at, other in attempt.between:
            if at == done:
                self.run(other)
        if attempt.dies_after is not None and done >= attempt.dies_after:
            raise Crash

    def run(self, attempt: LoadAttempt) -> LoadResult | None:
        self.attempts.append([attempt, 0])
        try:
            return self.loading(attempt).run(self.bounds())
        except (Crash, NotContiguous, CommitConflict):
            return None
        finally:
            self.attempts.pop()
            self.check()

    def loading(self, attempt: LoadAttempt) -> TopicLoader:
        def task_runner(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
            return [self.write_ranges(attempt, ranges) for ranges in parts]

        tables = Tables(cast("LakeTable", self.table), cast("LakeTable", self.quarantine))
        nowhere: Any = None
        job = WriteSpec(TOPIC, nowhere, RowMapping(Text()), nowhere, nowhere, pa.schema([]))
        return TopicLoader(tables, job, task_runner, lambda ranges: [[r] for r in ranges], self.remove_rows)

    def write_ranges(self, attempt: LoadAttempt, ranges: Sequence[OffsetRange]) -> StagedFiles:
        self.step()
        rows = [(r.partition, o) for r in ranges for o in range(r.first_offset, r.end_offset)]
        good = self.file([row for row in rows if row[1] % attempt.wrong_every])
        bad = self.file([row for row in rows if row[1] % attempt.wrong_every == 0])
        return StagedFiles(ranges, good, bad, pa.schema([]))

    def remove_rows(self, table: LakeTable, topic: str, ranges: Iterable[OffsetRange], stem: str) -> FileSwap:
        model, wanted = cast("ModelTable", table), list(ranges)
        remove, add = [], []
        for f in model.files:
            rows = self.contents[f.path]
            kept = [
                (p, o)
                for p, o in rows
                if not any(r.partition == p and r.first_offset <= o < r.end_offset for r in wanted)
            ]
            if len(kept) < len(rows):
                remove.append(f)
                add += self.file(kept)
        return FileSwap(remove, add)

    def file(self, rows: Rows) -> list[StagedFile]:
        if not rows:
            return []
        name = f"file {len(self.contents)}"
        self.contents[name] = rows
        return [StagedFile(name, 1, len(rows), {}, 0)]

    def bounds(self) -> Mapping[int, OffsetBounds]:
        return {partition: OffsetBounds(0, end) for partition, end in self.log.items()}

    def check(self) -> None:
        """Each offset below the table's position is in one of the tables, once; none beyond it is in the table."""
        rows, quarantined_files = self.table.rows(), self.quarantine.rows()
        below = [(p, o) for p, o in quarantined_files if p in self.table.held and o < self.table.held[p].end_offset]
        wanted = {(p, o): 1 for p, r in self.table.held.items() for o in range(r.end_offset)}
        assert Counter(rows + below) == wanted
        assert max(Counter(quarantined_files).values(), default=1) == 1


crashes = st.one_of(st.none(), st.integers(0, 8))
wrong = st.integers(2, 4)
alone = st.builds(LoadAttempt, wrong, crashes)
crowded = st.builds(LoadAttempt, wrong, crashes, st.lists(st.tuples(st.integers(0, 6), alone), max_size=2).map(tuple))
attempts = st.builds(
    LoadAttempt, wrong, crashes, st.lists(st.tuples(st.integers(0, 6), crowded), max_size=2).map(tuple)
)
produce = st.tuples(st.integers(0, 1), st.integers(1, 6))


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.one_of(produce, attempts), max_size=12))
def test_no_schedule_of_crashes_and_races_makes_a_gap_or_a_duplicate(
    schedule: list[tuple[int, int] | LoadAttempt],
) -> None:
    lake = ModelLake()
    for attempt in schedule:
        if isinstance(attempt, LoadAttempt):
            lake.run(attempt)
        else:
            partition, count = attempt
            lake.log[partition] = lake.log.get(partition, 0) + count
        lake.check()
    lake.run(LoadAttempt(3))
    ends = {p: r.end_offset for p, r in lake.table.held.items()}
    assert ends == {p: r.end_offset for p, r in lake.quarantine.held.items()} == lake.log
    assert len(lake.table.rows()) + len(lake.quarantine.rows()) == sum(lake.log.values())


def test_a_second_load_finds_nothing_to_do() -> None:
    lake = ModelLake({0: 10, 1: 3})
    assert lake.run(LoadAttempt(3)) is not None
    result = lake.run(LoadAttempt(3))
    assert result is not None
    assert result.did_nothing


def test_rows_quarantined_by_a_crashed_load_are_replaced_by_the_next_loads_rows() -> None:
    lake = ModelLake({0: 10})
    lake.run(LoadAttempt(2, dies_after=3))  # after the quarantine's commit, before the table's
    assert sorted(lake.quarantine.rows()) == [(0, o) for o in range(0, 10, 2)]
    lake.run(LoadAttempt(5))
    assert sorted(lake.quarantine.rows()) == [(0, 0), (0, 5)]
    assert len(lake.table.rows()) == 8


def test_a_load_that_was_overtaken_between_its_commits_does_not_commit_what_the_other_replaced() -> None:
    """It is slow, not dead: the fence holds it off, and then it finds everything done."""
    lake = ModelLake({0: 10})
    lake.run(LoadAttempt(2, between=((3, LoadAttempt(5)),)))
    assert sorted(lake.quarantine.rows()) == [(0, 0), (0, 5)]
    assert len(lake.table.rows()) == 8


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_task_whose_result_is_missing_stops_the_load(lost: int) -> None:
    lake = ModelLake({0: 9, 1: 9, 2: 9})
    loading = lake.loading(LoadAttempt(3))
    real = loading.task_runner

    def lossy(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
        staged = real(job, parts)
        del staged[lost]
        return staged

    loading.task_runner = lossy
    with pytest.raises(CannotLoad):
        loading.run(lake.bounds())
    assert lake.table.files == lake.quarantine.files == []


def test_a_load_may_end_before_the_log_does_and_go_on_from_there() -> None:
    lake = ModelLake({0: 10})
    wanted = LoadLimits(most=4)
    ends = []
    while not lake.loading(LoadAttempt(3)).run(lake.bounds(), wanted).did_nothing:
        lake.check()
        ends.append(lake.table.held[0].end_offset)
    assert ends == [4, 8, 10]


def test_offsets_deleted_from_the_log_before_they_were_loaded_are_an_error_and_no_gap() -> None:
    with pytest.raises(CannotLoad, match="offsets 5 to 7 were deleted"):
        plan(TOPIC, {0: OffsetBounds(8, 20)}, {0: OffsetRange(0, 0, 5)})


def test_deleted_offsets_are_skipped_and_reported_with_on_loss_skip() -> None:
    found = plan(TOPIC, {0: OffsetBounds(8, 20)}, {0: OffsetRange(0, 0, 5)}, on_loss=OnLoss.SKIP)
    assert found.ranges == [OffsetRange(0, 5, 20)]
    assert found.lost == [OffsetRange(0, 5, 8)]
    assert found.readable == [OffsetRange(0, 8, 20)]


def test_a_gap_larger_than_a_commit_is_skipped_in_one_commit() -> None:
    found = plan(TOPIC, {0: OffsetBounds(80, 200)}, {0: OffsetRange(0, 0, 5)}, most=10, on_loss=OnLoss.SKIP)
    assert (found.ranges, found.lost) == ([OffsetRange(0, 5, 90)], [OffsetRange(0, 5, 80)])
    assert found.readable == [OffsetRange(0, 80, 90)]


def test_a_partition_of_which_all_was_deleted_is_passed_without_reading() -> None:
    found = plan(TOPIC, {0: OffsetBounds(20, 20)}, {0: OffsetRange(0, 0, 5)}, on_loss=OnLoss.SKIP)
    assert found.ranges == [OffsetRange(0, 5, 20)]
    assert found.readable == []


def test_a_log_shorter_than_the_table_is_an_error() -> None:
    with pytest.raises(CannotLoad, match="loaded up to 30, and the log ends at 20"):
        plan(TOPIC, {0: OffsetBounds(0, 20)}, {0: OffsetRange(0, 0, 30)})


def test_a_first_load_begins_at_the_log_start_or_at_a_given_offset() -> None:
    assert plan(TOPIC, {0: OffsetBounds(8, 20)}, {}).ranges == [OffsetRange(0, 8, 20)]
    assert plan(TOPIC, {0: OffsetBounds(8, 20)}, {}, first={0: 15}, end={0: 18}).ranges == [OffsetRange(0, 15, 18)]


ranges = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 10**7), st.integers(1, 10**7))).map(
    lambda found: [OffsetRange(p, first, first + count) for p, (first, count) in sorted(found.items())]
)


@given(ranges, st.integers(1, 16))
def test_parts_make_up_the_ranges_and_are_of_about_one_size(wanted: list[OffsetRange], cores: int) -> None:
    parts = split_among_tasks(wanted, cores)
    pieces: dict[int, list[OffsetRange]] = {}
    for piece in (r for part in parts for r in part):
        pieces.setdefault(piece.partition, []).append(piece)
    for r in wanted:
        own = pieces[r.partition]
        assert (own[0].first_offset, own[-1].end_offset) == (r.first_offset, r.end_offset)
        assert all(a.end_offset == b.first_offset for a, b in itertools.pairwise(own))
    sizes = [sum(r.count for r in part) for part in parts]
    assert max(sizes, default=0) <= 4_000_000
    assert sum(sizes) < 50_000 * cores or len(parts) >= cores


def test_a_small_load_is_one_task_on_any_number_of_cores() -> None:
    assert split_among_tasks([OffsetRange(p, 0, 1000) for p in range(4)], 8) == [
        [OffsetRange(p, 0, 1000) for p in range(4)]
    ]
