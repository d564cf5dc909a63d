"""The audit of content: planted faults in tables, in the log and at the producer, each named by its offset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ottla.client.audit import ProducedCount, ProducedCounter
from ottla.client.content import record_checksum
from ottla.pipeline.audit.format import as_json, verdict
from ottla.pipeline.audit.model import ContentCounts, TopicAudit
from ottla.pipeline.audit.run import AuditInputs, audit
from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.formats.plain import Raw
from ottla.pipeline.lake import recorded_content
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import LoadLimits
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.offset_range import OffsetRange
from tests.pipeline.memory_log import Bench, MemoryTopic, Values

OBJECTS = RowMapping(JsonObjects())
WHOLE = RowMapping(Raw(), keep=("key", "headers"))


@pytest.fixture(params=list(TableFormat))
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    found: TableFormat = request.param
    return found


def values(count: int) -> Values:
    """Orders as JSON, and one record that is none."""
    rows: Values = [json.dumps({"id": n, "name": f"n{n % 3}", "in": {"a": [n, n / 2]}}).encode() for n in range(count)]
    rows[count // 2] = b"no order"
    return rows


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic({0: values(40), 1: values(25)})


@pytest.fixture
def bench(tmp_path: Path, topic: MemoryTopic, table_format: TableFormat) -> Bench:
    return Bench(tmp_path, topic, OBJECTS, table_format=table_format)


def audited(bench: Bench, reports: Sequence[ProducedCount] = (), mapping: RowMapping | None = None) -> TopicAudit:
    inputs = AuditInputs(
        "web", bench.topic.bounds(), False, bench.topic, bench.table, bench.quarantine, mapping=mapping or bench.mapping
    )
    return audit(inputs, reports, now_ms=1 << 40)


def faults(topic_audit: TopicAudit) -> list[tuple[str, int, int, int]]:
    return [(f.kind.value, f.partition, f.first_offset, f.end_offset) for f in topic_audit.faults]


def alter(table: LakeTable, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change rows in the table's files, as no program of ours would. `change` changes a row in place."""
    for path in table.paths():
        rows = pq.ParquetFile(path).read()
        found = rows.to_pylist()
        for row in found:
            change(row)
        pq.write_table(pa.Table.from_pylist(found, schema=rows.schema), path)


def at(partition: int, offset: int, **new: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.update(new) if (row["partition"], row["offset"]) == (partition, offset) else None


def test_the_content_of_a_table_that_was_loaded_in_pieces_is_that_of_the_log(bench: Bench) -> None:
    for end in (3, 11, 25, 40):
        bench.load(end={0: end, 1: end})
    found = audited(bench)
    assert not found.faults
    assert found.content == ContentCounts(rows=65)
    assert "content: of 65 rows compared" in verdict(found)
    assert as_json(found)["content"]["rows"] == 65


def test_a_changed_number_is_named_by_its_offset(bench: Bench) -> None:
    bench.load()
    alter(bench.table, at(0, 7, id=70))
    assert faults(audited(bench)) == [("changed", 0, 7, 8)]


def test_changes_of_several_rows_are_all_named(bench: Bench) -> None:
    bench.load()
    alter(bench.table, at(0, 7, id=70))
    alter(bench.table, at(0, 8, name="n"))
    alter(bench.table, at(1, 2, **{"in": {"a": [2.0, 1.5]}}))
    alter(bench.quarantine, at(1, 12, raw=b"an order"))
    assert faults(audited(bench)) == [("changed", 0, 7, 9), ("changed", 1, 2, 3), ("changed", 1, 12, 13)]


def test_a_flipped_bit_in_the_kept_value_key_or_header_is_named(tmp_path: Path, topic: MemoryTopic) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"value": bytes([values(40)[5][0] ^ 1]) + values(40)[5][1:]},  # type: ignore[index]
        {"key": b"1"},
        {"headers": [{"key": "h", "value": b"4"}]},
        {"headers": None},
        {"record_time": pa.scalar(5_000_001, pa.timestamp("us", tz="UTC")).as_py()},
    )
    for n, change in enumerate(changes):
        bench = Bench(tmp_path / str(n), topic, WHOLE)
        bench.load()
        assert not audited(bench).faults
        alter(bench.table, at(0, 5, **change))
        assert faults(audited(bench)) == [("changed", 0, 5, 6)]


