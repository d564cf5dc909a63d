"""The log against the simplest thing that could be right: a list. With power cuts on a disk that tears.

Appends in any codec, rolls, flushes in one step and in three, leaders that come and go, cuts at both ends, retention,
clean and unclean starts; after each step reads from every offset, look-ups by time and by epoch.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.core.errors import OffsetOutOfRange
from ottla.core.settings import LONG_MAX
from ottla.records.batch import split
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import POWER_CUTS, SimDisk, Survival
from tests.support.examples import examples
from tests.support.storage import NOW_MS, TP, StillClock, batch, content, everything, open_directory, records_in

# Small enough that a few appends roll a segment and fill an index, jitter and all.
CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=150,
    segment_index_bytes=96,
    timestamp_after_max_ms=LONG_MAX,
    retention_ms=-1,
)
PRODUCER_ID = 9


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = StillClock()
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log: PartitionLog = self.directory.create_log(TP, uuid.UUID(int=7))
        self.model: list[tuple[bytes, int, int]] = []  # value, timestamp, leader epoch; by offset
        self.ends: list[int] = []  # the offset after each batch
        self.start = 0
        self.guaranteed = 0
        self.epoch = 0
        self.sequence = 0

    @rule(
        sizes=st.lists(st.integers(0, 120), min_size=1, max_size=4),
        ago=st.integers(0, 50),
        idempotent=st.booleans(),
        codec=st.integers(0, 4),
    )
    def append(self, sizes: list[int], ago: int, idempotent: bool, codec: int = 0) -> None:
        first = len(self.model)
        values = [b"%d:" % (first + at) + b"x" * size for at, size in enumerate(sizes)]
        time_ms = NOW_MS + first - ago
        records = (
            batch(*values, timestamp_ms=time_ms, producer_id=PRODUCER_ID, epoch=0, sequence=self.sequence, codec=codec)
            if idempotent
            else batch(*values, timestamp_ms=time_ms, codec=codec)
        )
        appended = self.log.append(records, leader_epoch=self.epoch, now_ms=self.clock.now_ms)
        assert (appended.first_offset, appended.last_offset) == (first, first + len(values) - 1)
        self.model += [(value, time_ms, self.epoch) for value in values]
        self.ends.append(len(self.model))
        if idempotent:
            self.sequence += len(values)
            again = self.log.append(
                batch(
                    *values,
                    timestamp_ms=time_ms,
                    producer_id=PRODUCER_ID,
                    epoch=0,
                    sequence=self.sequence - len(values),
                ),
                leader_epoch=self.epoch,
                now_ms=self.clock.now_ms,
            )
            assert again.duplicate and again.first_offset == first

    @rule(ahead=st.integers(1, 3))
    def new_leader_epoch(self, ahead: int) -> None:
        self.epoch += ahead
        self.log.begin_epoch(self.epoch)

    @rule()
    def roll(self) -> None:
        self.log.roll()
        assert self.log.active.base_offset == len(self.model) and not self.log.active.size_bytes

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.guaranteed = len(self.model)

    @rule()
    def appends_between_the_steps_of_a_flush_are_not_flushed(self) -> None:
        job = self.log.begin_flush()
        before = len(self.model)
        self.append(sizes=[5], ago=0, idempotent=False)
        job.run()
        self.log.complete_flush(job)
        assert self.log.flushed_offset == before
        self.guaranteed = before

    @rule()
    def checkpoint(self) -> None:
        self.directory.checkpoint()

    @rule(seed=st.integers(0, 2**32), survival=st.sampled_from(POWER_CUTS))
    def power_cut(self, seed: int, survival: Survival) -> None:
        self.disk.power_cut(random.Random(seed), survival)
        self._reopen()
        survivors = self.log.end_offset
        assert self.guaranteed <= survivors <= len(self.model), (
            "a guaranteed record is lost or a record came from nowhere"
        )
        self._keep(survivors)

    @rule()
    def clean_restart(self) -> None:
        self.directory.close(broker_epoch=4)
        self._reopen()
        assert self.directory.clean_broker_epoch == 4
        assert self.log.end_offset == len(self.model), "a clean stop lost something"
        self.guaranteed = len(self.model)

    @precondition(lambda self: self.ends)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, len(self.model)))
        self.log.truncate_to(offset)
        assert self.log.high_watermark <= self.log.end_offset
        kept = max([end for end in [self.start, *self.ends] if end <= offset], default=self.start)
        assert self.log.end_offset == (len(self.model) if offset == len(self.model) else kept)
        self._keep(self.log.end_offset)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, len(self.model)))
        self.log.update_high_watermark(len(self.model))
        assert self.log.delete_records(self.start) == self.start
        self.directory.run_retention(self.clock.now_ms)
        self.directory.checkpoint()  # otherwise a power cut may bring deleted records back, as in Kafka
        self.log.flush()
        self.guaranteed = len(self.model)

    @precondition(lambda self: self.model)
    @rule(kept_bytes=st.integers(0, 2000))
    def retain_by_size(self, kept_bytes: int) -> None:
        """The oldest segments go as long as so much is left, and none that reaches the high watermark."""
        self.log.update_high_watermark(self.guaranteed)
        segments = [(segment.base_offset, segment.size_bytes) for segment in self.log.segments]
        ends = [*(base for base, _ in segments[1:]), len(self.model)]
        left, expected, start = sum(size for _, size in segments), 0, self.start
        for (_, size), end in zip(segments, ends, strict=True):
            is_empty_active = end == len(self.model) and not size
            if end > self.guaranteed or is_empty_active or (left - size < kept_bytes and end > self.start):
                break
            left, expected, start = left - size, expected + 1, max(end, self.start)
        self.log.reconfigure(replace(CONFIG, retention_bytes=kept_bytes))
        assert self.log.delete_old_segments(self.clock.now_ms) == expected
        self.log.reconfigure(CONFIG)
        self.start = start
        self.directory.checkpoint()
        self.log.flush()
        self.guaranteed = len(self.model)

    def _reopen(self) -> None:
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log = self.directory.logs.get(TP) or self.directory.create_log(TP, uuid.UUID(int=7))

    def _keep(self, survivors: int) -> None:
        self.model = self.model[:survivors]
        self.ends = [end for end in self.ends if end <= survivors]
        self.guaranteed = min(self.guaranteed, survivors)
        self.start = min(self.start, survivors)
        known = self.log.producers.entry(PRODUCER_ID)
        self.sequence = known.last_sequence + 1 if known else 0
        self.log.update_high_watermark(min(self.log.high_watermark, survivors))

    @invariant()
    def they_agree(self) -> None:
        assert self.log.log_start_offset == self.start
        expected = [(offset, self.model[offset][0]) for offset in range(self.start, len(self.model))]
        assert everything(self.log, max_bytes=300) == expected
        assert self.log.flushed_offset <= self.log.end_offset

    @invariant()
    def every_offset_is_found_in_its_batch(self) -> None:
        for offset in range(self.start, len(self.model)):
            self.log.segment_list.forget_positions()
            data = content(self.log.read(offset, max_bytes=1, end_offset=self.log.end_offset))
            _, header = next(iter(split(data)))
            assert header.base_offset <= offset <= header.last_offset
            assert header.partition_leader_epoch == self.model[offset][2]

    @invariant()
    def reads_stop_at_the_end_they_are_given(self) -> None:
        for end in self.ends:
            data = content(self.log.read(self.start, max_bytes=1 << 20, end_offset=end)) if end > self.start else b""
            assert all(record.offset < end for record in records_in(data))

    @invariant()
    def times_are_found_as_a_scan_finds_them(self) -> None:
        live = [(offset, self.model[offset][1]) for offset in range(self.start, len(self.model))]
        for _, time_ms in live[:: max(len(live) // 4, 1)]:
            expected = next(offset for offset, at in live if at >= time_ms)
            found = self.log.offset_for_timestamp(time_ms, end_offset=self.log.end_offset)
            assert found is not None and (found.offset, found.leader_epoch) == (expected, self.model[expected][2])
        newest = self.log.offset_of_max_timestamp(self.log.end_offset)
        greatest = max((at for _, at in live), default=None)
        assert (newest.timestamp if newest else None) == greatest
        if newest is not None:
            assert newest.offset == next(offset for offset, at in live if at == greatest)

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        for offset in range(self.start, len(self.model)):
            assert self.log.epochs.epoch_of(offset) == self.model[offset][2]

    @invariant()
    def an_epoch_ends_where_the_first_record_of_a_newer_one_lies(self) -> None:
        for epoch in {self.model[offset][2] for offset in range(self.start, len(self.model))}:
            later = [offset for offset in range(self.start, len(self.model)) if self.model[offset][2] > epoch]
            answer = self.log.epoch_end_offset(epoch)
            assert answer.epoch == epoch and answer.end_offset == min(later, default=len(self.model))

    @invariant()
    def the_ends_are_in_order(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.high_watermark <= log.end_offset

    @invariant()
    def nothing_lies_beyond_either_end(self) -> None:
        for offset in (self.start - 1, len(self.model) + 1):
            try:
                self.log.read(offset, max_bytes=1, end_offset=self.log.end_offset)
            except OffsetOutOfRange:
                continue
            raise AssertionError(f"offset {offset} was answered")


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
