"""Defects that the crash tests have found, each as the shortest sequence that shows it."""

from __future__ import annotations

import random
import uuid
from pathlib import PurePath

from ottla.core.files import read_file
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.faulty_ranges import is_faulty
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import PowerCut, SimDisk, Survival
from tests.support.cleaning import begin_pass, clean_once, groups_of
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, batch, everything, marker, open_directory

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
WEB = ROOT / "web-0"


def filled(disk: SimDisk, count: int, config: LogConfig = CONFIG) -> tuple[LogDirectory, PartitionLog]:
    """Two records a segment, all of it durable and in the checkpoint."""
    directory = open_directory(disk, config)
    log = directory.create_log(TP, uuid.UUID(int=7))
    for at in range(count):
        log.append(batch(b"value-%d" % at + bytes(60)), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    log.update_high_watermark(count)
    directory.checkpoint()
    return directory, log


def after_power_cut(disk: SimDisk, survival: Survival = Survival.LOST, *, config: LogConfig = CONFIG) -> PartitionLog:
    disk.power_cut(random.Random(0), survival)
    return open_directory(disk, config).logs[TP]


def test_aborted_transactions_found_by_a_recovery_are_still_known_after_the_next_power_cut() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"x", producer_id=5, epoch=0, sequence=0, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    log.append(marker(5, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.roll()
    log.append(batch(b"y"), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    disk.remove(WEB / "00000000000000000000.txnindex")
    disk.process_died()
    assert open_directory(disk, CONFIG).logs[TP].aborted_transactions(0, 3)
    entry = after_power_cut(disk).aborted_transactions(0, 3)
    assert [one[:3] for one in entry] == [(5, 0, 1)]


def test_a_truncation_that_is_cut_short_leaves_nothing_below_the_recovery_point_unscanned() -> None:
    """If the renames of the later segments were lost and the truncated file torn, no start would scan the torn file."""
    dry = SimDisk()
    _, log = filled(dry, 12)
    before = dry.changes
    log.truncate_to(7)
    for nth in range(1, dry.changes - before + 1):
        disk = SimDisk()
        _, log = filled(disk, 12)
        disk.stop_at(nth)
        try:
            log.truncate_to(7)
        except PowerCut:
            pass
        for number in range(disk.states()):
            left = disk.state(number)
            log = open_directory(left, CONFIG).logs[TP]
            ends = [segment.end_offset() for segment in log.segments]
            begins = [segment.base_offset for segment in log.segments[1:]]
            note = f"stopped before {disk.history[-1]}, state {number}"
            assert ends[:-1] == begins and ends[-1] == log.end_offset >= 7, note


def test_a_truncated_segment_does_not_get_its_successor_back_where_gaps_are_allowed() -> None:
    disk = SimDisk()
    _, log = filled(disk, 12)
    log.note_gaps()
    disk.stop_at(100)
    renames = [line for line in _changes_of(disk, log, cut_at=7) if line.startswith(("rename", "truncate", "sync"))]
    last_rename = max(at for at, line in enumerate(renames) if ".deleted" in line)
    first_cut = next(at for at, line in enumerate(renames) if line == f"truncate {WEB / '00000000000000000006.log'}")
    assert f"sync directory {WEB}" in renames[last_rename:first_cut]


def _changes_of(disk: SimDisk, log: PartitionLog, *, cut_at: int) -> list[str]:
    before = len(disk.history)
    log.truncate_to(cut_at)
    return disk.history[before:]


def test_a_torn_snapshot_in_what_was_scanned_is_removed_by_the_recovery_that_sees_it() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"x", producer_id=5, epoch=0, sequence=0), leader_epoch=0, now_ms=NOW_MS)
    log.roll()
    log.append(batch(b"y", producer_id=5, epoch=0, sequence=1), leader_epoch=0, now_ms=NOW_MS)
    disk.open(WEB / "00000000000000000001.snapshot").truncate(3)
    after_power_cut(disk, Survival.KEPT)
    assert not disk.exists(WEB / "00000000000000000001.snapshot")


def test_a_log_start_that_was_checkpointed_outlives_files_that_a_power_cut_brings_back() -> None:
    disk = SimDisk()
    directory, log = filled(disk, 12)
    start = log.segments[1].base_offset
    log.delete_records(start)
    directory.checkpoint()
    assert log.delete_old_segments(NOW_MS) == 1
    directory.checkpoint()
    again = after_power_cut(disk)
    assert again.segments[0].base_offset == 0, "the disk was to lose the renames"
    assert again.log_start_offset == start


def test_an_entry_of_an_aborted_transaction_that_waits_for_the_disk_goes_with_its_marker() -> None:
    disk = SimDisk()
    log = open_directory(disk, CONFIG).create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"x", producer_id=5, epoch=0, sequence=0, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    disk.fail_at(2)  # the entry, and not the marker's batch
    log.append(marker(5, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert log.pending_flush.aborted(0, 9)
    log.truncate_to(1)
    log.append(batch(b"y"), leader_epoch=1, now_ms=NOW_MS)
    log.flush()
    assert log.aborted_transactions(0, 9) == [] and not disk.exists(_txnindex(log))


def _txnindex(log: PartitionLog) -> PurePath:
    return log.active.path(".txnindex")


def test_a_good_index_of_aborted_transactions_is_not_written_again() -> None:
    disk, clock = SimDisk(), StillClock()
    log = open_directory(disk, CONFIG, clock).create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"x", producer_id=5, epoch=0, sequence=0, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    log.append(marker(5, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.flush()
    before, changes = read_file(disk, _txnindex(log)), len(disk.history)
    after_power_cut(disk)
    assert read_file(disk, _txnindex(log)) == before
    assert not [
        line for line in disk.history[changes:] if line.startswith(("write", "truncate")) and "txnindex" in line
    ]


def test_batches_below_a_log_start_that_is_of_a_newer_epoch_are_not_taken_for_corrupt() -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, uuid.UUID(int=7))
    for at in range(6):
        log.append(batch(b"value-%d" % at, timestamp_ms=NOW_MS + at), leader_epoch=at // 2, now_ms=NOW_MS)
    log.flush()
    log.update_high_watermark(6)
    log.delete_records(3)
    directory.close()
    again = open_directory(disk).logs[TP]
    found = again.offset_for_timestamp(NOW_MS + 3, end_offset=6)
    assert found is not None and found.offset == 3
    assert [offset for offset, _ in everything(again)] == [3, 4, 5]


COMPACTED = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy=("compact",))


def compacted(disk: SimDisk, clock: StillClock, *batches: memoryview) -> tuple[LogDirectory, PartitionLog]:
    """A log of these batches and one more, sealed and flushed: ready for a pass."""
    directory = open_directory(disk, COMPACTED, clock)
    log = directory.create_log(TP, uuid.UUID(int=7), COMPACTED)
    for records in batches:
        log.append(records, leader_epoch=0, now_ms=clock.now_ms)
    log.roll()
    log.append(batch(b"last", key=b"last"), leader_epoch=0, now_ms=clock.now_ms)
    log.flush()
    log.update_high_watermark(log.end_offset)
    return directory, log


def test_a_batch_that_compaction_has_emptied_is_not_where_the_youngest_record_is_sought() -> None:
    disk, clock = SimDisk(), StillClock()
    directory, log = compacted(
        disk,
        clock,
        batch(b"young", key=b"a", timestamp_ms=NOW_MS + 9, producer_id=4, epoch=0, sequence=0),
        batch(b"old", key=b"a"),
    )
    assert clean_once(directory, log, clock) is not None
    assert log.producers.describe()[0].last_sequence == 0, "the batch should be there, for its producer's sake"
    found = log.offset_of_max_timestamp(log.end_offset)
    assert found is not None and (found.offset, found.timestamp) == (1, NOW_MS)
    found = log.offset_for_timestamp(NOW_MS + 5, end_offset=log.end_offset)
    assert found is None


def test_the_youngest_record_is_not_sought_below_the_logs_start() -> None:
    log = open_directory(SimDisk(), CONFIG).create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"x", timestamp_ms=NOW_MS + 9), leader_epoch=0, now_ms=NOW_MS)
    mixed = build_batch([NewRecord(None, b"y", NOW_MS + 8), NewRecord(None, b"z", NOW_MS + 7)])
    log.append(memoryview(mixed), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(3)
    log.delete_records(2)
    found = log.offset_of_max_timestamp(3)
    assert found is not None and (found.offset, found.timestamp) == (2, NOW_MS + 7)


def test_indexes_of_a_swap_that_had_not_come_to_the_log_yet_do_not_take_the_place_of_the_old_ones() -> None:
    disk, clock = SimDisk(), StillClock()
    _, log = compacted(disk, clock, batch(b"young", key=b"a", timestamp_ms=NOW_MS + 9), batch(b"old", key=b"a"))
    times = log.segments[0].path(".timeindex")
    before = read_file(disk, times)
    cleaning = begin_pass(log, clock)
    assert cleaning is not None
    assert len(list(groups_of(cleaning, log, clock))) == 1
    disk.rename(log.segments[0].path(".timeindex" + cleaning.plan.suffix), log.segments[0].path(".timeindex.swap"))
    log = after_power_cut(disk, Survival.KEPT)
    assert read_file(disk, times) == before
    assert not [name for name in disk.names_in(log.directory) if name.endswith((".swap", ".cleaned"))]


def test_records_not_on_the_disk_yet_are_not_compacted_and_so_replace_none_that_are() -> None:
    clock = StillClock()
    _, log = compacted(SimDisk(), clock, batch(b"1", key=b"a"))
    log.append(batch(b"2", key=b"a"), leader_epoch=0, now_ms=NOW_MS)
    log.roll()
    log.update_high_watermark(log.end_offset)  # as with durability=page-cache
    cleaning = begin_pass(log, clock)
    assert cleaning is not None and cleaning.plan.first_uncleanable_offset == 1


def test_compaction_leaves_a_producers_last_batch_that_is_flushed_and_not_only_one_that_is_not() -> None:
    disk, clock = SimDisk(), StillClock()
    directory, log = compacted(
        disk, clock, batch(b"1", key=b"a", producer_id=4, epoch=0, sequence=0), batch(b"2", key=b"a")
    )
    log.append(batch(b"3", key=b"b", producer_id=4, epoch=0, sequence=1), leader_epoch=0, now_ms=NOW_MS)
    assert clean_once(directory, log, clock) is not None
    disk.power_cut(random.Random(0), Survival.LOST)
    for name in disk.names_in(WEB):
        if name.endswith(".snapshot"):
            disk.remove(WEB / name)
    log = open_directory(disk, COMPACTED).logs[TP]
    assert [(info.producer_id, info.last_sequence) for info in log.producers.describe()] == [(4, 0)]


def test_a_snapshot_that_knows_of_batches_lost_from_the_middle_is_not_used_by_a_later_start() -> None:
    """Where gaps are nothing strange, a lost batch does not end the log, and what follows it stays."""
    disk, clock = SimDisk(), StillClock()
    directory = open_directory(disk, COMPACTED, clock)
    log = directory.create_log(TP, uuid.UUID(int=7), COMPACTED)
    log.append(batch(b"1", key=b"a", producer_id=4, epoch=0, sequence=0), leader_epoch=0, now_ms=NOW_MS)
    first = log.active.path(".log")
    for _ in range(2):
        log.roll()
        log.append(batch(b"2", key=b"b"), leader_epoch=0, now_ms=NOW_MS)
    disk.open(first).truncate(0)
    log = after_power_cut(disk, Survival.KEPT, config=COMPACTED)
    assert log.producers.describe() == [] and log.end_offset == 3
    assert after_power_cut(disk, config=COMPACTED).producers.describe() == []


def test_a_kill_while_a_follower_removes_all_records_is_no_corruption() -> None:
    for nth in range(1, 100):
        disk = SimDisk()
        _, log = filled(disk, 6)
        disk.stop_at(nth)
        try:
            log.truncate_fully_and_start_at(50)
        except PowerCut:
            for killed in disk.killed():
                assert not open_directory(killed, CONFIG).corrupt, f"change {nth}: {disk.history[nth - 1]}"
        else:
            assert nth > 20
            return


def test_a_kill_while_retention_deletes_segments_does_not_look_as_if_they_were_lost() -> None:
    for nth in range(1, 200):
        disk = SimDisk()
        _, log = filled(disk, 12)
        log.delete_records(8)
        disk.stop_at(nth)
        try:
            log.delete_old_segments(NOW_MS)
        except PowerCut:
            for killed in disk.killed():
                again = open_directory(killed, CONFIG).logs[TP]
                assert not is_faulty(again), f"change {nth}: {disk.history[nth - 1]}"
        else:
            assert nth > 20
            return


def test_a_first_segment_that_is_missing_after_a_kill_was_lost() -> None:
    disk = SimDisk()
    _, log = filled(disk, 12)
    log.delete_records(8)
    log.delete_old_segments(NOW_MS)
    disk.process_died()
    disk.remove(log.segments[0].log_path)
    again = open_directory(disk, CONFIG).logs[TP]
    assert is_faulty(again) and again.faults.lost_start == 8


def test_a_power_cut_leaves_no_gap_between_the_segments_of_a_compacted_log() -> None:
    """A follower would take it for the work of compaction, and confirm records to its leader that it lacks."""
    disk = SimDisk()
    _, log = filled(disk, 4)
    log.note_gaps()
    for at in range(4, 12):
        log.append(batch(b"value-%d" % at + bytes(60)), leader_epoch=0, now_ms=NOW_MS)
    assert log.flushed_offset == 4 and len(log.segments) > 4
    rng = random.Random(1)
    ends = set()
    for _ in range(150):
        found = everything(open_directory(disk.torn(rng), CONFIG).logs[TP])
        assert [offset for offset, _ in found] == list(range(len(found)))
        ends.add(len(found))
    assert len(ends) > 3