def test_two_rows_that_changed_places_are_both_named(bench: Bench) -> None:
    bench.load()
    alter(bench.table, at(0, 3, id=4, name="n1", **{"in": {"a": [4.0, 2.0]}}))
    alter(bench.table, at(0, 4, id=3, name="n0", **{"in": {"a": [3.0, 1.5]}}))
    assert faults(audited(bench)) == [("changed", 0, 3, 5)]


def test_a_changed_row_is_named_although_the_log_has_its_record_no_more(bench: Bench, topic: MemoryTopic) -> None:
    bench.load(end={0: 20, 1: 20})
    bench.load()
    topic.starts = {0: 40, 1: 25}
    assert audited(bench).content == ContentCounts(rows=65)
    alter(bench.table, at(0, 7, id=70))
    alter(bench.quarantine, at(1, 12, raw=b"an order"))
    assert faults(audited(bench)) == [("not_as_loaded", 0, 7, 8), ("not_as_loaded", 1, 12, 13)]


def test_several_changes_without_a_log_are_named_by_their_range(bench: Bench, topic: MemoryTopic) -> None:
    bench.load()
    topic.starts = {0: 40, 1: 25}
    for offset in (7, 9):
        alter(bench.table, at(0, offset, id=70))
    assert faults(audited(bench)) == [("not_as_loaded", 0, 0, 40)]


def test_a_load_that_read_another_topic_is_named(tmp_path: Path, topic: MemoryTopic, table_format: TableFormat) -> None:
    other = MemoryTopic({0: [*values(40)[:5], *reversed(values(40)[5:])], 1: values(25)})
    bench = Bench(tmp_path, other, OBJECTS, table_format=table_format)
    bench.load()
    bench.topic = topic
    found = audited(bench)
    assert {fault.kind.value for fault in found.faults} == {"changed"}
    named = {o for f in found.faults for o in range(f.first_offset, f.end_offset)}
    assert named == {o for o in range(5, 40) if values(40)[o] != other.values[0][o]}


def test_a_key_of_the_log_that_changed_after_the_load_is_named_although_the_table_keeps_none(
    bench: Bench, topic: MemoryTopic
) -> None:
    bench.load()
    topic.times_us[9] = 9_000_000
    assert not audited(bench).faults
    read = topic.read

    def other_key(offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        for batch in read(offsets):
            here = pc.and_(pc.equal(batch["partition"], 0), pc.equal(batch["offset"], 9))
            yield batch.set_column(3, "key", pc.if_else(here, pa.scalar(b"another"), batch["key"]))

    topic.read = other_key  # type: ignore[method-assign]
    assert faults(audited(bench)) == [("log_changed", 0, 9, 10)]


def test_rows_that_the_job_file_makes_differently_today_are_no_fault(bench: Bench) -> None:
    bench.load()
    again = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="id", form="timestamp_ms"))
    found = audited(bench, mapping=again)
    assert not found.faults
    assert found.content == ContentCounts(rows=65, remade=61)
    assert any("the job file makes others today" in line for line in verdict(found))


def test_compaction_promotion_and_new_columns_change_no_content(bench: Bench, topic: MemoryTopic) -> None:
    bench.load(end={0: 10, 1: 10})
    bench.load(end={0: 30, 1: 20})
    topic.values[0] += [b'{"id": 1.5, "more": {"x": []}}', b'{"in": {"b": "c"}, "more": {"x": [1]}}']
    bench.load()
    assert str(bench.table.spec().schema.field("id").type) == "double"
    compact(bench.table, "c")
    topic.starts = {0: 42, 1: 25}
    found = audited(bench)
    assert not found.faults
    assert found.content == ContentCounts(rows=67)


def test_rows_that_a_backfill_or_a_replay_brought_are_proven_by_the_log_only(bench: Bench, topic: MemoryTopic) -> None:
    bench.load()
    bench.backfill({0: 5, 1: 0}, {0: 9, 1: 0})
    assert audited(bench).content == ContentCounts(rows=65)
    alter(bench.table, at(0, 7, id=70))
    assert faults(audited(bench)) == [("changed", 0, 7, 8)]
    topic.starts = {0: 40}
    found = audited(bench)
    assert not found.faults
    assert found.content == ContentCounts(rows=25, unproven_rows=40)


