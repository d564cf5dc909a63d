"""Any records, cut into any commits, any step of which may be the last: every version of the table is the topic's."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.changes.apply import merge_in_turn
from ottla.pipeline.changes.bucket_files import BucketWork, MergeSpec
from ottla.pipeline.changes.rule import ChangeRule
from ottla.pipeline.lake.lake_table import Change, LakeTable
from ottla.pipeline.lake.rewrite import FileSwap, compact
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import LoadLimits, Tables
from tests.pipeline.changes.keyed_topic import (
    TOPIC,
    VERSION,
    ChangeBench,
    KeyedTopic,
    Record,
    by_duckdb,
    gone,
    latest,
    row,
    versions,
    versions_of,
)
from tests.support.examples import examples


class Crash(Exception):
    """The process died here."""


class Stops:
    """Counts the steps of a load, and ends it at one of them."""

    def __init__(self, dies_at: int | None) -> None:
        self.dies_at, self.steps = dies_at, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise Crash

    def merge(self, job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
        self.step()
        swaps = merge_in_turn(job, works)
        self.step()
        return swaps


class StoppingTable:
    """A table whose commits are steps."""

    def __init__(self, table: LakeTable, stops: Stops) -> None:
        self._table, self._stops = table, stops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, change: Change) -> None:
        self._stops.step()
        self._table.commit(change)
        self._stops.step()  # dead after the commit, before anybody heard of it


STEPS = 8
"""A fence of the load before, the merge, and the commits of the quarantine and the table: before and after each."""


def load(bench: ChangeBench, most: int, dies_at: int | None) -> None:
    """One commit, or what there is of it when the process dies: by a bench of its own, which has the disk alone."""
    stops = Stops(dies_at)
    bench.merge_runner = stops.merge
    tables: Any = Tables(*(StoppingTable(t, stops) for t in (bench.tables.table, bench.tables.quarantine)))
    try:
        bench.loading(tables).run(bench.topic.bounds(), LoadLimits(most=most))
    except Crash:
        pass
    else:
        assert stops.steps <= STEPS


def check(bench: ChangeBench) -> None:
    """The newest version of the table, by DuckDB and the files alone."""
    if bench.rule.history:
        assert bench.rows(VERSION) == versions(bench.topic, bench.positions())
    else:
        assert bench.rows('key, partition, "offset"') == latest(bench.topic, bench.positions(), set())


def check_every_version(bench: ChangeBench) -> None:
    """All versions of the table that there are, each with the positions that it says."""
    for version in versions_of(bench.table):
        positions = {p: r.end_offset for p, r in version.positions(TOPIC, bench.topic.records).items()}
        if not bench.rule.history:
            found = by_duckdb(version.paths(), 'key, partition, "offset"')
            assert found == latest(bench.topic, positions, set())


keys = st.sampled_from("abcdef")
records = st.one_of(
    st.builds(
        lambda key, n, time: Record(key.encode(), b'{"n": %d}' % n, time), keys, st.integers(0, 9), st.integers(0, 50)
    ),
    st.builds(lambda key, n: row(key, n=n), keys, st.integers(0, 9)),
    st.builds(gone, keys),
)
produce = st.tuples(st.integers(0, 1), st.lists(records, min_size=1, max_size=8))
loads = st.tuples(st.integers(1, 10), st.one_of(st.none(), st.integers(1, STEPS)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [ChangeRule(buckets=2), ChangeRule(history=True, buckets=2)], ids=["upsert", "history"]
)
@pytest.mark.parametrize("table_format", list(TableFormat))
@settings(max_examples=examples(6), deadline=None)
@given(st.lists(st.one_of(produce, loads, st.just("compact")), max_size=12))
def test_the_table_is_the_topics_at_every_commit(
    table_format: TableFormat, rule: ChangeRule, schedule: list[Any]
) -> None:
    topic = KeyedTopic({0: [], 1: []})
    with tempfile.TemporaryDirectory() as root:
        bench = ChangeBench(Path(root) / "lake", topic, rule, table_format=table_format)
        for what in schedule:
            if what == "compact":
                compact(bench.table, "c" * 12)
            elif isinstance(what[1], list):
                partition, some = what
                topic.records[partition] += [of_partition(record, partition) for record in some]
            else:
                load(bench, *what)
            check(bench)
        load(bench, 1000, None)
        check(bench)
        assert bench.positions() == {p: len(found) for p, found in topic.records.items() if found}
        check_every_version(bench)


def of_partition(record: Record, partition: int) -> Record:
    """The record with a key that belongs to the partition."""
    assert record.key is not None
    return Record(b"%d-%s" % (partition, record.key), record.value, record.time_s)


@pytest.mark.parametrize(
    "rule", [ChangeRule(buckets=2), ChangeRule(history=True, buckets=2)], ids=["upsert", "history"]
)
@pytest.mark.parametrize("table_format", list(TableFormat))
def test_a_load_that_stops_at_any_step_is_completed_by_the_next(
    tmp_path: Path, table_format: TableFormat, rule: ChangeRule
) -> None:
    for dies_at in range(1, STEPS + 1):
        topic = KeyedTopic({0: [row("a", n=1), row("b", n=1)]})
        bench = ChangeBench(tmp_path / f"lake{dies_at}", topic, rule, table_format=table_format)
        load(bench, 10, None)
        topic.records[0] += [row("a", n=2), gone("b"), row("c", n=3)]
        load(bench, 10, dies_at)
        check(bench)
        load(bench, 10, None)
        check(bench)
        assert bench.positions() == {0: 5}
