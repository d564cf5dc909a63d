"""The workloads, which are stopped at every change of the disk. Short on purpose: a stop must be reached thousands of times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

from ottla.core.files import read_file
from ottla.storage.config import LogConfig
from ottla.storage.file_names import LOG_SUFFIX, offset_name
from ottla.storage.log.append_info import AppendOrigin
from tests.crash_tests.workload_driver import OTHER, SECOND, SMALL, THIRD, WorkloadDriver
from tests.support.storage import ROOT, TP


class Workload(NamedTuple):
    """A workload and what it needs."""

    name: str
    run: Callable[[WorkloadDriver], None]
    config: LogConfig
    acks_at_once: bool = False  # what is written counts as acknowledged, as with `durability=page-cache`
    paths: tuple[PurePosixPath, ...] = (ROOT,)  # of the log directories


def appends(s: WorkloadDriver) -> None:
    """Append batches from a few bytes to several pages, in every codec, with flushes between."""
    s.create()
    s.append(10)
    s.append(900, 100)
    s.flush()
    s.append(5000)
    s.append(30, 30, 30)
    s.flush()
    s.append(9000, 10)
    job = s.begin_flush()
    s.append(700)
    s.complete_flush(job)
    for codec in range(1, 5):
        s.append(300, 300, codec=codec)
    s.flush()
    s.append(1, ago_ms=5000)
    s.append(4200)
    s.append(2)


def reserved_space(s: WorkloadDriver) -> None:
    """Append over zeros that were written ahead, and that rolls, a truncation and a stop remove."""
    s.create()
    s.append(16_400)
    s.flush()
    for size in (10, 300, 900):
        s.append(size)
        s.flush()
    job = s.begin_flush()
    s.append(30)
    s.append(1500)
    s.complete_flush(job)
    s.append(60)
    s.flush()
    s.truncate(4)
    s.append(700)
    s.append(700)
    s.flush()
    s.die()
    s.append(900)
    s.append(40)
    s.roll()
    s.append(16_400)
    s.append(40)
    s.flush()
    s.append(40)
    s.stop()
    s.start()
    s.append(40)
    s.append(40)
    s.flush()
    s.append(40)


def rolls(s: WorkloadDriver) -> None:
    """Fill segments, with a flush after one roll, two rolls and none."""
    s.create()
    for _ in range(4):
        s.append(600)
    s.flush()
    s.append(600)
    s.append(600)
    s.roll()
    s.flush()
    s.checkpoint()
    for size in (100, 1200, 1200, 1200):
        s.append(size)
    s.flush()
    s.roll()
    s.append(50)
    s.checkpoint()
    s.append(1300)
    s.append(1300)
    s.flush()


def epochs(s: WorkloadDriver) -> None:
    """Begin leader epochs, some of them without a record."""
    s.create()
    s.begin_epoch(1)
    s.append(200)
    s.append(200)
    s.flush()
    s.begin_epoch(2)
    s.begin_epoch(4)
    s.append(900)
    s.begin_epoch(5)
    s.flush()
    s.append(900)
    s.checkpoint()
    s.begin_epoch(6)
    s.append(10)
    s.flush()
    s.truncate(3)
    s.leader_epoch = 4  # what comes instead may be older than what was cut
    s.append(20)
    s.stop()
    s.start()
    s.begin_epoch(8)
    s.append(20)
    s.flush()
    s.begin_epoch(9)
    s.append(700)
    s.append(700)


def producers(s: WorkloadDriver) -> None:
    """Append as idempotent producers, over rolls, restarts and new producer epochs."""
    s.create()
    for at in range(6):
        s.append(100, producer_id=7)
        s.append(60, 60, producer_id=8 + at % 2)
    s.flush()
    s.roll()
    for _ in range(3):
        s.append(300, producer_id=7)
        s.append(300, producer_id=9)
    s.checkpoint()
    s.flush()
    s.checkpoint()
    s.append(500, producer_id=11)
    s.sequences[TP, 7] = 0
    s.append(500, producer_id=7, producer_epoch=1)
    s.append(500, producer_id=7, producer_epoch=1)
    s.flush()
    s.die()
    s.append(100, producer_id=7, producer_epoch=1)
    s.append(100, producer_id=11)
    s.flush()


def transactions(s: WorkloadDriver) -> None:
    """Interleave open, committed and aborted transactions, over rolls, a truncation and a restart."""
    s.create()
    s.append(100, producer_id=20, transactional=True)
    s.append(100, producer_id=21, transactional=True)
    s.append(100)
    s.mark(20, commit=False)
    s.flush()
    s.append(400, producer_id=20, transactional=True)
    s.mark(21, commit=True)
    s.roll()
    s.append(400, producer_id=22, transactional=True)
    s.mark(20, commit=False, coordinator_epoch=2)
    s.flush()
    s.checkpoint()
    s.append(700, producer_id=21, transactional=True)
    s.mark(22, commit=False)
    s.append(700, producer_id=20, transactional=True)
    s.mark(21, commit=False)
    s.flush()
    s.truncate(11)
    s.mark(21, commit=True)
    s.append(100, producer_id=23, transactional=True)
    s.mark(23, commit=False)
    s.stop()
    s.start()
    s.append(100, producer_id=23, transactional=True)
    s.mark(23, commit=False)
    s.flush()


def offset_commits(s: WorkloadDriver) -> None:
    """Append offsets that groups commit in transactions: without sequences, each transaction with a higher epoch."""
    s.create()
    for epoch in range(3):
        for producer_id in (30, 31):
            s.append(
                200,
                50,
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=True,
                origin=AppendOrigin.COORDINATOR,
            )
        s.append(100)
        s.mark(30, commit=epoch == 1, epoch=epoch + 1, coordinator_epoch=epoch)
        s.flush()
        s.append(100, producer_id=31, producer_epoch=epoch, transactional=True, origin=AppendOrigin.COORDINATOR)
        s.mark(31, commit=False, epoch=epoch + 1)
        s.checkpoint()
    s.append(300, producer_id=30, producer_epoch=3, transactional=True, origin=AppendOrigin.COORDINATOR)
    s.roll()
    s.stop()
    s.start()
    s.append(100, producer_id=30, producer_epoch=3, transactional=True, origin=AppendOrigin.COORDINATOR)
    s.flush()
    s.mark(30, commit=False, epoch=4, coordinator_epoch=2)
    s.flush()


def truncations(s: WorkloadDriver) -> None:
    """Truncate inside a segment, across segments, after and before the flushed end, and inside the first batch."""
    s.create()
    for _ in range(5):
        s.append(300, 300, producer_id=5)
    s.flush()
    s.checkpoint()
    s.truncate(7)
    s.leader_epoch = 1
    s.append(600)
    s.append(600)
    s.flush()
    s.append(600)
    s.append(600)
    s.truncate(9)
    s.leader_epoch = 2
    for _ in range(3):
        s.append(600)
    s.flush()
    s.checkpoint()
    s.truncate(2)
    s.leader_epoch = 3
    s.append(100)
    s.append(1400)
    s.flush()
    s.truncate(1)
    s.leader_epoch = 4
    s.append(100, producer_id=5)
    s.flush()


def deletions(s: WorkloadDriver) -> None:
    """Delete by DeleteRecords and by retention, with checkpoints before and after, until the files are removed."""
    s.create()
    for _ in range(6):
        s.append(500, producer_id=3)
    s.flush()
    s.delete_records(1)
    s.checkpoint()
    s.append(500)
    s.delete_records(3)
    assert s.retain() == 1
    s.checkpoint()
    s.delete_records(5)
    s.flush()
    s.checkpoint()
    assert s.retain() == 1
    s.append(500)
    s.checkpoint()
    s.purge()
    s.flush()
    s.leader_epoch = 2
    s.append(500)
    s.append(500)
    s.flush()
    s.clock.now_ms += 10_000
    assert s.retain() > 1
    s.append(100, producer_id=3)
    s.flush()
    s.checkpoint()
    s.purge()
    for _ in range(3):
        s.append(700)
    s.roll()
    s.append(700)
    s.flush()
    s.delete_records(s.log().segments[1].base_offset)
    s.checkpoint()
    assert s.retain() == 1
    s.checkpoint()
    s.append(10)


def topics(s: WorkloadDriver) -> None:
    """Create topics, delete them, and create them again under the same name."""
    s.create()
    s.create(OTHER)
    s.append(100)
    s.append(100, tp=OTHER)
    s.flush()
    s.checkpoint()
    s.append(2000)
    s.delete()
    s.create(THIRD)
    s.create()
    s.append(50, tp=THIRD)
    s.append(60)
    s.append(1400)
    s.append(1400)
    s.flush()
    s.checkpoint()
    s.flush(THIRD)
    s.delete(OTHER)
    s.delete()
    s.create()
    s.append(70)
    s.purge()
    s.flush()
    s.delete(THIRD)
    s.create(THIRD)
    s.checkpoint()
    s.append(10, tp=THIRD)
    s.flush(THIRD)


def checkpoints(s: WorkloadDriver) -> None:
    """Write checkpoints that finish late, after later flushes and truncations."""
    s.create()
    s.append(300)
    s.checkpoint()
    s.flush()
    early = s.begin_checkpoint()
    for _ in range(4):
        s.append(700)
    s.flush()
    s.run_checkpoint(early)
    slow = s.begin_checkpoint()
    s.truncate(2)
    s.leader_epoch = 1
    s.run_checkpoint(slow)
    s.append(900)
    s.append(900)
    s.flush()
    slow = s.begin_checkpoint()
    s.delete_records(2)
    s.checkpoint()
    s.run_checkpoint(slow)
    s.append(900)
    s.checkpoint()
    for _ in range(3):
        s.append(1400)
    s.checkpoint()
    s.append(1400)
    s.checkpoint()


def stops(s: WorkloadDriver) -> None:
    """Stop and start cleanly, with kills between."""
    s.create()
    s.append(100, producer_id=4)
    s.stop()
    s.start()
    s.append(700, producer_id=4)
    s.append(900, producer_id=4)
    s.create(OTHER)
    s.append(40, tp=OTHER)
    s.stop()
    s.start()
    s.stop()
    s.start()
    s.append(900, producer_id=4)
    s.die()
    s.append(900, producer_id=4)
    s.stop()
    s.start()
    s.append(50)
    s.flush()


def followers(s: WorkloadDriver) -> None:
    """Append what a leader sends, with gaps from its compaction, truncations, and a new start offset far ahead."""
    s.leader_epoch = 1
    s.create()
    s.replicate((0, 2), (3, 1))
    s.flush()
    s.replicate((5, 3))
    s.replicate((0, 1), (0, 1), (2, 4))
    s.roll()
    s.leader_epoch = 2
    s.replicate((1, 2), (0, 5))
    s.flush()
    s.checkpoint()
    s.truncate(14)
    s.leader_epoch = 3
    s.replicate((0, 2))
    s.flush()
    s.replicate((0, 3))
    s.restart_at(1000)
    s.leader_epoch = 4
    s.replicate((0, 2), (1, 1))
    s.flush()
    s.checkpoint()
    s.replicate((0, 6))


def page_cache(s: WorkloadDriver) -> None:
    """Append without flushes except at rolls and stops; a record counts as acknowledged when it is written."""
    s.create()
    for size in (100, 6000, 700, 700, 700, 40):
        s.append(size, producer_id=1)
    s.checkpoint()
    s.roll()
    s.append(5000)
    s.truncate(5)
    s.leader_epoch = 1
    s.append(50)
    s.die()
    s.append(900)


def compactions(s: WorkloadDriver) -> None:
    """Compact values, tombstones and batches of producers, with an offset map that is too small, and restarts between."""
    s.create()
    s.append(300, 300, 300, keys=(b"a", b"b", b"a"), producer_id=6)
    s.append(400, 300, keys=(b"c", b"a"), codec=2)
    s.append(500, 500, keys=(b"b", b"d"), producer_id=7)
    s.append(0, keys=(b"c",), tombstone=True)
    s.append(700, keys=(b"e",))
    s.flush()
    s.roll()
    s.clean()
    s.append(300, keys=(b"a",))
    s.append(600, 600, keys=(b"d", b"f"), codec=4)
    s.append(900, keys=(b"e",), producer_id=7)
    s.flush()
    s.roll()
    s.flush()
    s.clean(keys_max=2)
    s.clean()
    s.clock.now_ms += COMPACT.delete_retention_ms
    s.append(900, keys=(b"g",))
    s.append(900, keys=(b"f",))
    s.flush()
    s.append(900, keys=(b"a",), producer_id=6)  # not flushed: what it would replace must stay
    s.roll()
    s.clean()
    s.flush()
    s.clean(may_be_done=True)
    s.die()
    s.append(900, keys=(b"g",))
    s.append(900, keys=(b"h",))
    s.stop()
    s.start()
    s.append(900, keys=(b"h",))
    s.append(900, keys=(b"i",))
    s.flush()
    s.clean()
    s.purge()
    s.append(100, keys=(b"i",))


def compacted_transactions(s: WorkloadDriver) -> None:
    """Compact aborted and open transactions, then delete records and truncate beyond the compacted part."""
    s.create()
    s.append(400, 400, keys=(b"a", b"b"))
    s.append(400, keys=(b"a",), producer_id=20, transactional=True)
    s.append(300, keys=(b"b",), producer_id=22, transactional=True)
    s.append(400, keys=(b"b",), producer_id=21, transactional=True)
    s.mark(20, commit=False)
    s.mark(22, commit=False)
    s.append(600, keys=(b"c",))
    s.mark(21, commit=True)
    s.append(900, keys=(b"a",), producer_id=20, transactional=True)
    s.append(900, keys=(b"d",))
    s.roll()
    s.flush()
    s.clean()
    s.mark(20, commit=False)
    s.append(900, keys=(b"c",))
    s.append(900, keys=(b"d",))
    s.roll()
    s.flush()
    s.clean()
    s.delete_records(3)
    s.checkpoint()
    s.append(900, keys=(b"e",))
    s.append(900, keys=(b"e",))
    s.flush()
    s.truncate(15)
    s.leader_epoch = 1
    s.append(900, keys=(b"f",))
    s.append(900, keys=(b"c",))
    s.flush()
    s.clean()
    s.append(10, keys=(b"f",))


def leftovers(s: WorkloadDriver) -> None:
    """Start on the files that Kafka leaves in the middle of a deletion, a cleaning and a swap."""
    s.create()
    for _ in range(5):
        s.append(700)
    s.flush()
    s.checkpoint()
    first, second = (read_file(s.disk, segment.path(LOG_SUFFIX)) for segment in s.log().segments[:2])
    zero = offset_name(0, "")
    s.leave_as_kafka_does((zero + ".log.deleted", b"x" * 90), (zero + ".index.deleted", b"x" * 8))
    s.leave_as_kafka_does((zero + ".log.cleaned", first[:300]), (zero + ".timeindex.cleaned", b""))
    s.die()
    s.leave_as_kafka_does((zero + ".log.cleaned", first + second))
    s.disk.rename(s.log().directory / (zero + ".log.cleaned"), s.log().directory / (zero + ".log.swap"))
    s.die()
    assert s.log().segments[0].size_bytes == len(first + second)
    s.append(30)
    s.flush()


def moves(s: WorkloadDriver) -> None:
    """Move a log to the other directory and back while it is written, truncated and deleted from."""
    s.create()
    for _ in range(4):
        s.append(600, producer_id=5)
    s.flush()
    s.begin_epoch(1)
    s.begin_move()
    s.append(300, 300, producer_id=5)
    s.move(2)
    s.append(200, producer_id=20, transactional=True)
    s.mark(20, commit=False)
    s.move(2)
    s.delete_records(1)
    s.flush()
    s.finish_move()
    s.append(50, producer_id=5)
    s.flush()
    s.begin_epoch(2)
    s.append(700)
    s.checkpoint()
    s.purge()
    s.begin_move()
    s.move(3)
    s.truncate(6)
    s.leader_epoch = 3
    s.append(40, producer_id=5)
    s.finish_move()
    s.append(1)
    s.flush()


def moves_and_restarts(s: WorkloadDriver) -> None:
    """Continue moves after stops and kills, cancel one, and delete and create topics under others."""
    s.create()
    s.create(OTHER)
    for _ in range(3):
        s.append(900, producer_id=6)
        s.append(700, tp=OTHER)
    s.flush()
    s.flush(OTHER)
    s.begin_move()
    s.move(2)
    s.begin_move(OTHER)
    s.move(1, OTHER)
    s.stop()
    s.start()
    s.append(900, producer_id=6)
    s.move(2)
    s.delete(OTHER)
    s.create(OTHER)
    s.append(70, tp=OTHER)
    s.die()
    s.leader_epoch = 1
    s.flush()
    s.finish_move()
    s.append(100, producer_id=6)
    s.begin_move(OTHER)
    s.move(1, OTHER)
    s.cancel_move(OTHER)
    s.flush(OTHER)
    s.begin_move(OTHER)
    s.finish_move(OTHER)
    s.delete_records(2)
    s.begin_move()
    s.move(1)
    s.truncate(3)
    s.leader_epoch = 2
    s.append(60)
    s.restart_at(50)
    s.append(30)
    s.finish_move()
    s.stop()
    s.start()
    s.append(900)
    s.flush()


def moves_of_a_compacted_log(s: WorkloadDriver) -> None:
    """Move a log with gaps, and one that gets its first gaps while it moves."""
    s.leader_epoch = 1
    s.create()
    s.append(400, 400, keys=(b"a", b"b"))
    s.append(900, keys=(b"a",), producer_id=20, transactional=True)
    s.append(900, keys=(b"c",))
    s.mark(20, commit=False)
    s.append(900, keys=(b"c",))
    s.roll()
    s.flush()
    s.begin_move()
    s.move(2)
    s.cancel_move()
    s.clean()
    s.begin_move()
    s.append(900, keys=(b"a",))
    s.move(2)
    s.append(900, keys=(b"d",))
    s.finish_move()
    s.flush()
    s.roll()
    s.flush()
    s.clean()
    s.begin_move()
    s.move(2)
    s.replicate((5, 2), (0, 1))
    s.flush()
    s.finish_move()
    s.append(900, keys=(b"e",))
    s.flush()


COMPACT = replace(SMALL, cleanup_policy=("compact",), delete_retention_ms=10_000)
SHORT_LIVED = replace(SMALL, retention_ms=5_000 + SMALL.file_delete_delay_ms)
WHOLE = replace(SMALL, segment_bytes=1 << 20)
PAGE_CACHE = replace(SMALL, durability="page-cache", segment_bytes=8000)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("appends", appends, WHOLE),
        Workload("reserved-space", reserved_space, WHOLE),
        Workload("rolls", rolls, SMALL),
        Workload("epochs", epochs, SMALL),
        Workload("producers", producers, SMALL),
        Workload("transactions", transactions, SMALL),
        Workload("offset-commits", offset_commits, SMALL),
        Workload("truncations", truncations, SMALL),
        Workload("deletions", deletions, SHORT_LIVED),
        Workload("topics", topics, replace(SMALL, segment_bytes=4000)),
        Workload("checkpoints", checkpoints, SMALL),
        Workload("stops", stops, SMALL),
        Workload("followers", followers, COMPACT),
        Workload("compactions", compactions, COMPACT),
        Workload("compacted-transactions", compacted_transactions, COMPACT),
        Workload("leftovers", leftovers, SMALL),
        Workload("moves", moves, SMALL, paths=(ROOT, SECOND)),
        Workload("moves-and-restarts", moves_and_restarts, SMALL, paths=(ROOT, SECOND)),
        Workload("moves-of-compacted-logs", moves_of_a_compacted_log, COMPACT, paths=(ROOT, SECOND)),
        Workload("page-cache", page_cache, PAGE_CACHE, acks_at_once=True),
    )
}
SAFE_WHEN_POWER_IS_CUT = tuple(name for name, workload in WORKLOADS.items() if not workload.acks_at_once)
