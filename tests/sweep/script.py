"""What workloads are written in: each call does one thing to a real `LogDirectory` and writes it into the book."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ottla.core.ids import TopicPartition
from ottla.records.batch import BatchHeader, stamp
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.cleaning import choice
from ottla.storage.cleaning.cleaning import begin
from ottla.storage.cleaning.config import CleanerConfig
from ottla.storage.cleaning.plan import CleanedGroup
from ottla.storage.cleaning.run import run_pass
from ottla.storage.cleaning.throttle import Throttle
from ottla.storage.config import LogConfig
from ottla.storage.directory import CheckpointJob, LogDirectory
from ottla.storage.flush import FlushJob
from ottla.storage.log import Origin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, marker
from tests.sweep.book import Book, Life, Written

OTHER = TopicPartition("web", 1)
THIRD = TopicPartition("events.raw", 0)
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


class Checkpoint(NamedTuple):
    """A checkpoint that was begun, and where the logs began then."""

    job: CheckpointJob
    starts: dict[TopicPartition, int]


@dataclass
class Script:
    """A directory that is open, and the book of it."""

    disk: SimDisk
    config: LogConfig = SMALL
    book: Book = field(default_factory=Book)
    clock: StillClock = field(default_factory=StillClock)
    sequences: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    leader_epoch: int = 0
    acks_at_once: bool = False
    made: int = 0  # topics
    passes: int = 0  # of compaction

    @cached_property
    def directory(self) -> LogDirectory:
        return opened(self.disk, self.config, self.clock)

    def log(self, tp: TopicPartition = TP) -> PartitionLog:
        return self.directory.logs[tp]

    def life(self, tp: TopicPartition = TP) -> Life:
        return self.book.lives[tp]

    # Logs come and go -------------------------------------------------------------------------------------------------

    def create(self, tp: TopicPartition = TP) -> None:
        self.made += 1
        self.book.lives[tp] = Life(uuid.UUID(int=100 + self.made), compacts=self.config.compacts)
        self.book.changed()
        self.directory.create_log(tp, self.life(tp).topic_id, self.config)
        self.life(tp).made = True
        self.book.changed()
        self.sequences = {key: value for key, value in self.sequences.items() if key[0] != tp}

    def delete(self, tp: TopicPartition = TP) -> None:
        self.life(tp).may_be_gone = True
        self.book.changed()
        self.directory.delete_log(tp)
        del self.book.lives[tp]
        self.book.changed()

    # Writing ----------------------------------------------------------------------------------------------------------

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
    ) -> None:
        """One batch with a record of each size."""
        life, at = self.life(tp), self.life(tp).end_offset
        rng = random.Random(f"{life.topic_id}:{at}:{self.leader_epoch}")
        records = [
            NewRecord(
                keys[nth] if keys else None,
                None if tombstone else b"%d:%d:" % (at + nth, self.leader_epoch) + rng.randbytes(size),
                self.clock.now_ms - ago_ms + nth,
            )
            for nth, size in enumerate(sizes)
        ]
        sequence = -1
        if producer_id >= 0:
            sequence = self.sequences.get((tp, producer_id), 0)
            self.sequences[tp, producer_id] = (sequence + len(sizes)) % (1 << 31)
        raw = build_batch(
            records, producer_id=producer_id, producer_epoch=producer_epoch if producer_id >= 0 else -1,
            base_sequence=sequence, codec=codec, transactional=transactional,
        )  # fmt: skip
        self._append(tp, raw, tuple(record.timestamp_ms for record in records), Origin.CLIENT)

    def mark(
        self, producer_id: int, *, commit: bool, tp: TopicPartition = TP, epoch: int = 0, coordinator_epoch: int = 0
    ) -> None:
        """The end of a transaction."""
        raw = marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
        self._append(tp, bytearray(raw), (NOW_MS,), Origin.COORDINATOR, (not commit, coordinator_epoch))

    def _append(
        self, tp: TopicPartition, raw: bytearray, times: tuple[int, ...], origin: Origin,
        decided: tuple[bool, int] | None = None,
    ) -> None:  # fmt: skip
        life, at = self.life(tp), self.life(tp).end_offset
        expected = bytearray(raw)
        stamp(expected, 0, base_offset=at, leader_epoch=self.leader_epoch)
        last = at + BatchHeader(raw).last_offset_delta
        self._note_epoch(life, self.leader_epoch, at)
        life.batches.append(Written(at, last, bytes(expected), times, decided))
        self.book.changed()
        appended = self.log(tp).append(
            memoryview(raw), leader_epoch=self.leader_epoch, now_ms=self.clock.now_ms, origin=origin
        )
        assert (appended.first_offset, appended.last_offset) == (at, last)
        life.written = last + 1
        if self.acks_at_once:
            life.flushed = life.written
        self.book.changed()

    def replicate(self, *batches: tuple[int, int], tp: TopicPartition = TP, size: int = 100) -> None:
        """Batches as a leader sends them: how many offsets to leap over first, and how many records."""
        life, at = self.life(tp), self.life(tp).end_offset
        sent = bytearray()
        for leap, count in batches:
            at += leap
            rng = random.Random(f"{life.topic_id}:{at}:{self.leader_epoch}")
            records = [NewRecord(b"k%d" % nth, rng.randbytes(size), self.clock.now_ms) for nth in range(count)]
            raw = build_batch(records, base_offset=at, leader_epoch=self.leader_epoch)
            self._note_epoch(life, self.leader_epoch, at)
            life.batches.append(Written(at, at + count - 1, bytes(raw), (self.clock.now_ms,) * count))
            sent += raw
            at += count
        self.book.changed()
        self.log(tp).append_replicated(memoryview(sent), now_ms=self.clock.now_ms)
        life.written = at
        self.book.changed()

    def begin_epoch(self, epoch: int, *, tp: TopicPartition = TP) -> None:
        self.leader_epoch = epoch
        self._note_epoch(self.life(tp), epoch, self.life(tp).end_offset)
        self.log(tp).begin_epoch(epoch)

    def _note_epoch(self, life: Life, epoch: int, start: int) -> None:
        if (epoch, start) not in life.epochs:
            life.epochs.append((epoch, start))
            self.book.changed()

    def roll(self, tp: TopicPartition = TP) -> None:
        self.log(tp).roll()

    # Durability -------------------------------------------------------------------------------------------------------

    def flush(self, tp: TopicPartition = TP) -> None:
        self.complete_flush(self.begin_flush(tp), tp)

    def begin_flush(self, tp: TopicPartition = TP) -> FlushJob:
        return self.log(tp).begin_flush()

    def complete_flush(self, job: FlushJob, tp: TopicPartition = TP) -> None:
        job.run()
        log, life = self.log(tp), self.life(tp)
        log.complete_flush(job)
        life.flushed = max(life.flushed, min(log.flushed_offset, life.end_offset))
        life.surely_there = True
        self.book.changed()
        log.update_high_watermark(log.flushed_offset)

    def checkpoint(self) -> None:
        self.run_checkpoint(self.begin_checkpoint())

    def begin_checkpoint(self) -> Checkpoint:
        job = self.directory.begin_checkpoint()
        return Checkpoint(job, {tp: log.log_start_offset for tp, log in self.directory.logs.items()})

    def run_checkpoint(self, checkpoint: Checkpoint) -> None:
        """What it says of log starts is durable afterwards, unless a newer one had overtaken it."""
        overtaken = checkpoint.job._number != checkpoint.job._newest[0]
        checkpoint.job.run()
        for tp, start in checkpoint.starts.items():
            if not overtaken and tp in self.book.lives:
                self.life(tp).start_least = max(self.life(tp).start_least, start)
        self.book.changed()

    def stop(self, *, broker_epoch: int = 3) -> None:
        self.directory.close(broker_epoch=broker_epoch)
        for life in self.book.lives.values():
            life.flushed, life.surely_there, life.start_least = life.end_offset, True, life.start_most
        self.book.changed()

    def start(self) -> None:
        """Open the directory again, after `stop` or after the process died."""
        del self.directory
        for tp, log in self.directory.logs.items():
            life = self.life(tp)
            assert log.end_offset == life.end_offset, "a restart lost something"
            life.flushed, life.surely_there = life.end_offset, True
            life.bases.add(log.segments[0].base_offset)
            log.update_high_watermark(log.end_offset)
        self.book.changed()

    def die(self) -> None:
        """Kill -9, and start again: all that was written is there, and recovery looks at all of it."""
        self.disk.process_died()
        self.start()

    # Compaction -------------------------------------------------------------------------------------------------------

    def clean(self, tp: TopicPartition = TP, *, keys_max: int = 1000, may_be_done: bool = False) -> None:
        """One pass as the broker does it: its gaps are noted, groups swapped in, how far it came is noted last."""
        life, log, directory = self.life(tp), self.log(tp), self.directory
        life.tombstones_may_go = life.cleaned and self.clock.now_ms >= life.horizon_ms
        if not life.cleaned:
            life.cleaned, life.horizon_ms = True, self.clock.now_ms + log.config.delete_retention_ms
        self.book.changed()
        directory.note_gaps(log)
        chosen = choice.candidate(log, directory.cleaned.get(tp), now_ms=self.clock.now_ms)
        assert chosen is not None or may_be_done, "nothing to clean"
        if chosen is None:
            return
        self.passes += 1
        small = CleanerConfig(dedupe_buffer_bytes=keys_max * 24, load_factor=1.0)
        cleaning = begin(chosen, small, token=f"pass{self.passes}", now_ms=self.clock.now_ms)
        throttle = Throttle(1e300, clock=self.clock, sleep=lambda seconds: None)
        for step in run_pass(cleaning.plan, self.disk, clock=self.clock, throttle=throttle):
            if isinstance(step, CleanedGroup):
                assert not cleaning.swap_in(step)
            else:
                self.disk.sync_directory(log.directory)
                directory.cleaned[tp] = step.end_offset
                directory.checkpoint()
        cleaning.discard()

    def leave_as_kafka_does(self, *names_and_data: tuple[str, bytes], tp: TopicPartition = TP) -> None:
        """Files that another broker has left in the middle of something, all of them durable."""
        for name, data in names_and_data:
            file = self.disk.open(self.log(tp).directory / name, create=True)
            file.append(data)
            file.sync()
        self.disk.sync_directory(self.log(tp).directory)

    # Taking away ------------------------------------------------------------------------------------------------------

    def truncate(self, offset: int, tp: TopicPartition = TP) -> None:
        life = self.life(tp)
        kept = [batch for batch in life.batches if batch.last_offset < offset]
        end = kept[-1].last_offset + 1 if kept else life.start_most
        life.flushed, life.written = min(life.flushed, end), min(life.written, end)
        self.book.changed()
        self.log(tp).truncate_to(offset)
        life.batches, life.empty_at = kept, end
        life.epochs = [(epoch, start) for epoch, start in life.epochs if start < end]
        self.book.changed()
        assert self.log(tp).end_offset == end
        for producer_id in {key[1] for key in self.sequences if key[0] == tp}:
            known = self.log(tp).producer_states.get(producer_id)
            self.sequences[tp, producer_id] = known.last_sequence + 1 if known else 0

    def restart_at(self, offset: int, tp: TopicPartition = TP) -> None:
        life = self.life(tp)
        life.may_be_empty, life.flushed, life.written = True, 0, 0
        life.start_most = max(life.start_most, offset)
        self.book.changed()
        self.log(tp).restart_at(offset)
        self.book.lives[tp] = Life(
            life.topic_id, empty_at=offset, start_least=offset, start_most=offset, made=True, surely_there=True, bases={offset},
            flushed=offset, written=offset,
        )  # fmt: skip
        self.book.changed()

    def delete_records(self, before: int, tp: TopicPartition = TP) -> None:
        self.life(tp).start_most = before
        self.book.changed()
        assert self.log(tp).delete_records(before) == before

    def retain(self, tp: TopicPartition = TP) -> int:
        """Retention; how many segments went."""
        life, log = self.life(tp), self.log(tp)
        life.start_most = max(life.start_most, life.flushed)
        self.book.changed()
        gone = log.delete_old_segments(self.clock.now_ms)
        life.start_most = log.log_start_offset
        life.bases.add(log.segments[0].base_offset)
        self.book.changed()
        return gone

    def purge(self) -> None:
        """The delay of deleted files is over."""
        self.clock.now_ms += DELETE_DELAY_MS
        self.directory.purge_deleted(self.clock.now_ms)
