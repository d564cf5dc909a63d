"""Compares the audit with a plain count of offsets, one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.audit import ProducedCount, ProducedCounter, bucket_of, parse_count
from ottla.pipeline.audit import compare
from ottla.pipeline.audit.compare import OffsetColumns, OffsetReaders, PartitionExtent, add_produced, audit_partition
from ottla.pipeline.audit.model import Discrepancy, DiscrepancyKind, PartitionAudit, TopicAudit
from ottla.pipeline.lake.rowless_offsets import join_ranges
from ottla.pipeline.offset_range import OffsetRange

BUCKET_MS = 100
END = 60


@dataclass
class Listed:
    """A side of the comparison that is a list of (offset, time, late), given in pieces and out of order."""

    entries: list[tuple[int, int, bool]] = field(default_factory=list)
    piece: int = 7

    def read(self, partition: int, first_offset: int, end_offset: int) -> Iterator[OffsetColumns]:
        inside = [entry for entry in reversed(self.entries) if first_offset <= entry[0] < end_offset]
        for at in range(0, len(inside), self.piece):
            offsets, times, late = zip(*inside[at : at + self.piece], strict=True)
            yield OffsetColumns(np.array(offsets, np.int64), np.array(times, np.int64), np.array(late, np.bool_))


offsets_of = st.sets(st.integers(0, END - 1))
ranges_of = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=3)
times_of = st.lists(st.one_of(st.just(-1), st.integers(0, 900)), min_size=END, max_size=END)


@st.composite
def accounts(draw: st.DrawFn) -> tuple[PartitionExtent, OffsetReaders]:
    """A log and two tables that agree but for what is drawn to be wrong."""
    times = draw(times_of)
    log_start = draw(st.integers(0, END))
    log_end = draw(st.integers(log_start, END))
    first = draw(st.integers(0, END))
    position = draw(st.integers(first, END))
    in_log = sorted(offset for offset in draw(offsets_of) if log_start <= offset < log_end)
    rows = draw(st.lists(st.integers(first, END - 1), max_size=40)) if first < END else []
    aside = draw(st.lists(st.integers(first, END - 1), max_size=10)) if first < END else []
    late = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    sides = OffsetReaders(
        Listed([(offset, times[offset], False) for offset in in_log]),
        Listed([(offset, times[offset], was) for offset, was in zip(rows, late, strict=True)]),
        Listed([(offset, times[offset], False) for offset in aside]),
        compacts=draw(st.booleans()),
    )
    skipped, deleted = (join_ranges(OffsetRange(0, min(pair), max(pair)) for pair in draw(ranges_of)) for _ in range(2))
    return PartitionExtent(0, log_start, log_end, first, position, skipped, deleted), sides


def entries(side: compare.OffsetReader) -> list[tuple[int, int, bool]]:
    assert isinstance(side, Listed)
    return side.entries


@given(accounts(), st.integers(1, 70))
def test_every_column_is_what_counting_one_by_one_gives(
    drawn: tuple[PartitionExtent, OffsetReaders], window: int
) -> None:
    extent, sides = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "COMPARED_OFFSETS_MAX", window)
        audited = audit_partition(extent, sides, bucket_ms=BUCKET_MS)
    log = {offset: time for offset, time, _ in entries(sides.log)}
    rows = Counter(offset for side in (sides.table, sides.quarantine) for offset, _, _ in entries(side))
    total = audited.total
    assert total.loaded == len(entries(sides.table))
    assert total.quarantined == len(entries(sides.quarantine))
    assert total.late == sum(late for _, _, late in entries(sides.table))
    assert total.in_log == sum(offset >= extent.first_offset for offset in log)
    assert total.waiting == sum(offset >= extent.position for offset in log)
    rowless = {o for o in range(extent.first_offset, extent.position) if o not in rows}
    skipped = {o for o in rowless if o not in log and any(r.first_offset <= o < r.end_offset for r in extent.skipped)}
    deleted = {o for o in rowless - skipped if any(r.first_offset <= o < r.end_offset for r in extent.deleted)}
    assert (total.skipped, total.deleted) == (len(skipped), len(deleted))
    missing = {o for o in rowless - deleted if o in log}
    assert total.missing == len(missing)
    assert offsets_in(audited.faults, DiscrepancyKind.MISSING, log) == missing
    known = range(min(extent.first_offset, extent.log_start), max(extent.log_end, extent.position))
    assert total.duplicated == sum(count - 1 for offset, count in rows.items() if offset in known)
    foreign = {
        o for o in rows if o not in log and not (o < extent.position and (o < extent.log_start or sides.compacts))
    }
    assert offsets_in(audited.faults, DiscrepancyKind.FOREIGN, rows) == foreign
    waiting = [time for offset, time in log.items() if offset >= extent.position]
    assert audited.waiting_from_ms == (min(waiting) if waiting else None)
    for bucket, line in audited.lines.items():
        here = [o for o, time, _ in entries(sides.table) if bucket_at(time) == bucket]
        assert line.loaded == len(here)


def bucket_at(time: int) -> int:
    return time - time % BUCKET_MS if time >= 0 else -1


def offsets_in(faults: list[Discrepancy], kind: DiscrepancyKind, known: dict[int, int] | Counter[int]) -> set[int]:
    found: set[int] = set()
    for fault in faults:
        if fault.kind is kind:
            named = {o for o in range(fault.first_offset, fault.end_offset) if o in known}
            assert len(named) == fault.count
            found |= named
    return found


def balanced(end: int = 10, *, position: int | None = None) -> tuple[PartitionExtent, OffsetReaders]:
    records = [(offset, offset * 50, False) for offset in range(end)]
    at = end if position is None else position
    sides = OffsetReaders(Listed(records), Listed(records[: at - 1]), Listed(records[at - 1 : at]), compacts=False)
    return PartitionExtent(0, 0, end, 0, at), sides


def topic_audit(*partitions: PartitionAudit) -> TopicAudit:
    return TopicAudit("web", BUCKET_MS, partitions, producers=0, started_ms=1 << 62)


def test_a_complete_load_balances_and_is_complete_up_to_the_newest_bucket() -> None:
    found = topic_audit(audit_partition(*balanced(), bucket_ms=BUCKET_MS))
    assert found.balanced
    assert found.complete_until_ms == 400  # 9 * 50 is in the bucket that may still be filled


def test_a_record_that_waits_holds_the_watermark_back_but_is_no_fault() -> None:
    found = topic_audit(audit_partition(*balanced(position=5), bucket_ms=BUCKET_MS))
    assert found.balanced
    assert found.total.waiting == 5
    assert found.complete_until_ms == 200


def test_a_partition_that_is_idle_does_not_hold_the_watermark_back() -> None:
    idle = PartitionAudit(1, 0, 0, 0, 0)
    assert topic_audit(audit_partition(*balanced(), bucket_ms=BUCKET_MS), idle).complete_until_ms == 400


def test_a_missing_record_is_named_and_the_watermark_stops_before_its_bucket() -> None:
    extent, sides = balanced()
    entries(sides.table).remove((6, 300, False))
    found = topic_audit(audit_partition(extent, sides, bucket_ms=BUCKET_MS))
    assert [fault.text for fault in found.faults] == [
        "partition 0, offset 6: 1 records of the log are in neither table"
    ]
    assert (found.balanced, found.complete_until_ms) == (False, 300)


def test_offsets_deleted_before_they_were_loaded_are_named() -> None:
    extent, sides = balanced(position=3)
    cut = PartitionExtent(0, 5, extent.log_end, 0, 3)
    found = topic_audit(audit_partition(cut, sides, bucket_ms=BUCKET_MS))
    assert [(f.kind, f.first_offset, f.end_offset, f.count) for f in found.faults] == [
        (DiscrepancyKind.UNREAD, 3, 5, 2)
    ]
    assert found.complete_until_ms is None


def test_more_than_a_hundred_ranges_are_gathered_in_the_last_one_named() -> None:
    records = [(offset, 0, False) for offset in range(0, 1000, 2)]
    sides = OffsetReaders(Listed(records), Listed(), Listed(), compacts=False)
    audited = audit_partition(PartitionExtent(0, 0, 1000, 0, 1000), sides, bucket_ms=BUCKET_MS)
    assert len(audited.faults) == compare.DISCREPANCIES_MAX
    assert sum(fault.count for fault in audited.faults) == len(records)
    assert audited.faults[-1].end_offset == 999


# ---- Counts reported by producers


def reported(count: int, first: int, last: int, *, bucket_ms: int = 0) -> ProducedCount:
    return ProducedCount("web", 0, "me", bucket_ms, count, first, last)


def test_acknowledged_records_that_are_not_in_the_log_are_lost() -> None:
    extent, sides = balanced(2)
    audited = audit_partition(extent, sides, bucket_ms=BUCKET_MS)
    add_produced(audited, [reported(3, 0, 2)], bucket_ms=BUCKET_MS)
    (fault,) = audited.faults
    assert fault.text == "partition 0, offsets 0 to 2: 1 records that producers had acknowledged are not in the log"


def test_acknowledged_records_that_a_load_skipped_or_that_were_deleted_from_table_and_log_are_explained() -> None:
    extent, sides = balanced(10)
    entries(sides.log)[:] = entries(sides.log)[6:]
    entries(sides.table)[:] = [entry for entry in entries(sides.table) if entry[0] in (5, 6, 7, 8)]
    cut = replace(extent, log_start=6, skipped=[OffsetRange(0, 0, 3)], deleted=[OffsetRange(0, 3, 5)])
    audited = audit_partition(cut, sides, bucket_ms=BUCKET_MS * 10)
    add_produced(audited, [reported(10, 0, 9)], bucket_ms=BUCKET_MS * 10, deleted=cut.deleted)
    assert audited.faults == []
    assert (audited.total.skipped, audited.total.deleted, audited.total.expired) == (3, 2, 1)
    add_produced(audited, [reported(1, 0, 9)], bucket_ms=BUCKET_MS * 10, deleted=cut.deleted)
    assert [fault.count for fault in audited.faults] == [1]


def test_records_of_producers_that_do_not_report_are_no_fault() -> None:
    audited = audit_partition(*balanced(), bucket_ms=BUCKET_MS)
    add_produced(audited, [reported(1, 0, 0)], bucket_ms=BUCKET_MS)
    assert not audited.faults
    assert audited.total.produced == 1


def test_records_deleted_by_retention_after_their_load_are_not_lost() -> None:
    _, sides = balanced(2)
    audited = audit_partition(
        PartitionExtent(0, 2, 2, 0, 2),
        OffsetReaders(Listed(), sides.table, sides.quarantine, compacts=False),
        bucket_ms=100,
    )
    add_produced(audited, [reported(2, 0, 1)], bucket_ms=BUCKET_MS)
    assert not audited.faults
    assert audited.total.expired == 2


def test_records_that_may_have_left_the_log_before_the_first_load_are_not_judged() -> None:
    audited = audit_partition(
        PartitionExtent(0, 5, 5, 5, 5), OffsetReaders(Listed(), Listed(), Listed(), compacts=False), bucket_ms=BUCKET_MS
    )
    add_produced(audited, [reported(5, 0, 4)], bucket_ms=BUCKET_MS)
    assert not audited.faults


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(-1, 3_000_000))))
def test_a_counter_reports_sums_that_survive_their_way_through_a_topic(sent: list[tuple[int, int, int]]) -> None:
    counter = ProducedCounter("run-1")
    for partition, offset, time in sent:
        counter.acknowledged("web", partition, offset, time)
    found = [parse_count(report.value) for report in counter.reports()]
    assert found == list(counter.reports())
    keys = [report.key for report in counter.reports()]
    assert len(set(keys)) == len(keys)
    expected = Counter((partition, bucket_of(time)) for partition, _, time in sent)
    assert {(c.partition, c.bucket_ms): c.count for c in found if c is not None} == dict(expected)


def test_an_answer_without_an_offset_is_not_counted() -> None:
    counter = ProducedCounter("run-1")
    counter.acknowledged("web", 0, -1, 0)
    assert not list(counter.reports())


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"\xff", b'{"version":2,"tier":"producer"}', b"null"])
def test_a_record_that_is_no_report_is_passed_over(value: bytes) -> None:
    assert parse_count(value) is None
