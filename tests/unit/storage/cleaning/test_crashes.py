"""The power fails at any step of a compaction: nothing is lost, nothing stays half done, and it can be done again."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest

from ottla.core.settings import LONG_MAX
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import Record
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import POWER_CUTS, PowerCut, SimDisk, Survival
from tests.support.cleaning import batches_in, clean_once, committed_in
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, marker, open_directory

CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=800,
    index_interval_bytes=150,
    timestamp_after_max_ms=LONG_MAX,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)
PLAIN = replace(CONFIG, cleanup_policy=("delete",), retention_ms=-1)


def written(disk: SimDisk, clock: StillClock) -> tuple[LogDirectory, PartitionLog]:
    """Twelve segments: values, tombstones, a committed and an aborted transaction, every codec."""
    directory = open_directory(disk, CONFIG, clock)
    log = directory.create_log(TP, uuid.UUID(int=7), CONFIG)

    def append(key: bytes, value: bytes | None, *, codec: int = 0, producer_id: int = -1, sequence: int = -1) -> None:
        batch = build_batch(
            [NewRecord(key, value, clock.now_ms), NewRecord(b"other " + key, value, clock.now_ms)],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
            transactional=producer_id >= 0,
        )
        log.append(memoryview(batch), leader_epoch=0, now_ms=clock.now_ms)

    for number in range(30):
        append(b"key %d" % (number % 5), b"value %d " % number + b"x" * 60, codec=number % 5)
    append(b"key 1", None)
    for producer_id, commit in ((5, True), (6, False)):
        append(b"key 2", b"of a transaction %d" % producer_id, producer_id=producer_id, sequence=0)
        log.roll()
        append(b"key 3", b"of a transaction %d" % producer_id, producer_id=producer_id, sequence=2)
        end = marker(producer_id, 0, commit=commit)
        log.append(end, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    append(b"key 4", b"the last")
    log.roll()
    append(b"key 0", b"in the active segment")
    log.flush()
    log.update_high_watermark(log.end_offset)
    directory.checkpoint()
    return directory, log


def latest(log: PartitionLog) -> dict[bytes | None, bytes]:
    found: dict[bytes | None, bytes] = {}
    for record in committed_in(log):
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
    return found


def aborted_in(log: PartitionLog) -> list[tuple[int, int]]:
    """Whose transactions were aborted, and where. (A scan sees their first batch in what compaction left of them.)"""
    return [(each.producer_id, each.last_offset) for each in log.aborted_transactions(0, log.end_offset)]


def reopened(disk: SimDisk, clock: StillClock, config: LogConfig = CONFIG) -> tuple[LogDirectory, PartitionLog]:
    directory = open_directory(disk, config, clock)
    log = directory.logs[TP]
    log.update_high_watermark(log.end_offset)
    return directory, log


def steps_of_a_cleaning() -> int:
    disk, clock = SimDisk(), StillClock()
    directory, log = written(disk, clock)
    before = disk.changes
    assert clean_once(directory, log, clock) is not None
    return disk.changes - before


STEPS = steps_of_a_cleaning()


def surviving(log: PartitionLog) -> list[Record]:
    return [record for seen in batches_in(log) for record in seen.records]


@pytest.mark.parametrize(
    ("survival", "config"),
    [*((survival, CONFIG) for survival in POWER_CUTS), (Survival.TORN, PLAIN)],
    ids=["kept", "lost", "torn", "torn, and the topic deletes by then"],
)
def test_a_crash_at_each_step_leaves_every_value_and_a_second_recovery_changes_nothing(
    survival: Survival, config: LogConfig
) -> None:
    assert STEPS > 50
    for step in range(1, STEPS + 1):
        disk, clock = SimDisk(), StillClock()
        directory, log = written(disk, clock)
        expected, end_offset = latest(log), log.end_offset
        aborted = aborted_in(log)
        assert len(aborted) == 1
        disk.stop_at(step)
        with pytest.raises(PowerCut):
            clean_once(directory, log, clock)
        last = disk.history[-1]
        disk.power_cut(random.Random(step), survival)
        directory, log = reopened(disk, clock, config)
        assert latest(log) == expected, last
        assert (log.end_offset, log.last_stable_offset) == (end_offset, end_offset), last
        assert aborted_in(log) == aborted, last
        names = disk.names_in(ROOT / "web-0")
        assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))], last
        found = surviving(log)
        disk.power_cut(random.Random(step), Survival.KEPT)
        directory, log = reopened(disk, clock, config)
        assert surviving(log) == found, last


def stopped_in_a_swap(nth: int) -> tuple[SimDisk, StillClock, PartitionLog]:
    """Cut the power after the nth step of the swap of a group that has aborted transactions."""
    disk, clock = SimDisk(), StillClock()
    directory, log = written(disk, clock)
    at = next(at for at, step in enumerate(SWAP_HISTORY) if ".txnindex" in step and step.endswith(".swap"))
    disk.stop_at(at + 1 + nth)
    with pytest.raises(PowerCut):
        clean_once(directory, log, clock)
    return disk, clock, log


def history_of_a_cleaning() -> list[str]:
    disk, clock = SimDisk(), StillClock()
    directory, log = written(disk, clock)
    before = len(disk.history)
    clean_once(directory, log, clock)
    return disk.history[before:]


SWAP_HISTORY = history_of_a_cleaning()


@pytest.mark.parametrize("survival", [Survival.KEPT, Survival.TORN])
def test_a_crash_while_a_swap_is_being_finished_is_as_harmless(survival: Survival) -> None:
    disk, clock = SimDisk(), StillClock()
    _, log = written(disk, clock)
    expected, aborted = latest(log), aborted_in(log)
    for nth in range(0, 14, 2):
        for step in range(1, 40):
            disk, clock, _ = stopped_in_a_swap(nth)
            disk.power_cut(random.Random(step), Survival.KEPT)
            disk.stop_at(step)
            try:
                reopened(disk, clock)
            except PowerCut:
                pass
            else:
                break
            last = disk.history[-1]
            disk.power_cut(random.Random(step), survival)
            _, log = reopened(disk, clock)
            assert latest(log) == expected, (nth, last)
            assert aborted_in(log) == aborted, (nth, last)


@pytest.mark.parametrize("survival", POWER_CUTS)
def test_after_a_crash_at_any_step_the_next_cleaning_comes_to_the_same_end(survival: Survival) -> None:
    disk, clock = SimDisk(), StillClock()
    directory, log = written(disk, clock)
    clean_once(directory, log, clock)
    expected = surviving(log)
    for step in range(1, STEPS + 1, 5):
        disk, clock = SimDisk(), StillClock()
        directory, log = written(disk, clock)
        disk.stop_at(step)
        with pytest.raises(PowerCut):
            clean_once(directory, log, clock)
        last = disk.history[-1]
        disk.power_cut(random.Random(step), survival)
        directory, log = reopened(disk, clock)
        clean_once(directory, log, clock)
        assert surviving(log) == expected, last


def test_a_log_that_was_cleaned_is_not_cut_at_a_gap_by_a_scan_of_all_of_it() -> None:
    """No recovery point, no snapshot, and the topic is by now one that deletes."""
    disk, clock = SimDisk(), StillClock()
    directory, log = written(disk, clock)
    clean_once(directory, log, clock)
    expected, end_offset = surviving(log), log.end_offset
    assert any(
        b.header.base_offset != a.header.last_offset + 1
        for a, b in zip(batches_in(log), batches_in(log)[1:], strict=False)
    )
    disk.power_cut(random.Random(1), Survival.KEPT)
    for path in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        disk.remove(ROOT / path)
    directory, log = reopened(disk, clock, PLAIN)
    assert (surviving(log), log.end_offset) == (expected, end_offset)


def test_a_follower_notes_a_gap_of_its_leader_before_it_takes_it() -> None:
    disk, clock = SimDisk(), StillClock()
    directory = open_directory(disk, PLAIN, clock)
    log = directory.create_log(TP, uuid.UUID(int=7), PLAIN)
    for offset in (0, 5, 9):
        sent = build_batch([NewRecord(b"k", b"v", NOW_MS)], base_offset=offset, leader_epoch=0)
        log.append_as_follower(memoryview(sent), now_ms=NOW_MS)
        log.flush()
    disk.power_cut(random.Random(1), Survival.LOST)
    _, log = reopened(disk, clock, PLAIN)
    assert [record.offset for record in surviving(log)] == [0, 5, 9]


def test_a_corrupt_note_of_gaps_is_taken_as_a_note_of_gaps() -> None:
    disk, clock = SimDisk(), StillClock()
    directory, log = written(disk, clock)
    clean_once(directory, log, clock)
    expected = surviving(log)
    disk.power_cut(random.Random(1), Survival.KEPT)
    for name in ("recovery-point-offset-checkpoint", "ottla-copies"):  # as in a directory of Kafka's
        disk.remove(ROOT / name)
    file = disk.open(ROOT / "cleaner-offset-checkpoint")
    file.truncate(file.size() - 3)
    _, log = reopened(disk, clock, PLAIN)
    assert surviving(log) == expected
