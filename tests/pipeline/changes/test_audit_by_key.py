"""The audit of tables whose rows change: a wrong row is named by its offset and its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.audit.format import partition_rows
from ottla.pipeline.audit.model import DiscrepancyKind, TopicAudit
from ottla.pipeline.audit.run import AuditInputs, audit
from ottla.pipeline.changes.rule import ChangeRule, Envelope
from ottla.pipeline.lake.lake_table import Change
from tests.pipeline.changes.keyed_topic import TOPIC, ChangeBench, KeyedTopic, Record, gone, row
from tests.support.lakes import directory_of

UPSERT, HISTORY = ChangeRule(buckets=2), ChangeRule(history=True, buckets=2)


def audited(bench: ChangeBench, *, compacts: bool = False, starts: dict[int, int] | None = None) -> TopicAudit:
    bounds = {p: OffsetBounds((starts or {}).get(p, 0), b.end_offset) for p, b in bench.topic.bounds().items()}
    inputs = AuditInputs(
        TOPIC, bounds, compacts, bench.topic, bench.table, bench.tables.quarantine, mapping=bench.mapping
    )
    return audit(inputs, (), now_ms=1 << 40)


def people(root: Path, rule: ChangeRule = UPSERT) -> ChangeBench:
    records = [row("a", n=1), row("b", n=2), row("a", n=3), gone("b"), row("c", n=4), Record(b"c", b"no json")]
    bench = ChangeBench(root / "lake", KeyedTopic({0: records, 1: [row("x", n=1)]}), rule)
    bench.load()
    return bench


def texts(found: TopicAudit) -> list[str]:
    return [fault.text for fault in found.faults]


@pytest.mark.parametrize(("rule", "rows", "replaced"), [(UPSERT, 3, 3), (HISTORY, 5, 1)], ids=["upsert", "history"])
def test_a_right_table_balances(tmp_path: Path, rule: ChangeRule, rows: int, replaced: int) -> None:
    bench = people(tmp_path, rule)
    bench.topic.records[0] += [row("d", n=1)]
    found = audited(bench)
    assert texts(found) == []
    total = found.total
    assert (total.in_log, total.loaded, total.replaced, total.quarantined, total.waiting) == (8, rows, replaced, 1, 1)
    assert partition_rows(found)[-1]["replaced"] == replaced


def test_a_row_that_is_missing_is_named(tmp_path: Path) -> None:
    bench = people(tmp_path)
    DeltaTable(str(directory_of(bench.table))).delete('"offset" = 2')
    assert texts(audited(bench)) == ["partition 0, offset 2, key a: 1 records of the log are in neither table"]


def test_a_row_that_a_later_record_replaced_is_named(tmp_path: Path) -> None:
    bench = people(tmp_path)
    before = bench.table.files()
    bench.topic.records[0] += [row("a", n=9)]
    bench.load()
    (lost,) = [file for file in bench.table.files() if file not in before and file.rows]
    bench.table.commit(Change("sabotage", remove=[lost], add=[]))
    assert {fault.kind for fault in audited(bench).faults} == {DiscrepancyKind.MISSING}


def test_a_stale_row_is_named(tmp_path: Path) -> None:
    """The log, as if a later record of the key had been before the table's position."""
    bench = people(tmp_path)
    bench.topic.records[1][0] = row("y", n=1)
    assert (
        texts(audited(bench)) == ["partition 1, offset 0, key y: 1 records of the log are in neither table"]
        or texts(audited(bench)) == []
    )
    bench.topic.records[0][4:5] = [row("a", n=7)]
    found = audited(bench)
    assert (
        "partition 0, offset 2, key a: 1 rows are not as the last record of their key says: it replaced or deleted them"
        in texts(found)
    )


def test_a_row_of_a_deleted_key_is_named(tmp_path: Path) -> None:
    bench = people(tmp_path)
    bench.topic.records[0][4:5] = [gone("a")]
    found = [fault for fault in audited(bench).faults if fault.key == b"a"]
    assert [(fault.kind, fault.first_offset) for fault in found] == [(DiscrepancyKind.STALE, 2)]


def test_rows_whose_records_have_left_the_log_are_no_fault(tmp_path: Path) -> None:
    bench = people(tmp_path)
    assert texts(audited(bench, starts={0: 3, 1: 1})) == []


def test_a_row_whose_record_compaction_took_for_one_that_waits_is_no_fault(tmp_path: Path) -> None:
    class Compacted(KeyedTopic):
        def read(self, offsets: Any) -> Any:
            for batch in super().read(offsets):
                gone_now = {0, 2} if offsets.partition == 0 else set()
                yield batch.filter([offset not in gone_now for offset in batch.column("offset").to_pylist()])

    bench = people(tmp_path)
    bench.topic = Compacted({**bench.topic.records, 0: [*bench.topic.records[0], row("a", n=5)]})
    assert texts(audited(bench, compacts=True)) == []
    assert [fault.kind for fault in audited(bench, compacts=False).faults] == [DiscrepancyKind.FOREIGN]


def test_history_that_was_not_closed_is_named(tmp_path: Path) -> None:
    bench = people(tmp_path, HISTORY)
    bench.topic.records[0][5:6] = [row("x", n=1)]
    DeltaTable(str(directory_of(bench.table))).update({"n": "n"})
    bench.topic.records[1][0] = row("x", n=1)
    assert all(fault.kind is not DiscrepancyKind.STALE for fault in audited(bench).faults)
    bench.topic.records[0][3:4] = [row("a", n=3)]
    assert DiscrepancyKind.STALE in {fault.kind for fault in audited(bench).faults}


def test_debezium_deletions_are_understood(tmp_path: Path) -> None:
    values = [
        b'{"after": {"id": 1}, "op": "c"}',
        b'{"before": {"id": 1}, "op": "d"}',
        None,
        b'{"after": {"id": 2}, "op": "r"}',
    ]
    topic = KeyedTopic({0: [Record(b"k", value) for value in values]})
    rule = ChangeRule(key_fields=("id",), buckets=2, envelope=Envelope.DEBEZIUM)
    bench = ChangeBench(tmp_path / "lake", topic, rule)
    bench.load()
    assert texts(audited(bench)) == []
    topic.records[0][1] = Record(b"k", b'{"before": {"id": 2}, "op": "d"}')
    assert [(fault.kind, fault.key) for fault in audited(bench).faults] == [(DiscrepancyKind.MISSING, b"1")]
