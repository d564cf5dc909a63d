"""Directories to be corrupted: every kind of log, stopped in every way. Built once, on a simulated disk; then copied."""

from __future__ import annotations

import random
import uuid
from functools import cache

from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.storage.scrubbing.scrubber import Scrubber
from ottla.testing.sim_disk import SimDisk
from tests.support.cleaning import clean_once
from tests.support.storage import NOW_MS, ROOT, StillClock, batch, marker

CONFIG = LogConfig(index_interval_bytes=300, segment_bytes=1 << 20)
COMPACTING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
OVERRIDES = {"compacted": COMPACTING}
NAMES = ("fresh", "scrubbed", "crashed", "crashed after a look")


def opened(disk: SimDisk, clock: StillClock) -> LogDirectory:
    """The directory as a broker opens it."""
    numbers = random.Random(1)
    return LogDirectory.open(
        disk,
        ROOT,
        clock,
        CONFIG,
        node_id=1,
        cluster_id="cluster",
        topic_overrides=OVERRIDES,
        new_id=lambda: uuid.UUID(int=numbers.getrandbits(128)),
    )


def copy_of(disk: SimDisk) -> SimDisk:
    """Another disk with the same bytes and times; no handle is open on it and no lock held."""
    return disk.killed()[0]


def _new(directory: LogDirectory, topic: str) -> PartitionLog:
    from ottla.storage.config import topic_config

    config = topic_config(CONFIG, OVERRIDES.get(topic, {}))
    return directory.create_log(TopicPartition(topic, 0), uuid.UUID(int=hash_of(topic)), config)


def hash_of(topic: str) -> int:
    """The same in every process."""
    return random.Random(topic).getrandbits(122)


def _plain(log: PartitionLog) -> None:
    """Three segments, four leader epochs, idempotent producers, times that go back and forth."""
    for number in range(36):
        if number in (12, 24):
            log.roll()
        values = [b"%d:%d " % (number, at) * 8 for at in range(1 + number % 3)]
        sequence = number // 4 * 3 if number % 4 == 0 else 0
        log.append(
            batch(
                *values,
                timestamp_ms=NOW_MS + number * 10 - 25 * (number % 4 == 3),
                key=b"k%d" % number,
                producer_id=100 if number % 9 == 0 else -1,
                epoch=0 if number % 9 == 0 else -1,
                sequence=(number // 9) if number % 9 == 0 else -1,
            )
            if number % 9
            else batch(values[0], producer_id=100, epoch=0, sequence=number // 9),
            leader_epoch=number // 10,
            now_ms=NOW_MS,
        )
        del sequence


def _codecs(log: PartitionLog) -> None:
    for number in range(20):
        if number == 10:
            log.roll()
        log.append(
            batch(b"compressed %d " % number * 12, b"and another", timestamp_ms=NOW_MS + number, codec=number % 5),
            leader_epoch=0,
            now_ms=NOW_MS,
        )


def _transactions(log: PartitionLog) -> None:
    """Committed and aborted ones, two of them across a roll, one still open at the end."""
    sequences = {1: 0, 2: 0, 3: 0}

    def write(producer_id: int) -> None:
        records = batch(
            b"of %d " % producer_id * 6,
            producer_id=producer_id,
            epoch=0,
            sequence=sequences[producer_id],
            transactional=True,
        )
        log.append(records, leader_epoch=1, now_ms=NOW_MS)
        sequences[producer_id] += 1

    def end(producer_id: int, *, commit: bool) -> None:
        log.append(
            marker(producer_id, 0, commit=commit), leader_epoch=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )

    for turn in range(5):
        write(1)
        write(2)
        log.append(batch(b"plain %d" % turn), leader_epoch=1, now_ms=NOW_MS)
        end(1, commit=turn % 2 == 0)
        write(2)
        if turn in (1, 3):
            log.roll()
        end(2, commit=turn == 2)
    write(3)


def _compacted(directory: LogDirectory, log: PartitionLog, clock: StillClock) -> None:
    for number in range(40):
        if number in (10, 20, 30):
            log.roll()
        log.append(
            batch(b"value %d " % number * 6, key=b"key %d" % (number % 7), timestamp_ms=NOW_MS + number),
            leader_epoch=number // 15,
            now_ms=NOW_MS,
        )
    log.flush()
    log.update_high_watermark(log.end_offset)
    clean_once(directory, log, clock)
    for number in range(4):
        log.append(batch(b"late %d" % number, key=b"key 1"), leader_epoch=2, now_ms=NOW_MS)


def _trimmed(log: PartitionLog) -> None:
    for number in range(18):
        if number in (6, 12):
            log.roll()
        log.append(
            batch(b"trimmed %d" % number, b"x", timestamp_ms=NOW_MS + number), leader_epoch=number // 5, now_ms=NOW_MS
        )
    log.flush()
    log.update_high_watermark(log.end_offset)
    log.delete_records(9)


@cache
def scenario(name: str) -> SimDisk:
    """One way to stop: `fresh` cleanly and never looked at; `scrubbed` so; `crashed` with all of it on the disk."""
    disk, clock = SimDisk(), StillClock()
    directory = opened(disk, clock)
    _plain(_new(directory, "plain"))
    _codecs(_new(directory, "codecs"))
    _transactions(_new(directory, "transactions"))
    _compacted(directory, _new(directory, "compacted"), clock)
    _trimmed(_new(directory, "trimmed"))
    _new(directory, "empty").begin_epoch(3)
    for log in directory.logs.values():
        log.flush()
        log.update_high_watermark(log.end_offset)
    scrubber = Scrubber(directory, disk)
    looks = list(scrubber.plan_new()) if name in {"fresh", "crashed"} else list(scrubber.plan())
    for work in looks:  # compacted segments get their checksums at once, as between two passes
        scrubber.conclude(work, scrubber.verify(work, lambda size_bytes: None))
    assert not scrubber.findings, scrubber.findings
    directory.checkpoint()
    if name.startswith("crashed"):
        disk.process_died()
    else:
        directory.close(broker_epoch=7)
    return disk