def test_rows_of_a_load_without_checksums_are_proven_by_the_log_only(bench: Bench, topic: MemoryTopic) -> None:
    loader = bench.loading()
    loader.job = replace(loader.job, checksums=False)
    loader.run(topic.bounds(), LoadLimits(end={0: 30, 1: 10}))
    bench.load()
    assert audited(bench).content == ContentCounts(rows=65)
    topic.starts = {0: 35, 1: 25}
    found = audited(bench)
    assert not found.faults
    assert found.content == ContentCounts(rows=5, unproven_rows=60)


def test_sums_are_kept_by_segment(bench: Bench, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_content, "SEGMENT_BITS", 3)
    monkeypatch.setattr("ottla.pipeline.audit.content.SEGMENT_BITS", 3)
    bench.load(end={0: 13, 1: 25})
    bench.load()
    topic.starts = {0: 40, 1: 25}
    assert audited(bench).content == ContentCounts(rows=65)
    for offset in (8, 9, 30):
        alter(bench.table, at(0, offset, id=70))
    assert faults(audited(bench)) == [("not_as_loaded", 0, 8, 16), ("not_as_loaded", 0, 30, 31)]


# ---- What producers report


def reported(topic: MemoryTopic, partition: int, offsets: Sequence[int], producer: str = "p") -> list[ProducedCount]:
    """The report of a producer of some of the records."""
    counter = ProducedCounter(producer)
    for offset in offsets:
        time_ms = (topic.times_us.get(offset) or offset * 1_000_000) // 1000
        headers = [("h", b"%d" % offset)]
        checksum = record_checksum(b"%d" % partition, topic.values[partition][offset], headers, time_ms)
        counter.acknowledged("web", partition, offset, time_ms, checksum)
    return list(counter.reports())


def test_records_are_compared_with_what_their_producers_sent(bench: Bench, topic: MemoryTopic) -> None:
    bench.load(end={0: 30, 1: 25})
    sent = reported(topic, 0, range(40))
    assert audited(bench, sent).content == ContentCounts(rows=55, records=40)
    topic.values[0][35] = b'{"id": 36}'
    assert faults(audited(bench, sent)) == [("not_as_produced", 0, 35, 36)]


def test_a_record_that_was_written_to_another_partition_is_named(bench: Bench, topic: MemoryTopic) -> None:
    """The buffer of one record was sent in place of another's (CVE-2026-35554): the counts are right."""
    sent = [*reported(topic, 0, range(40)), *reported(topic, 1, range(25))]
    topic.values[0][21], topic.values[1][3] = topic.values[1][3], topic.values[0][21]
    bench.load()
    assert faults(audited(bench, sent)) == [("not_as_produced", 0, 21, 22), ("not_as_produced", 1, 3, 4)]


def test_records_of_producers_among_each_others_are_compared_together(
    bench: Bench, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.audit.RUNS_MAX", 4)  # so that runs have gaps, where the other's records are
    bench.load()
    sent = [*reported(topic, 0, range(0, 40, 2), "even"), *reported(topic, 0, range(1, 40, 2), "odd")]
    found = audited(bench, sent)
    assert (found.faults, found.content) == ([], ContentCounts(rows=65, records=40))
    topic.values[0][20] = b"{}"
    assert [f[0] for f in faults(audited(bench, sent))] == ["changed", "not_as_produced"]
    half = [report for report in sent if report.producer == "even"]
    found = audited(bench, half)
    assert [fault.kind.value for fault in found.faults] == ["changed"]
    assert found.content is not None and found.content.unproven_records > 0


def test_records_that_have_left_the_log_are_not_compared_with_their_producers(bench: Bench, topic: MemoryTopic) -> None:
    bench.load()
    sent = reported(topic, 0, range(40))
    topic.starts = {0: 8}
    found = audited(bench, sent)
    assert not found.faults
    assert found.content is not None and found.content.unproven_records == 32


def test_a_report_of_very_many_records_stays_small() -> None:
    counter = ProducedCounter("p")
    for offset in range(0, 3_000_000, 3):
        counter.acknowledged("web", 0, offset, 5, offset + 1)
    (report,) = counter.reports()
    assert len(report.value) < 100_000
    assert sum(run.sums.records for run in report.runs) == report.count == 1_000_000
