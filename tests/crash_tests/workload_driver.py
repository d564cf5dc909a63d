"""Runs the steps of workloads: each call does one thing to a real `LogDirectory` and records what is expected after it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple

from ottla.core.ids import TopicPartition
from ottla.records.batch import BatchHeader, stamp
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.cleaning import log_to_clean
from ottla.storage.cleaning.cleaner import run_pass
from ottla.storage.cleaning.cleaner_config import CleanerConfig
from ottla.storage.cleaning.cleaning_pass import start_cleaning
from ottla.storage.cleaning.cleaning_plan import CleanedGroup
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.config import LogConfig
from ottla.storage.directories.checkpoint_job import CheckpointJob
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.crash_tests.expected_state import ExpectedLog, ExpectedState, Written
from tests.crash_tests.moves import StepwiseMove
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, marker

OTHER = TopicPartition("web", 1)
THIRD = TopicPartition("events.raw", 0)
SECOND = PurePosixPath("/more")
SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=300)
DELETE_DELAY_MS = SMALL.file_delete_delay_ms


def opened(disk: SimDisk, config: LogConfig, clock: StillClock) -> LogDirectory:
    """The directory, as every start opens it."""
    numbers = random.Random(1)
    return LogDirectory.open(
        disk,
        ROOT,
        clock,
        config,
        node_id=1,
        cluster_id="cluster",
        new_id=lambda: uuid.UUID(int=numbers.getrandbits(128)),
    )


def opened_all(
    disk: SimDisk, config: LogConfig, clock: StillClock, paths: Sequence[PurePosixPath]
) -> tuple[LogDirectory, ...]:
    """All log directories, as every start opens them."""
    if list(paths) == [ROOT]:
        return (opened(disk, config, clock),)
    numbers = random.Random(disk.changes)
    manager = LogManager.open(
        disk,
        paths,
        clock,
        config,
        node_id=1,
        cluster_id="cluster",
        new_id=lambda: uuid.UUID(int=numbers.getrandbits(128)),
    )
    for unusable in manager.unusable:
        raise unusable.error
    return manager.opened


class Checkpoint(NamedTuple):
    """A checkpoint that was begun, and where the logs began then."""

    job: CheckpointJob
    starts: dict[TopicPartition, int]


@dataclass
class WorkloadDriver:
    """An open log directory, or two, and what is expected of it."""

    disk: SimDisk
    config: LogConfig = SMALL
    expected_state: ExpectedState = field(default_factory=ExpectedState)
    clock: StillClock = field(default_factory=StillClock)
    sequences: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    leader_epoch: int = 0
    acks_at_once: bool = False
    made: int = 0  # topics
    passes: int = 0  # of compaction

    paths: tuple[PurePosixPath, ...] = (ROOT,)
    moves: dict[TopicPartition, StepwiseMove] = field(default_factory=dict)

    @cached_property
    def directories(self) -> tuple[LogDirectory, ...]:
        return opened_all(self.disk, self.config, self.clock, self.paths)

    @property
    def directory(self) -> LogDirectory:
        """The first one."""
        return self.directories[0]

    def directory_of(self, tp: TopicPartition = TP) -> LogDirectory:
        (found,) = (each for each in self.directories if tp in each.logs)
        return found

    def log(self, tp: TopicPartition = TP) -> PartitionLog:
        return self.directory_of(tp).logs[tp]

    def expected_log(self, tp: TopicPartition = TP) -> ExpectedLog:
        return self.expected_state.logs[tp]

    # ---- Creation and deletion

    def create(self, tp: TopicPartition = TP) -> None:
        self.made += 1
        self.expected_state.logs[tp] = ExpectedLog(uuid.UUID(int=100 + self.made), compacts=self.config.is_compacted)
        self.expected_state.changed()
        self.directory.create_log(tp, self.expected_log(tp).topic_id, self.config)
        self.expected_log(tp).made = True
        self.expected_state.changed()
        self.sequences = {key: value for key, value in self.sequences.items() if key[0] != tp}

    def delete(self, tp: TopicPartition = TP) -> None:
        self.expected_log(tp).may_be_gone = True
        self.expected_state.changed()
        self.directory_of(tp).delete_log(tp)
        self.moves.pop(tp, None)
        for each in self.directories:
            each.delete_future_log(tp)
        del self.expected_state.logs[tp]
        self.expected_state.changed()

    # ---- Writing

    def append(
        self,
        *sizes: int,
        tp: TopicPartition = TP,
        producer_id: int = -1,
        producer_epoch: int = 0,
        transactional: bool = False,
        codec: int = 0,
        keys: Sequence[bytes | None] | None = None,
        tombstone: bool = False,
        ago_ms: int = 0,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None:
        """One batch with a record of each size; those of a coordinator have no sequence."""
        expected_log, at = self.expected_log(tp), self.expected_log(tp).end_offset
        rng = random.Random(f"{expected_log.topic_id}:{at}:{self.leader_epoch}")
        records = [
            NewRecord(
                keys[nth] if keys else None,
                None if tombstone else b"%d:%d:" % (at + nth, self.leader_epoch) + rng.randbytes(size),
                self.clock.now_ms - ago_ms + nth,
            )
            for nth, size in enumerate(sizes)
        ]
        sequence = -1
        if producer_id >= 0 and origin is AppendOrigin.CLIENT:
            sequence = self.sequences.get((tp, producer_id), 0)
            self.sequences[tp, producer_id] = (sequence + len(sizes)) % (1 << 31)
        raw = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch if producer_id >= 0 else -1,
            base_sequence=sequence,
            codec=codec,
            transactional=transactional,
        )
        self._append(tp, raw, tuple(record.timestamp_ms for record in records), origin)

    def mark(
        self, producer_id: int, *, commit: bool, tp: TopicPartition = TP, epoch: int = 0, coordinator_epoch: int = 0
    ) -> None:
        """The end of a transaction."""
        raw = marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
        self._append(tp, bytearray(raw), (NOW_MS,), AppendOrigin.COORDINATOR, (not commit, coordinator_epoch))

    def _append(
        self,
        tp: TopicPartition,
        raw: bytearray,
        times: tuple[int, ...],
        origin: AppendOrigin,
        decided: tuple[bool, int] | None = None,
    ) -> None:
        expected_log, at = self.expected_log(tp), self.expected_log(tp).end_offset
        expected = bytearray(raw)
        stamp(expected, 0, base_offset=at, leader_epoch=self.leader_epoch)
        last = at + BatchHeader(raw).last_offset_delta
        self._note_epoch(expected_log, self.leader_epoch, at)
        expected_log.batches.append(Written(at, last, bytes(expected), times, decided))
        self.expected_state.changed()
        appended = self.log(tp).append(
            memoryview(raw), leader_epoch=self.leader_epoch, now_ms=self.clock.now_ms, origin=origin
        )
        assert (appended.first_offset, appended.last_offset) == (at, last)
        expected_log.written = last + 1
        if self.acks_at_once:
            expected_log.flushed = expected_log.written
        self.expected_state.changed()

    def replicate(self, *batches: tuple[int, int], tp: TopicPartition = TP, size: int = 100) -> None:
        """Batches as a leader sends them: how many offsets to leap over first, and how many records."""
        expected_log, at = self.expected_log(tp), self.expected_log(tp).end_offset
        sent = bytearray()
        for leap, count in batches:
            at += leap
            rng = random.Random(f"{expected_log.topic_id}:{at}:{self.leader_epoch}")
            records = [NewRecord(b"k%d" % nth, rng.randbytes(size), self.clock.now_ms) for nth in range(count)]
            raw = build_batch(records, base_offset=at, leader_epoch=self.leader_epoch)
            self._note_epoch(expected_log, self.leader_epoch, at)
            expected_log.batches.append(Written(at, at + count - 1, bytes(raw), (self.clock.now_ms,) * count))
            sent += raw
            at += count
        self.expected_state.changed()
        self.log(tp).append_as_follower(memoryview(sent), now_ms=self.clock.now_ms)
        expected_log.written = at
        self.expected_state.changed()

    def begin_epoch(self, epoch: int, *, tp: TopicPartition = TP) -> None:
        self.leader_epoch = epoch
        self._note_epoch(self.expected_log(tp), epoch, self.expected_log(tp).end_offset)
        self.log(tp).begin_epoch(epoch)

    def _note_epoch(self, expected_log: ExpectedLog, epoch: int, start: int) -> None:
        if (epoch, start) not in expected_log.epochs:
            expected_log.epochs.append((epoch, start))
            self.expected_state.changed()

    def roll(self, tp: TopicPartition = TP) -> None:
        self.log(tp).roll()

    # ---- Durability

    def flush(self, tp: TopicPartition = TP) -> None:
        self.complete_flush(self.begin_flush(tp), tp)

    def begin_flush(self, tp: TopicPartition = TP) -> FlushJob:
        return self.log(tp).begin_flush()

    def complete_flush(self, job: FlushJob, tp: TopicPartition = TP) -> None:
        job.run()
        log, expected_log = self.log(tp), self.expected_log(tp)
        log.complete_flush(job)
        expected_log.flushed = max(expected_log.flushed, min(log.flushed_offset, expected_log.end_offset))
        expected_log.surely_there = True
        self.expected_state.changed()
        log.update_high_watermark(log.flushed_offset)

    def checkpoint(self) -> None:
        for at in range(len(self.directories)):
            self.run_checkpoint(self.begin_checkpoint(at))

    def begin_checkpoint(self, at: int = 0) -> Checkpoint:
        job = self.directories[at].begin_checkpoint()
        return Checkpoint(job, {tp: log.log_start_offset for tp, log in self.directories[at].logs.items()})

    def run_checkpoint(self, checkpoint: Checkpoint) -> None:
        """What it says of log starts is durable afterwards, unless a newer one had overtaken it."""
        overtaken = checkpoint.job._number != checkpoint.job._newest[0]
        checkpoint.job.run()
        for tp, start in checkpoint.starts.items():
            if not overtaken and tp in self.expected_state.logs:
                self.expected_log(tp).start_least = max(self.expected_log(tp).start_least, start)
        self.expected_state.changed()

    def stop(self, *, broker_epoch: int = 3) -> None:
        self.moves.clear()
        for each in self.directories:
            each.close(broker_epoch=broker_epoch)
        for expected_log in self.expected_state.logs.values():
            expected_log.flushed, expected_log.surely_there, expected_log.start_least = (
                expected_log.end_offset,
                True,
                expected_log.start_most,
            )
        self.expected_state.changed()

    def start(self) -> None:
        """Open the directory again, after `stop` or after the process died."""
        del self.directories
        self.moves.clear()
        for tp, log in [item for each in self.directories for item in each.logs.items()]:
            expected_log = self.expected_log(tp)
            assert log.end_offset == expected_log.end_offset, "a restart lost something"
            expected_log.flushed, expected_log.surely_there = expected_log.end_offset, True
            expected_log.bases.add(log.segments[0].base_offset)
            log.update_high_watermark(log.end_offset)
        for each in self.directories:
            for tp in each.future_logs:
                each.truncate_to_certain(tp)
        self.expected_state.changed()

    def die(self) -> None:
        """Kill -9, and start again: all that was written is there, and recovery looks at all of it."""
        self.disk.process_died()
        self.start()

    # ---- Compaction

    def clean(self, tp: TopicPartition = TP, *, keys_max: int = 1000, may_be_done: bool = False) -> None:
        """One pass as the broker does it: its gaps are noted, groups swapped in, how far it came is noted last."""
        expected_log, log, directory = self.expected_log(tp), self.log(tp), self.directory_of(tp)
        expected_log.tombstones_may_go = expected_log.cleaned and self.clock.now_ms >= expected_log.horizon_ms
        if not expected_log.cleaned:
            expected_log.cleaned, expected_log.horizon_ms = True, self.clock.now_ms + log.config.delete_retention_ms
        self.expected_state.changed()
        log.note_gaps()
        chosen = log_to_clean.log_to_clean(log, now_ms=self.clock.now_ms)
        assert chosen is not None or may_be_done, "nothing to clean"
        if chosen is None:
            return
        self.passes += 1
        small = CleanerConfig(dedupe_buffer_bytes=keys_max * 24, load_factor=1.0)
        cleaning = start_cleaning(chosen, small, token=f"pass{self.passes}", now_ms=self.clock.now_ms)
        throttle = Throttler(1e300, clock=self.clock, sleep=lambda seconds: None)
        for step in run_pass(cleaning.plan, self.disk, clock=self.clock, throttle=throttle):
            if isinstance(step, CleanedGroup):
                assert not cleaning.swap_in(step)
            else:
                self.disk.sync_directory(log.directory)
                log.cleaner_line.cleaned_to(step.end_offset)
                directory.checkpoint()
        cleaning.discard()

    def leave_as_kafka_does(self, *names_and_data: tuple[str, bytes], tp: TopicPartition = TP) -> None:
        """Files that another broker has left in the middle of something, all of them durable."""
        for name, data in names_and_data:
            file = self.disk.open(self.log(tp).directory / name, create=True)
            file.append(data)
            file.sync()
        self.disk.sync_directory(self.log(tp).directory)

    # ---- Deletion and truncation

    def truncate(self, offset: int, tp: TopicPartition = TP) -> None:
        expected_log = self.expected_log(tp)
        kept = [batch for batch in expected_log.batches if batch.last_offset < offset]
        end = kept[-1].last_offset + 1 if kept else expected_log.start_most
        expected_log.flushed, expected_log.written = min(expected_log.flushed, end), min(expected_log.written, end)
        self.expected_state.changed()
        self.log(tp).truncate_to(offset)
        expected_log.batches, expected_log.empty_at = kept, end
        expected_log.epochs = [(epoch, start) for epoch, start in expected_log.epochs if start < end]
        self.expected_state.changed()
        assert self.log(tp).end_offset == end
        for producer_id in {key[1] for key in self.sequences if key[0] == tp}:
            known = self.log(tp).producers.entry(producer_id)
            self.sequences[tp, producer_id] = known.last_sequence + 1 if known else 0

    def restart_at(self, offset: int, tp: TopicPartition = TP) -> None:
        expected_log = self.expected_log(tp)
        expected_log.may_be_empty, expected_log.flushed, expected_log.written = True, 0, 0
        expected_log.start_most = max(expected_log.start_most, offset)
        self.expected_state.changed()
        self.log(tp).truncate_fully_and_start_at(offset)
        self.expected_state.logs[tp] = ExpectedLog(
            expected_log.topic_id,
            empty_at=offset,
            start_least=offset,
            start_most=offset,
            made=True,
            surely_there=True,
            bases={offset},
            flushed=offset,
            written=offset,
        )
        self.expected_state.changed()

    def delete_records(self, before: int, tp: TopicPartition = TP) -> None:
        self.expected_log(tp).start_most = before
        self.expected_state.changed()
        assert self.log(tp).delete_records(before) == before

    def retain(self, tp: TopicPartition = TP) -> int:
        """Retention; how many segments went."""
        expected_log, log = self.expected_log(tp), self.log(tp)
        expected_log.start_most = max(expected_log.start_most, expected_log.flushed)
        self.expected_state.changed()
        gone = log.delete_old_segments(self.clock.now_ms)
        expected_log.start_most = log.log_start_offset
        expected_log.bases.add(log.segments[0].base_offset)
        self.expected_state.changed()
        return gone

    def purge(self) -> None:
        """The delay of deleted files is over."""
        self.clock.now_ms += DELETE_DELAY_MS
        for each in self.directories:
            each.purge_deleted(self.clock.now_ms)

    # ---- Moves between log directories

    def begin_move(self, tp: TopicPartition = TP) -> None:
        """Begin to copy a log to the other directory."""
        source, log = self.directory_of(tp), self.log(tp)
        (target,) = (each for each in self.directories if each is not source)
        target.create_future_log(log)

    def move(self, steps: int = 1, tp: TopicPartition = TP) -> bool:
        """Copy and sync a part of a log, or let the copy replace it; return whether it did."""
        move = self.moves.get(tp)
        if move is None:
            move = self.moves[tp] = StepwiseMove(self.directories, tp, self.clock)
        expected_log = self.expected_log(tp)
        (future,) = (each.future_logs[tp] for each in self.directories if tp in each.future_logs)
        expected_log.bases |= {future.segments[0].base_offset, self.log(tp).log_start_offset}
        is_moved = move.run(steps)
        if is_moved:
            del self.moves[tp]
            log = self.log(tp)
            assert log is future
            expected_log.flushed = expected_log.written = expected_log.end_offset
            expected_log.surely_there = True
            expected_log.start_least = max(expected_log.start_least, log.log_start_offset)
            expected_log.bases.add(log.segments[0].base_offset)
            self.expected_state.changed()
            assert log.end_offset == expected_log.end_offset, "the copy lacks something"
        return is_moved

    def finish_move(self, tp: TopicPartition = TP) -> None:
        assert self.move(500, tp)

    def cancel_move(self, tp: TopicPartition = TP) -> None:
        self.moves.pop(tp, None)
        for each in self.directories:
            each.delete_future_log(tp)
