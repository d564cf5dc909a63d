"""The indexes of offsets, times and aborted transactions against a plain walk over the files, corruption and all."""

from __future__ import annotations

import random
import uuid
from pathlib import PurePath

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.core.settings import LONG_MAX
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk, Survival
from tests.crash_tests.invariants import check_indexes, check_reads, walk
from tests.support.examples import examples
from tests.support.producer_oracle import Aborted, ProducerOracle, Taken
from tests.support.storage import NOW_MS, TP, StillClock, marker, open_directory

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, segment_index_bytes=96, timestamp_after_max_ms=LONG_MAX)
TIMES = st.integers(-1, 60)


class IndexesAgainstScan(RuleBasedStateMachine):
    """Records with times in no order; what a look-up should find is sought in a list of all records."""

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = SimDisk(), StillClock()
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log: PartitionLog = self.directory.create_log(TP, uuid.UUID(int=7))
        self.records: list[tuple[int, int]] = []  # offset and time
        self.ends = [0]  # where batches end: readers are never sent inside one
        self.oracle = ProducerOracle()
        self.is_corrupt = False  # entries may be wrong until their first use

    @rule(times=st.lists(TIMES, min_size=1, max_size=4), size=st.integers(0, 150), codec=st.integers(0, 4))
    def append(self, times: list[int], size: int, codec: int) -> None:
        self._append(times, size, codec=codec)

    @rule(producer_id=st.integers(1, 3), time=TIMES)
    def append_to_a_transaction(self, producer_id: int, time: int) -> None:
        known = self.oracle.known.get(producer_id)
        sequence = 0 if known is None or known.last_sequence is None else known.last_sequence + 1
        first = self.log.end_offset
        self._append([time], 20, producer_id=producer_id, sequence=sequence)
        taken = Taken(sequence, sequence, first, first, self.records[-1][1])
        self.oracle.take(producer_id, 0, taken, transactional=True)

    def _append(
        self, times: list[int], size: int, *, codec: int = 0, producer_id: int = -1, sequence: int = -1
    ) -> None:
        stamps = [-1 if time < 0 else NOW_MS + time for time in times]
        rng = random.Random(f"{len(self.records)}")
        raw = build_batch(
            [NewRecord(None, rng.randbytes(size), stamp) for stamp in stamps],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=producer_id >= 0,
        )
        first = self.log.append(memoryview(raw), leader_epoch=0, now_ms=self.clock.now_ms).first_offset
        self.records += [(first + nth, stamp) for nth, stamp in enumerate(stamps)]
        self.ends.append(len(self.records))

    @precondition(lambda self: self.oracle.first_open() is not None)
    @rule(data=st.data(), abort=st.booleans())
    def end_a_transaction(self, data: st.DataObject, abort: bool) -> None:
        open_ones = [producer_id for producer_id, known in self.oracle.known.items() if known.transaction is not None]
        producer_id, offset = data.draw(st.sampled_from(open_ones)), self.log.end_offset
        records = marker(producer_id, 0, commit=not abort)
        self.log.append(records, leader_epoch=0, now_ms=self.clock.now_ms, origin=AppendOrigin.COORDINATOR)
        self.records.append((offset, NOW_MS))
        self.ends.append(len(self.records))
        self.oracle.mark(producer_id, 0, offset=offset, abort=abort)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(clean=st.booleans(), seed=st.integers(0, 99))
    def start_again(self, clean: bool, seed: int) -> None:
        if clean:
            self.directory.close()
        else:
            self.log.flush()
            self.directory.checkpoint()
            self.disk.power_cut(random.Random(seed), Survival.TORN)
        self._open()

    @rule(how=st.sampled_from(["flip", "cut", "zeros", "noise", "gone"]), number=st.integers(0, 1 << 16))
    def spoil_an_index_and_start_again(self, how: str, number: int) -> None:
        """Of those that can be made again: what it costs is time."""
        self.directory.close()
        names = [name for name in self.disk.names_in(self.log.directory) if name.endswith((".index", ".timeindex"))]
        path = self.log.directory / names[number % len(names)]
        self._spoil(path, how, number)
        self.is_corrupt = True
        self._open()

    def _spoil(self, path: PurePath, how: str, number: int) -> None:
        size = self.disk.size_of(path)
        if how == "gone" or not size:
            self.disk.remove(path)
        elif how == "flip":
            self.disk.flip_bit(path, number % (size * 8))
        else:
            at = number % size
            tail = {"cut": b"", "zeros": bytes(size - at), "noise": random.Random(number).randbytes(size - at)}[how]
            file = self.disk.open(path)
            file.truncate(at)
            if tail:
                file.append(tail)

    def _open(self) -> None:
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log = self.directory.logs[TP]
        assert self.log.end_offset == len(self.records), "a start lost something"

    @invariant()
    def each_offset_is_found(self) -> None:
        check_reads(self.log, walk(self.disk, self.log))

    @invariant()
    def each_entry_matches_the_log(self) -> None:
        if not self.is_corrupt:
            check_indexes(self.log, walk(self.disk, self.log))

    @invariant()
    def each_time_is_found_where_a_scan_finds_it(self) -> None:
        for end in {len(self.records), self.ends[len(self.ends) // 2]}:
            for asked in (NOW_MS - 1, *(NOW_MS + at for at in range(0, 61, 12))):
                found = self.log.offset_for_timestamp(asked, end_offset=end)
                expected = next((offset for offset, time in self.records[:end] if time >= asked), None)
                assert (found.offset if found else None) == expected, (asked, end)
            newest = self.log.offset_of_max_timestamp(end)
            greatest = max((time for _, time in self.records[:end]), default=-1)
            expected = next((offset for offset, time in self.records[:end] if time == greatest >= 0), None)
            assert (newest.offset if newest else None) == expected, end

    @invariant()
    def each_reader_hears_of_the_aborted_transactions_in_its_range(self) -> None:
        end = len(self.records)
        for first in range(0, end, max(end // 4, 1)):
            for stop in range(first + 1, end + 1, max(end // 3, 1)):
                context = {Aborted(*entry) for entry in self.log.aborted_transactions(first, stop)}
                there = {entry for entry in self.oracle.aborted if entry.last_offset >= first}
                assert context == {entry for entry in there if entry.first_offset < stop}, (first, stop)


TestIndexesAgainstScan = IndexesAgainstScan.TestCase
TestIndexesAgainstScan.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
