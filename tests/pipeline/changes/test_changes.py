"""Loads that change rows, into real tables of both formats: the table is the compacted topic, or its history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ottla.pipeline.changes.apply import merge_in_turn
from ottla.pipeline.changes.bucket_files import BucketWork, KeyInTwoPartitions, MergeSpec
from ottla.pipeline.changes.rule import ChangeRule, Envelope
from ottla.pipeline.lake.file_writer import TableWriter
from ottla.pipeline.lake.lake_table import Change, TableMismatch
from ottla.pipeline.lake.rewrite import FileSwap, compact, read, target_of
from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.changes.keyed_topic import VERSION, ChangeBench, KeyedTopic, Record, gone, latest, row, versions
from tests.support.lakes import directory_of

UPSERT, HISTORY = ChangeRule(buckets=2), ChangeRule(history=True, buckets=2)
BenchMaker = Callable[..., ChangeBench]
KEY_TEXT = "decode(key)"


@pytest.fixture(params=list(TableFormat))
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> BenchMaker:
    def make(topic: KeyedTopic, rule: ChangeRule = UPSERT) -> ChangeBench:
        return ChangeBench(tmp_path / "lake", topic, rule, table_format=request.param)

    return make


def test_the_last_value_of_each_key_is_its_row(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1), row("b", n=2), row("a", n=3)], 1: [row("c", n=4)]})
    bench = make_bench(topic)
    bench.load()
    assert bench.rows(f'{KEY_TEXT}, n, "offset"') == [("a", 3, 2), ("b", 2, 1), ("c", 4, 0)]
    topic.records[0] += [row("b", n=5), row("d", n=6)]
    bench.load()
    assert bench.rows(f"{KEY_TEXT}, n") == [("a", 3), ("b", 5), ("c", 4), ("d", 6)]
    assert bench.positions() == {0: 5, 1: 1}


def test_a_tombstone_deletes_its_key(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1), row("b", n=2), gone("a"), gone("x")]})
    bench = make_bench(topic)
    bench.load()
    assert bench.rows(KEY_TEXT) == ["b"]
    topic.records[0] += [gone("b"), row("a", n=3)]
    bench.load()
    assert bench.rows(f"{KEY_TEXT}, n") == [("a", 3)]
    topic.records[0] += [gone("a")]
    bench.load()
    assert bench.rows(KEY_TEXT) == []
    assert bench.positions() == {0: 7}


def test_files_whose_keys_do_not_change_stay(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1), row("d", n=2)]})
    bench = make_bench(topic)
    bench.load()
    before = set(bench.table.paths())
    topic.records[0] += [row("e", n=3)]
    bench.load()
    assert before < set(bench.table.paths())


def test_change_files_are_removed(make_bench: BenchMaker) -> None:
    bench = make_bench(KeyedTopic({0: [row("a", n=1), gone("a"), row("b", n=1)]}))
    bench.load()
    assert {str(path) for path in directory_of(bench.table).rglob("part-*.parquet")} == set(bench.table.paths())


def test_new_columns_and_wider_types_reach_rows_that_do_not_change(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1, old="x"), row("b", n=2, old="y")]})
    bench = make_bench(topic)
    bench.load()
    topic.records[0] += [row("a", n=1.5, new="z")]
    bench.load()
    assert bench.rows(f"{KEY_TEXT}, n, old, new") == [("a", 1.5, None, "z"), ("b", 2.0, "y", None)]


def test_a_record_that_is_quarantined_leaves_its_keys_row(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1), Record(b"a", b"no json"), Record(None, b'{"n": 3}'), Record(None, None)]})
    bench = make_bench(topic)
    assert bench.load().quarantined == 3
    assert bench.rows(f"{KEY_TEXT}, n") == [("a", 1)]


def test_fields_are_the_key(make_bench: BenchMaker) -> None:
    values = [b'{"id": 1, "at": "x", "n": 1}', b'{"id": 1, "at": "y", "n": 2}', b'{"id": 1, "at": "x", "n": 3}']
    refused = [b'{"at": "x"}', b'{"id": 1.5, "at": "x"}', b'{"id": null, "at": "x"}', None, b'{"id": [1], "at": "x"}']
    topic = KeyedTopic({0: [Record(None, value) for value in values + refused]})
    bench = make_bench(topic, ChangeRule(key_fields=("id", "at"), buckets=2))
    assert bench.load().quarantined == len(refused)
    assert bench.rows('id, "at", n') == [(1, "x", 3), (1, "y", 2)]


def test_parts_of_a_key_do_not_run_into_each_other(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [Record(None, b'{"a": "x", "b": "yz"}'), Record(None, b'{"a": "xy", "b": "z"}')]})
    bench = make_bench(topic, ChangeRule(key_fields=("a", "b"), buckets=1))
    bench.load()
    assert bench.rows("a, b") == [("x", "yz"), ("xy", "z")]


def test_debezium_envelopes_are_understood(make_bench: BenchMaker) -> None:
    values = [
        b'{"before": null, "after": {"id": 1, "n": 1}, "source": {"lsn": 1}, "op": "r"}',
        b'{"before": null, "after": {"id": 2, "n": 1}, "source": {"lsn": null}, "op": "c"}',
        b'{"schema": {}, "payload": {"before": {"id": 1}, "after": {"id": 1, "n": 2.5, "more": "x"}, "op": "u"}}',
        b'{"before": {"id": 2, "n": "another type"}, "after": null, "op": "d"}',
        None,
        b'{"op": "t"}',
        b'{"id": 5}',
    ]
    topic = KeyedTopic({0: [Record(None, value) for value in values]})
    bench = make_bench(topic, ChangeRule(key_fields=("id",), buckets=2, envelope=Envelope.DEBEZIUM))
    assert bench.load().quarantined == 2
    assert bench.rows("id, n, more") == [(1, 2.5, "x")]
    raw = {found["raw"] for found in _quarantined(bench)}
    assert raw == {values[5], values[6]}


def _quarantined(bench: ChangeBench) -> list[dict[str, bytes]]:
    return [found for path in bench.tables.quarantine.paths() for found in pq.read_table(path).to_pylist()]


def test_debezium_deletions_by_the_records_key_need_no_before(make_bench: BenchMaker) -> None:
    topic = KeyedTopic(
        {0: [Record(b'{"id": 1}', b'{"after": {"id": 1}, "op": "c"}'), Record(b'{"id": 1}', b'{"op": "d"}')]}
    )
    bench = make_bench(topic, ChangeRule(envelope=Envelope.DEBEZIUM))
    bench.load(most=1)
    assert bench.rows("id") == [1]
    bench.load()
    assert bench.rows("id") == []


def test_history_keeps_every_version(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1), row("b", n=2), row("a", n=3), gone("a"), row("a", n=4)]})
    bench = make_bench(topic, HISTORY)
    bench.load(most=2)
    assert bench.rows(VERSION) == versions(topic, {0: 2}) == [(0, 0, 0, None, True), (0, 1, 1, None, True)]
    bench.load()
    assert bench.rows(VERSION) == versions(topic, {0: 5})
    assert bench.rows(VERSION, f"{KEY_TEXT} = 'a'") == [(0, 0, 0, 2, False), (0, 2, 2, 3, False), (0, 4, 4, None, True)]
    topic.records[0] += [gone("b"), gone("b")]
    bench.load()
    assert bench.rows(VERSION, f"{KEY_TEXT} = 'b'") == [(0, 1, 1, 5, False)]


def test_a_version_is_never_valid_before_the_one_it_follows(make_bench: BenchMaker) -> None:
    times = [5, 20, 10, 30]
    topic = KeyedTopic({0: [Record(b"a", b"{}", time) for time in times]})
    bench = make_bench(topic, HISTORY)
    for _ in times:
        bench.load(most=1)
    assert bench.rows(VERSION) == versions(topic, {0: 4})
    assert [(since, until) for _, _, since, until, _ in bench.rows(VERSION)] == [
        (5, 20),
        (20, 20),
        (20, 30),
        (30, None),
    ]


def test_what_the_dict_says_is_what_the_table_has(make_bench: BenchMaker) -> None:
    """Or the tests that compare with it would prove nothing."""
    topic = KeyedTopic({0: [row("a", n=1), gone("a"), row("b", n=1)], 1: [row("c", n=1), row("c", n=2)]})
    bench = make_bench(topic)
    bench.load()
    assert bench.rows('key, partition, "offset"') == latest(topic, {0: 3, 1: 2}, set()) == [(b"b", 0, 2), (b"c", 1, 1)]


def test_a_key_in_two_partitions_is_refused(make_bench: BenchMaker) -> None:
    bench = make_bench(KeyedTopic({0: [row("a", n=1)], 1: [row("a", n=2)]}))
    with pytest.raises(
        KeyInTwoPartitions, match=r"key b'a' is in partition 0 at offset 0 and in partition 1 at offset 0"
    ):
        bench.load()
    assert bench.positions() == {}


def test_a_key_that_moved_to_another_partition_is_refused(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1)], 1: []})
    bench = make_bench(topic)
    bench.load()
    topic.records[1].append(gone("a"))
    with pytest.raises(KeyInTwoPartitions, match=r"key b'a' is in partition 0 at offset 0 and in partition 1"):
        bench.load()
    assert bench.rows(KEY_TEXT) == ["a"]


@pytest.mark.parametrize("rule", [UPSERT, HISTORY], ids=["upsert", "history"])
def test_what_another_writer_commits_during_a_merge_is_merged_with(make_bench: BenchMaker, rule: ChangeRule) -> None:
    """The other one compacts the table: its files are not the ones that the merge was planned with."""
    topic = KeyedTopic({0: [row(name, n=1) for name in "abcdefgh"]})
    bench = make_bench(topic, rule)
    bench.load(most=4)
    bench.load()
    topic.records[0] += [row("a", n=2), gone("b")]
    runs: list[int] = []

    def interrupted(job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
        swaps = merge_in_turn(job, works)
        runs.append(len(works))
        if len(runs) == 1:
            assert compact(bench.table, "c" * 12).files_before > 0
        return swaps

    bench.merge_runner = interrupted
    bench.load()
    assert len(runs) == 2
    current = "true" if rule is UPSERT else "is_current = 'true'"
    assert bench.rows(f"{KEY_TEXT}, n", current) == [("a", 2), *((name, 1) for name in "cdefgh")]
    assert {str(path) for path in directory_of(bench.table).rglob("part-*.parquet")} >= set(bench.table.paths())


def test_a_row_that_another_writer_deletes_stays_deleted(tmp_path: Path) -> None:
    topic = KeyedTopic({0: [row(name, n=1) for name in "abcd"]})
    bench = ChangeBench(tmp_path / "lake", topic, ChangeRule(buckets=1))
    bench.load()
    topic.records[0] += [row("a", n=2)]

    def interrupted(job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
        swaps = merge_in_turn(job, works)
        if bench.table.version() == before:
            DeltaTable(str(directory_of(bench.table))).delete('"offset" = 2')
        return swaps

    before = bench.table.version()
    bench.merge_runner = interrupted
    bench.load()
    assert bench.rows(f"{KEY_TEXT}, n") == [("a", 2), ("b", 1), ("d", 1)]


def test_rows_that_another_writer_adds_during_a_merge_are_replaced_too(make_bench: BenchMaker) -> None:
    topic = KeyedTopic({0: [row("a", n=1)]})
    bench = make_bench(topic)
    bench.load()
    topic.records[0] += [row("a", n=2)]
    runs: list[int] = []

    def interrupted(job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
        swaps = merge_in_turn(job, works)
        if not runs:
            writer = TableWriter(target_of(bench.table, job.spec), "d" * 12)
            for rows in read(bench.table, bench.table.files()[0], job.spec):
                writer.add(rows)
            bench.table.commit(Change("another row of the key", add=writer.finish()))
        runs.append(len(works))
        return swaps

    bench.merge_runner = interrupted
    bench.load()
    assert bench.rows(f"{KEY_TEXT}, n") == [("a", 2)]
    assert len(runs) == 2


def test_a_table_keeps_its_rule(tmp_path: Path) -> None:
    topic = KeyedTopic({0: [row("a", n=1)]})
    ChangeBench(tmp_path / "lake", topic, UPSERT).load()
    with pytest.raises(TableMismatch, match="a table stays as it was made"):
        ChangeBench(tmp_path / "lake", topic, ChangeRule(buckets=3))
    with pytest.raises(TableMismatch, match="a table stays as it was made"):
        ChangeBench(tmp_path / "lake", topic, HISTORY)
