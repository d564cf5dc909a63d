"""What a log knows of its producers, through rolls, restarts and crashes, against an oracle of Kafka's rules."""

from __future__ import annotations

import random
import uuid
from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.core.errors import KafkaError, TransactionCoordinatorFenced
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.examples import examples
from tests.support.producer_oracle import MODULUS, Known, ProducerOracle, Taken
from tests.support.storage import NOW_MS, TP, StillClock, batch, marker, open_directory

CONFIG = LogConfig(segment_bytes=700, producer_id_expiration_ms=60_000)
IDS = st.integers(1, 4)


class ProducersAgainstOracle(RuleBasedStateMachine):
    """Compares with `oracle`, which gets each write; a start that replays the log must give one of its possible states."""

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = SimDisk(), StillClock()
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log: PartitionLog = self.directory.create_log(TP, uuid.UUID(int=7))
        self.oracle = ProducerOracle()
        self.since: list[ProducerOracle] = [ProducerOracle()]  # what replays from earlier snapshots have come to

    @rule(
        producer_id=IDS,
        step=st.sampled_from(
            ["next", "next", "next", "again", "before a restart", "gap", "far", "new epoch", "old epoch"]
        ),
        count=st.integers(1, 3),
        transactional=st.booleans(),
        back=st.integers(1, 7),
    )
    def produce(self, producer_id: int, step: str, count: int, transactional: bool, back: int) -> None:
        """The next batch in order, one of those before again, or one that cannot be."""
        known = self.oracle.known.get(producer_id, Known(0))
        epoch, sequence = (
            known.epoch,
            MODULUS - 4 if known.last_sequence is None else (known.last_sequence + 1) % MODULUS,
        )
        match step:
            case "again" if known.batches:
                earlier = known.batches[-min(back, len(known.batches))]
                sequence, count = earlier.first_sequence, (earlier.last_sequence - earlier.first_sequence) % MODULUS + 1
            case "gap":
                sequence = (sequence + back) % MODULUS
            case "far":
                sequence = MODULUS - 1
            case "before a restart" if written := [
                one for its, at, one in self.oracle.written if (its, at) == (producer_id, epoch)
            ]:
                earlier = written[-min(back, len(written))]
                sequence, count = earlier.first_sequence, (earlier.last_sequence - earlier.first_sequence) % MODULUS + 1
            case "new epoch":
                epoch, sequence = epoch + 1, 0
            case "old epoch" if epoch > 0:
                epoch -= 1
        self._send(producer_id, epoch, sequence, count, transactional=transactional)

    def _send(self, producer_id: int, epoch: int, sequence: int, count: int, *, transactional: bool) -> None:
        verdict = self.oracle.verdict(producer_id, epoch, sequence, count, transactional=transactional)
        is_refused = verdict in ("OutOfOrderSequenceNumber", "InvalidTxnState")
        if is_refused and self.oracle.read_back(producer_id, epoch, sequence):
            verdict = self.oracle.verdict(producer_id, epoch, sequence, count, transactional=transactional)
        end = self.log.end_offset
        records = batch(
            *(b"v" * 20 for _ in range(count)),
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
            timestamp_ms=NOW_MS,
        )
        if isinstance(verdict, str) and verdict != "taken":
            with pytest.raises(KafkaError) as refused:
                self.log.append(records, leader_epoch=0, now_ms=self.clock.now_ms)
            assert type(refused.value).__name__ == verdict and self.log.end_offset == end
            return
        appended = self._append(records, AppendOrigin.CLIENT)
        if isinstance(verdict, Taken):
            assert appended.duplicate and (appended.first_offset, appended.last_offset) == verdict[2:4]
            assert self.log.end_offset == end
            return
        assert not appended.duplicate
        taken = Taken(sequence, (sequence + count - 1) % MODULUS, end, end + count - 1, NOW_MS)
        for oracle in (self.oracle, *self.since):
            oracle.take(producer_id, epoch, taken, transactional=transactional, now_ms=self.clock.now_ms)

    def _append(self, records: memoryview, origin: AppendOrigin) -> AppendInfo:
        segments = len(self.log.segments)
        before = deepcopy(self.oracle)
        appended = self.log.append(records, leader_epoch=0, now_ms=self.clock.now_ms, origin=origin)
        if len(self.log.segments) > segments:  # it was full: a snapshot was written before this batch
            self._remember_snapshot(before)
        return appended

    @rule(producer_id=IDS, abort=st.booleans(), coordinator_epoch=st.integers(0, 3), bump=st.booleans())
    def end_a_transaction(self, producer_id: int, abort: bool, coordinator_epoch: int, bump: bool) -> None:
        known = self.oracle.known.get(producer_id)
        if known is None or known.transaction is None:
            return
        epoch = known.epoch + bump  # as transactions of the second version do
        offset = self.log.end_offset
        records = marker(producer_id, epoch, commit=not abort, coordinator_epoch=coordinator_epoch)
        if coordinator_epoch < known.coordinator_epoch:
            with pytest.raises(TransactionCoordinatorFenced):
                self._append(records, AppendOrigin.COORDINATOR)
            return
        self._append(records, AppendOrigin.COORDINATOR)
        for oracle in (self.oracle, *self.since):
            oracle.mark(
                producer_id,
                epoch,
                offset=offset,
                abort=abort,
                coordinator_epoch=coordinator_epoch,
                timestamp=NOW_MS,
                now_ms=self.clock.now_ms,
            )

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self._remember_snapshot(self.oracle)

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(ms=st.integers(1, 50_000))
    def time_goes_by(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.log.expire_producers(self.clock.now_ms)
        self.oracle.expire(self.clock.now_ms, CONFIG.producer_id_expiration_ms)

    @rule()
    def high_watermark(self) -> None:
        self.log.update_high_watermark(self.log.end_offset)

    @rule()
    def clean_restart(self) -> None:
        self.directory.close()
        self._remember_snapshot(self.oracle)
        self._reopen()

    @precondition(lambda self: self.log.end_offset)
    @rule(checkpoint=st.booleans(), seed=st.integers(0, 99))
    def crash(self, checkpoint: bool, seed: int) -> None:
        """The power goes when all has been flushed: what is replayed begins at one snapshot or another."""
        self.log.flush()
        if checkpoint:
            self.directory.checkpoint()
        self.disk.power_cut(random.Random(seed), Survival.TORN)
        self._reopen()

    def _remember_snapshot(self, oracle: ProducerOracle) -> None:
        snapshot = deepcopy(oracle)
        snapshot.restarted(self.clock.now_ms)
        self.since.append(snapshot)

    def _reopen(self) -> None:
        self.directory = open_directory(self.disk, CONFIG, self.clock)
        self.log = self.directory.logs[TP]
        possible = [oracle for oracle in self.since if self._holds(oracle)]
        assert possible, f"{self.log.producers.describe()} is no replay of what was written"
        self.oracle = deepcopy(possible[0])
        for producer_id, known in self.oracle.known.items():
            known.seen_ms = self.clock.now_ms
            entry = self.log.producers.entry(producer_id)
            known.is_of_snapshot = entry is not None and entry.is_of_snapshot

    def _holds(self, oracle: ProducerOracle) -> bool:
        return {info.producer_id: tuple(info)[1:] for info in self.log.producers.describe()} == {
            producer_id: (
                known.epoch,
                -1 if known.last_sequence is None else known.last_sequence,
                known.last_timestamp,
                known.coordinator_epoch,
                -1 if known.transaction is None else known.transaction,
            )
            for producer_id, known in oracle.known.items()
        } and all(
            [tuple(one) for one in state.batches] == [tuple(one) for one in known.batches[-5:]]
            for producer_id, known in oracle.known.items()
            if (state := self.log.producers.entry(producer_id)) is not None
        )

    @invariant()
    def they_agree(self) -> None:
        assert self._holds(self.oracle), (self.log.producers.describe(), self.oracle.known)

    @invariant()
    def readers_of_committed_records_stop_at_the_first_open_transaction(self) -> None:
        first = self.oracle.first_open()
        assert self.log.last_stable_offset <= (self.log.end_offset if first is None else first)
        if self.log.high_watermark == self.log.end_offset:
            assert self.log.last_stable_offset == (self.log.end_offset if first is None else first)


TestProducersAgainstOracle = ProducersAgainstOracle.TestCase
TestProducersAgainstOracle.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
