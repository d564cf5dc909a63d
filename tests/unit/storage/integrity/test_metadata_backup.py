"""The small files have no checksum of their own: what a flipped bit in one of them may cost, which is nothing."""

import errno
import logging
import uuid
from pathlib import PurePath

import pytest

from ottla.core.errors import CorruptMessage, SyncFailed
from ottla.core.files import replace_file
from ottla.storage import small_files as names
from ottla.storage.directories.log_directory import ForeignDirectory, LogDirectory
from ottla.storage.integrity.metadata_backup import FILE_NAME, BackedUpFile, MetadataBackup, parse, render
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import PowerCut, SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, batch, everything, open_directory

EPOCHS = ROOT / str(TP) / "leader-epoch-checkpoint"
TOPIC_ID = ROOT / str(TP) / names.PARTITION_METADATA


def directory_with(disk: SimDisk, *, records: int = 9, deleted_below: int = 0, epoch: int = 0) -> LogDirectory:
    directory = open_directory(disk)
    log = directory.create_log(TP, uuid.UUID(int=7))
    write(log, records, epoch=epoch)
    log.flush()
    log.update_high_watermark(log.end_offset)
    log.delete_records(deleted_below)
    directory.checkpoint()
    return directory


def write(log: PartitionLog, records: int, *, epoch: int = 0) -> None:
    for number in range(records):
        log.append(batch(b"%d" % number), leader_epoch=epoch, now_ms=NOW_MS)


def change(disk: SimDisk, path: PurePath, old: bytes, new: bytes) -> None:
    """As corruption does it: the time of modification stays."""
    written_ns = disk.modified_ns(path)
    data = whole(disk, path)
    assert old in data, data
    file = disk.open(path)
    file.truncate(0)
    file.append(data.replace(old, new, 1))
    disk._inode(path).modified = written_ns


def rewrite(disk: SimDisk, path: PurePath, old: bytes, new: bytes) -> None:
    """As another broker does it."""
    data = whole(disk, path)
    assert old in data, data
    replace_file(disk, path, data.replace(old, new, 1))


def whole(disk: SimDisk, path: PurePath) -> bytes:
    return disk.open(path).read_at(0, 1 << 30)


def reopened(disk: SimDisk) -> PartitionLog:
    disk.process_died()
    return open_directory(disk).logs[TP]


@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("wrong", [b"8", b"0", b"99"])
def test_a_corrupt_log_start_makes_no_record_vanish_and_brings_none_back(wrong: bytes, is_clean: bool) -> None:
    disk = SimDisk()
    directory = directory_with(disk, deleted_below=4)
    if is_clean:
        directory.close()
    change(disk, ROOT / names.LOG_STARTS, b"web 0 4", b"web 0 " + wrong)

    assert [offset for offset, _ in everything(reopened(disk))] == [4, 5, 6, 7, 8]


def test_a_corrupt_recovery_point_hides_no_torn_tail() -> None:
    disk = SimDisk()
    directory = directory_with(disk)
    log = directory.logs[TP]
    log.roll()
    write(log, 3)
    log.roll()
    disk.flip_bit(log.segments[1].path(".log"), 8 * 64)  # as if it had not been on the disk yet
    change(disk, ROOT / names.RECOVERY_POINTS, b"web 0 9", b"web 0 15")

    log = reopened(disk)

    assert [offset for offset, _ in everything(log)] == list(range(9))


@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean stop", "after a crash"])
def test_a_corrupt_epoch_file_changes_no_epoch_and_is_rewritten(is_clean: bool) -> None:
    disk = SimDisk()
    directory = directory_with(disk, epoch=3)
    write(directory.logs[TP], 2, epoch=4)
    directory.logs[TP].flush()
    directory.checkpoint()
    if is_clean:
        directory.close()
    right = whole(disk, EPOCHS)
    change(disk, EPOCHS, b"4 9", b"6 8")

    log = reopened(disk)

    assert log.epochs.to_text().encode() == right == whole(disk, EPOCHS)


