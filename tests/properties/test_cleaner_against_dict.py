"""Compaction against a dict: whatever is written, aborted, deleted and cut short, the latest value of each key stays."""

from __future__ import annotations

import random
import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.core.settings import LONG_MAX
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import Record
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import POWER_CUTS, PowerCut, SimDisk, Survival
from tests.support.cleaning import Seen, batches_in, begin_pass, clean_once, committed_in, records_in_log, run
from tests.support.examples import examples
from tests.support.storage import TP, StillClock, content, marker, open_directory, records_in

RETENTION_MS = 1000
CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=150,
    segment_index_bytes=96,
    timestamp_after_max_ms=LONG_MAX,
    delete_retention_ms=RETENTION_MS,
    file_delete_delay_ms=0,
)
KEYS = [b"a", b"b", b"c", b"a key of quite some length, so that its digest takes several words", b""]


class CleanerAgainstDict(RuleBasedStateMachine):
    """Everything appended is flushed and below the high watermark: what other tests are about cannot disturb here."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = StillClock()
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log: PartitionLog = self.directory.create_log(TP, uuid.UUID(int=7), CONFIG)
        self.written: dict[int, Record] = {}
        self.producer: dict[int, int] = {}  # offset -> producer id of a transaction, if it is part of one
        self.aborted: set[int] = set()  # offsets
        self.open: dict[int, list[int]] = {}  # producer id -> offsets of its open transaction
        self.sequences: dict[int, int] = {}
        self.clean_end = 0
        self._settle()

    # ---- Writing

    @rule(
        rows=st.lists(
            st.tuples(
                st.sampled_from([*KEYS, None]), st.one_of(st.none(), st.binary(max_size=40)), st.integers(-50, 50)
            ),
            min_size=1,
            max_size=5,
        ),
        codec=st.integers(0, 4),
        producer_id=st.sampled_from([-1, 5, 6, 7]),
        transactional=st.booleans(),
    )
    def append(
        self, rows: list[tuple[bytes | None, bytes | None, int]], codec: int, producer_id: int, transactional: bool
    ) -> None:
        transactional = producer_id >= 0 and (transactional or producer_id in self.open)
        records = [NewRecord(key, value, self.clock.now_ms + more, [("h", b"v")]) for key, value, more in rows]
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        batch = build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        origin = AppendOrigin.COORDINATOR if any(key is None for key, _, _ in rows) else AppendOrigin.CLIENT
        appended = self.log.append(memoryview(batch), leader_epoch=0, now_ms=self.clock.now_ms, origin=origin)
        for offset, (record, (key, value, more)) in enumerate(zip(records, rows, strict=True), appended.first_offset):
            self.written[offset] = Record(offset, self.clock.now_ms + more, key, value, list(record.headers))
            if transactional:
                self.open.setdefault(producer_id, []).append(offset)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(rows)
        self._settle()

    @rule(producer_id=st.sampled_from([5, 6, 7]), commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        offsets = self.open.pop(producer_id, [])
        end = marker(producer_id, 0, commit=commit)
        self.log.append(end, leader_epoch=0, now_ms=self.clock.now_ms, origin=AppendOrigin.COORDINATOR)
        if not commit:
            self.aborted.update(offsets)
        self._settle()

    @rule(
        producer_id=st.sampled_from([5, 6, 7]),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
        rolls=st.booleans(),
        commit=st.booleans(),
    )
    def whole_transaction(self, producer_id: int, keys: list[bytes], rolls: bool, commit: bool) -> None:
        for key in keys:
            self.append([(key, b"of a transaction", 0)], codec=0, producer_id=producer_id, transactional=True)
            if rolls:
                self.roll()
        self.end_transaction(producer_id, commit)

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self._settle()

    @rule(ms=st.sampled_from([1, RETENTION_MS - 1, RETENTION_MS]))
    def time_passes(self, ms: int) -> None:
        self.clock.now_ms += ms

    def _settle(self) -> None:
        self.log.flush()
        self.log.update_high_watermark(self.log.flushed_offset)

    # ---- Compaction and faults

    @rule(slots=st.sampled_from([2, 3, 5, 100]), rolls=st.booleans())
    def clean(self, slots: int, rolls: bool) -> None:
        if rolls:
            self.roll()
        before = batches_in(self.log)
        done = clean_once(self.directory, self.log, self.clock, slots=slots)
        if done is None:
            return
        assert done.end_offset > self.clean_end, "a pass came no further"
        self.clean_end = done.end_offset
        self._check_tombstones(before)

    @rule(seed=st.integers(0, 2**32), survival=st.sampled_from(POWER_CUTS), steps=st.integers(1, 60))
    def power_cut_while_cleaning(self, seed: int, survival: Survival, steps: int) -> None:
        self.disk.stop_at(steps)
        try:
            cleaning = begin_pass(self.log, self.clock)
            if cleaning is not None:
                run(cleaning, self.log, self.clock)
        except PowerCut:
            pass
        self.disk.power_cut(random.Random(seed), survival)
        self._reopen()

    @rule()
    def restart(self) -> None:
        self.directory.close()
        self._reopen()

    @rule(survival=st.sampled_from(POWER_CUTS))
    def restart_without_snapshots_and_indexes(self, survival: Survival) -> None:
        """Producer state then comes out of what compaction has left of the batches."""
        before = {info.producer_id: (info.producer_epoch, info.last_sequence) for info in self.log.producers.describe()}
        self.disk.power_cut(random.Random(0), survival)
        for name in self.disk.names_in(self.log.directory):
            if name.endswith((".snapshot", ".index", ".timeindex")):
                self.disk.remove(self.log.directory / name)
        self._reopen()
        after = {info.producer_id: (info.producer_epoch, info.last_sequence) for info in self.log.producers.describe()}
        for producer_id, state in before.items():
            assert after.get(producer_id, state) == state
            if state[1] >= 0:
                assert producer_id in after, "an active producer's sequence was lost"

    def _reopen(self) -> None:
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log = self.directory.logs[TP]
        if self.log.cleaner_line.cleaned_offset is not None:
            self.clean_end = self.log.cleaner_line.cleaned_offset
        self.log.update_high_watermark(self.log.end_offset)

    def _check_tombstones(self, before: list[Seen]) -> None:
        """Check that a horizon is set once, at the first pass, and that the first pass after it removes the tombstone."""
        now_ms = self.clock.now_ms
        after = {seen.header.base_offset: seen for seen in batches_in(self.log)}
        latest = self._latest_below(self.clean_end)
        for seen in before:
            if seen.header.is_control:
                continue
            left = after.get(seen.header.base_offset)
            kept = {record.offset for record in left.records} if left else set()
            if left is not None and seen.horizon_ms is not None and kept:
                assert left.horizon_ms == seen.horizon_ms, "a horizon was moved"
            for record in seen.records:
                if record.value is not None or latest.get(record.key) != record.offset:
                    continue
                if record.offset in kept:
                    assert left is not None and left.horizon_ms is not None, "a tombstone without a horizon"
                    assert seen.horizon_ms is None or seen.horizon_ms > now_ms, "a tombstone outlived its time"
                    if seen.horizon_ms is None:
                        assert left.horizon_ms == now_ms + RETENTION_MS
                else:
                    assert seen.horizon_ms is not None and seen.horizon_ms <= now_ms, "a tombstone went too early"

    # ---- Invariants

    def _latest_below(self, end: int) -> dict[bytes | None, int]:
        return {
            record.key: offset
            for offset, record in self.written.items()
            if offset < end and offset not in self.aborted and record.key is not None
        }

    @invariant()
    def records_are_what_was_written_at_their_offset(self) -> None:
        survivors = records_in_log(self.log)
        assert [record.offset for record in survivors] == sorted({record.offset for record in survivors})
        assert all(self.written[record.offset] == record for record in survivors)

    @invariant()
    def the_latest_value_of_each_key_is_as_if_nothing_had_been_cleaned(self) -> None:
        stable = min(self.log.last_stable_offset, self.log.high_watermark)
        expected: dict[bytes | None, bytes] = {}
        for offset, record in self.written.items():
            if record.key is not None and offset < stable and offset not in self.aborted:
                if record.value is None:
                    expected.pop(record.key, None)
                else:
                    expected[record.key] = record.value
        found: dict[bytes | None, bytes] = {}
        for record in committed_in(self.log):
            if record.key is not None:
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = record.value
        assert found == expected

    @invariant()
    def below_the_clean_point_there_is_the_latest_of_each_key_and_nothing_else(self) -> None:
        latest = self._latest_below(self.clean_end)
        survivors = {record.offset: record for record in records_in_log(self.log)}
        below = {offset for offset in survivors if offset < self.clean_end}
        assert below <= set(latest.values()), "older, aborted or keyless records are left"
        for offset in latest.values():
            newer = any(
                later > offset and self.written[later].key == self.written[offset].key and later not in self.aborted
                for later in self.written
            )
            if self.written[offset].value is not None and not newer:
                assert offset in below, "a value was lost"

    @invariant()
    def beyond_the_clean_point_only_aborted_records_are_missing(self) -> None:
        survivors = {record.offset for record in records_in_log(self.log)}
        must = {offset for offset in self.written if offset >= self.clean_end and offset not in self.aborted}
        if not must <= survivors:  # a pass that was cut short may have come further than it could note
            gone = must - survivors
            latest = self._latest_below(1 << 60)
            assert all(
                self.written[offset].key is None
                or latest[self.written[offset].key] != offset
                or self.written[offset].value is None
                for offset in gone
            )
            assert self.log.cleaner_line.is_written

    @invariant()
    def a_reader_of_committed_records_sees_those_and_no_aborted_one(self) -> None:
        stable = min(self.log.last_stable_offset, self.log.high_watermark)
        survivors = [record for record in records_in_log(self.log) if record.offset < stable]
        expected = [record for record in survivors if record.offset not in self.aborted]
        assert [record.offset for record in committed_in(self.log)] == [record.offset for record in expected]

    @invariant()
    def readers_of_committed_records_wait_for_open_transactions_alone(self) -> None:
        first_open = min((offsets[0] for offsets in self.open.values()), default=self.log.end_offset)
        assert self.log.last_stable_offset == first_open

    @invariant()
    def every_record_is_found_by_its_offset_and_time(self) -> None:
        survivors = records_in_log(self.log)
        for record in survivors:
            self.log.segment_list.forget_positions()
            region = self.log.read(record.offset, max_bytes=1, end_offset=self.log.end_offset)
            assert region is not None
            assert record.offset in [each.offset for each in records_in(content(region))]
        for record in survivors[::3]:
            found = self.log.offset_for_timestamp(record.timestamp_ms, end_offset=self.log.end_offset)
            first = next(
                each.offset
                for seen in batches_in(self.log)
                for each in seen.records
                if each.timestamp_ms >= record.timestamp_ms
            )
            assert found is not None and found.offset == first

    @invariant()
    def no_segment_has_outgrown_its_limits(self) -> None:
        for segment in self.log.segments[:-1]:
            assert segment.size_bytes <= 2 * CONFIG.segment_bytes
        for name in self.disk.names_in(self.log.directory):
            assert not name.endswith(".swap"), name


CleanerAgainstDict.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestCleanerAgainstDict = CleanerAgainstDict.TestCase