def test_a_corrupt_topic_id_is_known_after_any_number_of_starts() -> None:
    disk = SimDisk()
    directory_with(disk)
    change(disk, TOPIC_ID, whole(disk, TOPIC_ID), b"")
    for _ in range(3):
        disk.process_died()
        assert open_directory(disk).logs[TP].topic_id == uuid.UUID(int=7)


@pytest.mark.parametrize("found", [b"", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAACA"], ids=["no id", "another id"])
def test_a_power_cut_while_a_start_restores_the_topics_id_does_not_cost_it(found: bytes) -> None:
    dry = SimDisk()
    directory_with(dry)
    change(dry, TOPIC_ID, whole(dry, TOPIC_ID), found)
    dry._inode(TOPIC_ID).sync()
    changes = dry.changes
    reopened(dry)
    for stop in range(1, dry.changes - changes + 1):
        disk = SimDisk()
        directory_with(disk)
        change(disk, TOPIC_ID, whole(disk, TOPIC_ID), found)
        disk._inode(TOPIC_ID).sync()
        disk.process_died()
        disk.stop_at(stop)
        with pytest.raises(PowerCut):
            open_directory(disk)
        for number in range(disk.states()):
            left = disk.state(number)
            assert open_directory(left).logs[TP].topic_id == uuid.UUID(int=7), (stop, disk.history[-1], number)


def test_a_torn_topic_id_with_another_time_is_taken_from_its_copy() -> None:
    disk = SimDisk()
    directory_with(disk)
    rewrite(disk, TOPIC_ID, whole(disk, TOPIC_ID), bytes(43))

    assert reopened(disk).topic_id == uuid.UUID(int=7)
    assert whole(disk, TOPIC_ID) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"


def test_a_topic_id_that_kafka_has_written_since_is_believed() -> None:
    disk = SimDisk()
    directory_with(disk)
    rewrite(disk, TOPIC_ID, b"Bw", b"CA")

    assert reopened(disk).topic_id == uuid.UUID(int=8)


def test_a_start_without_space_knows_the_topics_id_from_its_copy(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    directory_with(disk).close()
    disk.remove(TOPIC_ID)
    disk.process_died()
    disk.refuse(errno.ENOSPC, "create", "write", under=TOPIC_ID.parent)

    directory = open_directory(disk)

    assert directory.logs[TP].topic_id == uuid.UUID(int=7)
    assert "partition.metadata is not written again" in caplog.text
    directory.close()
    disk.stop_refusing()
    assert open_directory(disk).logs[TP].topic_id == uuid.UUID(int=7)
    assert disk.exists(TOPIC_ID)


def test_a_failed_sync_of_the_restored_topics_id_fails_the_start() -> None:
    disk = SimDisk()
    directory_with(disk).close()
    change(disk, TOPIC_ID, whole(disk, TOPIC_ID), b"")
    disk.process_died()
    disk.refuse(errno.EIO, "sync", under=TOPIC_ID.parent)

    with pytest.raises(SyncFailed):
        open_directory(disk)


def test_a_recovery_syncs_the_topics_id_of_a_log_that_was_never_flushed() -> None:
    disk = SimDisk()
    log = open_directory(disk).create_log(TP, uuid.UUID(int=7))
    write(log, 2)
    reopened(disk)
    left = disk.state(0)

    assert whole(left, TOPIC_ID) == whole(disk, TOPIC_ID) != b""


def test_a_log_start_that_kafka_has_written_since_is_believed() -> None:
    disk = SimDisk()
    directory_with(disk, deleted_below=2).close()
    rewrite(disk, ROOT / names.LOG_STARTS, b"web 0 2", b"web 0 5")

    assert reopened(disk).log_start_offset == 5


def test_a_corrupt_file_of_copies_costs_nothing_but_its_word(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    directory_with(disk, deleted_below=2).close()
    disk.flip_bit(ROOT / FILE_NAME, 900)

    with caplog.at_level(logging.WARNING):
        log = reopened(disk)

    assert len(everything(log)) == 7
    assert any(FILE_NAME in record.getMessage() for record in caplog.records)


def test_without_copies_all_is_read_as_kafka_reads_it() -> None:
    disk = SimDisk()
    directory_with(disk, deleted_below=2).close()
    disk.remove(ROOT / FILE_NAME)

    assert len(everything(reopened(disk))) == 7


def test_a_crash_between_the_copies_and_the_files_is_no_corrupt(caplog: pytest.LogCaptureFixture) -> None:
    for stop in range(1, 60):
        disk = SimDisk()
        directory = directory_with(disk)
        write(directory.logs[TP], 3)
        directory.logs[TP].flush()
        disk.stop_at(stop)
        try:
            directory.checkpoint()
        except PowerCut:
            [left] = disk.killed()[:1]
            with caplog.at_level(logging.WARNING):
                assert len(everything(reopened(left))) == 12
            assert not [record for record in caplog.records if "corruption" in record.getMessage()]
            continue
        assert stop > 10
        return


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"cluster.id=", b"cluster.ie="), (b"node.id=1", b"node.id=3"), (b"directory.id=", b"directory.id=!!")],
)
def test_a_corrupt_meta_properties_is_restored_from_its_copy_and_refused_without_one(old: bytes, new: bytes) -> None:
    disk = SimDisk()
    directory = directory_with(disk)
    directory.close()
    identity = directory.meta
    before = whole(disk, ROOT / names.META_PROPERTIES)
    change(disk, ROOT / names.META_PROPERTIES, old, new)

    again = open_directory(disk)
    assert again.meta == identity
    assert names.parse_meta(whole(disk, ROOT / names.META_PROPERTIES).decode()) == names.parse_meta(before.decode())
    again.close()
    disk.remove(ROOT / FILE_NAME)
    change(disk, ROOT / names.META_PROPERTIES, old, new)
    with pytest.raises(ForeignDirectory, match=r"meta\.properties"):
        open_directory(disk)


def test_corruption_at_the_end_of_a_log_that_stopped_cleanly_is_not_cut_off() -> None:
    disk = SimDisk()
    directory_with(disk).close()
    path = ROOT / str(TP) / "00000000000000000000.log"
    size = disk.size_of(path)
    disk.flip_bit(path, 8 * (size - 3))

    log = reopened(disk)
    assert disk.size_of(path) == size
    assert log.end_offset == 9
    with pytest.raises(CorruptMessage):
        log.read(8, max_bytes=1, end_offset=9)
    appended = log.append(batch(b"after"), leader_epoch=0, now_ms=NOW_MS)
    assert appended.first_offset == 9
    log.flush()

    log = reopened(disk)
    assert everything(log, start=9) == [(9, b"after")]
    with pytest.raises(CorruptMessage):
        log.read(8, max_bytes=1, end_offset=10)


@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean stop", "after a crash"])
def test_a_log_whose_last_file_was_emptied_gives_no_offset_twice(is_clean: bool) -> None:
    disk = SimDisk()
    directory = directory_with(disk)
    if is_clean:
        directory.close()
    disk.open(ROOT / str(TP) / "00000000000000000000.log").truncate(0)

    log = reopened(disk)

    assert log.append(batch(b"after"), leader_epoch=0, now_ms=NOW_MS).first_offset == 9
    with pytest.raises(CorruptMessage):
        log.read(3, max_bytes=1, end_offset=9)


def test_the_file_is_one_line_with_a_checksum_and_one_with_the_rest() -> None:
    entries = {
        "a": BackedUpFile.of(b"text", 5),
        "web-0/00000000000000000000.index": BackedUpFile.of(b"\0\1", 6, keep_text=False),
    }
    data = render(entries)

    assert parse(data) == entries
    for at in range(len(data)):
        assert parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
        assert parse(data[:at]) is None


def test_a_missing_small_file_is_taken_from_its_copy_where_it_must_exist() -> None:
    disk = SimDisk()
    disk.make_directory(ROOT)
    copies = MetadataBackup(disk, ROOT, {"there": BackedUpFile.of(b"text", 5)})

    assert copies.text("there") == ("text", True, True)
    assert copies.text("there", must_exist=False) == (None, False, False)
