"""Tests that the scrubber finds corruption in unread data, rebuilds caches, and does not change corrupt logs."""

import logging
from itertools import product
from pathlib import PurePath

import pytest

from ottla.core.errors import CorruptMessage
from ottla.records.batch import split
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.integrity.block_checksums import checksums_path, read_checksums
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.storage.scrubbing.scrubber import REPORT_FILE, Scrubber, read_report
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, batch, content, marker, open_directory, records_in

CONFIG = LogConfig(index_interval_bytes=200)
PLACE = ROOT / str(TP)
FIRST = PLACE / "00000000000000000000.log"


def filled(disk: SimDisk, config: LogConfig = CONFIG) -> LogDirectory:
    """Three segments; the second has an aborted transaction; several leader epochs."""
    directory = open_directory(disk, config)
    log = directory.create_log(TP)
    for number in range(30):
        if number in (10, 20):
            log.roll()
        log.append(
            batch(b"%d" % number * 20, b"two", timestamp_ms=NOW_MS + number, key=b"k"),
            leader_epoch=number // 7,
            now_ms=NOW_MS,
        )
        if number == 12:
            log.append(
                batch(b"never", producer_id=7, epoch=0, sequence=0, transactional=True, key=b"k"),
                leader_epoch=1,
                now_ms=NOW_MS,
            )
        if number == 15:
            log.append(marker(7, 0, commit=False), leader_epoch=2, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.flush()
    return directory


def scrubbed(directory: LogDirectory, disk: SimDisk) -> Scrubber:
    scrubber = Scrubber(directory, disk)
    one_pass(scrubber)
    return scrubber


def one_pass(scrubber: Scrubber) -> None:
    scrubber.check_checkpoints()
    for log in scrubber.suspects():
        scrubber.check_partition_files(log)
    for work in scrubber.plan():
        scrubber.conclude(work, scrubber.verify(work, lambda size_bytes: None))
    scrubber.end_pass()


def position_of(disk: SimDisk, path: PurePath, number: int) -> int:
    file = disk.open(path)
    return [at for at, _ in split(file.read_at(0, file.size()))][number]


def read_all(log: PartitionLog) -> list[int]:
    """The offsets served, by one who steps over what is refused."""
    came: list[int] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        try:
            region = log.read(offset, max_bytes=1 << 20, end_offset=log.end_offset)
        except CorruptMessage:
            offset += 1
            continue
        came += [record.offset for record in records_in(content(region)) if record.offset >= offset]
        offset = came[-1] + 1
    return came


def test_a_sound_directory_has_no_findings_and_its_sealed_segments_get_their_checksums() -> None:
    disk = SimDisk()
    directory = filled(disk)

    scrubber = scrubbed(directory, disk)

    assert scrubber.findings == {}
    assert scrubber.segments_seen == 3
    bases = [segment.base_offset for segment in directory.logs[TP].segments]
    assert [disk.exists(checksums_path(PLACE, base)) for base in bases] == [True, True, False]
    one_pass(scrubber)
    assert scrubber.findings == {}


def test_a_directory_that_is_short_of_space_is_verified_and_gets_its_checksums_when_there_is_space() -> None:
    disk = SimDisk()
    directory = filled(disk)
    capacity, disk.capacity_bytes = disk.capacity_bytes, disk.capacity_bytes - disk.free_bytes(PLACE)
    directory.look_at_space()
    scrubber = scrubbed(directory, disk)
    assert scrubber.segments_seen == 3
    assert not disk.exists(checksums_path(PLACE, 0))
    assert not list(scrubber.plan_new())
    disk.capacity_bytes = capacity
    directory.look_at_space()
    one_pass(scrubber)
    assert disk.exists(checksums_path(PLACE, 0))


@pytest.mark.parametrize("again", [False, True], ids=["before the first look", "after it"])
@pytest.mark.parametrize("byte", [3, 9, 13, 16, 18, 40, 70])
def test_corruption_in_a_sealed_log_is_reported_once_and_not_changed(
    again: bool, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk()
    directory = filled(disk)
    scrubber = scrubbed(directory, disk) if again else Scrubber(directory, disk)
    at = position_of(disk, FIRST, 4)
    disk.flip_bit(FIRST, (at + byte) * 8)

    with caplog.at_level(logging.WARNING):
        one_pass(scrubber)
        one_pass(scrubber)

    [finding] = scrubber.findings.values()
    assert (finding.file, finding.position, finding.first_offset, finding.last_offset) == (FIRST, at, 8, 9)
    assert sum("Copy the partition from another replica" in record.getMessage() for record in caplog.records) == 1
    assert disk.size_of(FIRST) == directory.logs[TP].segments[0].size_bytes


@pytest.mark.parametrize(
    ("suffix", "fault", "again"),
    [
        case
        for case in product([".index", ".timeindex", ".txnindex"], ["flip", "cut", "zero", "gone"], [False, True])
        if case != (".index", "cut", False)  # an index without entries is slow, not wrong
    ],
)
def test_a_corrupt_index_is_rebuilt_as_it_was(suffix: str, fault: str, again: bool) -> None:
    disk = SimDisk()
    directory = filled(disk)
    scrubber = scrubbed(directory, disk) if again else Scrubber(directory, disk)
    path = directory.logs[TP].segments[1].path(suffix)
    before = whole(disk, path)
    corrupt(disk, path, fault)

    one_pass(scrubber)

    assert [finding.file for finding in scrubber.findings.values()] == [path]
    assert whole(disk, path) == before
    again_scrubber = scrubbed(directory, disk)
    assert again_scrubber.findings == {}


def whole(disk: SimDisk, path: PurePath) -> bytes:
    return disk.open(path).read_at(0, 1 << 30)


def corrupt(disk: SimDisk, path: PurePath, harm: str) -> None:
    """What a disk does, which leaves the time of modification alone."""
    written_ns = disk.modified_ns(path)
    match harm:
        case "flip":
            disk.flip_bit(path, 8 * (disk.size_of(path) - 2))
        case "cut":
            disk.open(path).truncate(0)
        case "zero":
            size = disk.size_of(path)
            disk.open(path).write_at(0, bytes(size))
        case _:
            disk.remove(path)
            return
    disk._inode(path).modified = written_ns


def test_a_base_offset_moved_into_a_gap_of_compaction_is_found_by_the_checksum_alone() -> None:
    disk = SimDisk()
    config = LogConfig(index_interval_bytes=200, cleanup_policy=("compact",))
    directory = filled(disk, config)
    thin_out(disk, directory)
    directory = open_directory(disk, config)
    scrubbed(directory, disk)  # rebuilds the indexes
    assert scrubbed(directory, disk).findings == {}
    directory.close()

    at = position_of(disk, FIRST, 3)
    disk.flip_bit(FIRST, (at + 7) * 8)  # offsets 12 and 13 become 13 and 14; 16 comes next
    directory = open_directory(disk, config)
    log = directory.logs[TP]

    with pytest.raises(CorruptMessage, match="does not match its block checksum"):
        log.read(12, max_bytes=1, end_offset=log.end_offset)
    [finding] = scrubbed(directory, disk).findings.values()
    assert "does not match its block checksum" in finding.what
    assert finding.costs_records


def thin_out(disk: SimDisk, directory: LogDirectory) -> None:
    """Take every second batch out of the first segment, as compaction might, and put its indexes away."""
    segment = directory.logs[TP].segments[0]
    data = whole(disk, FIRST)
    kept = b"".join(
        data[at : at + header.size_bytes] for number, (at, header) in enumerate(split(data)) if number % 2 == 0
    )
    directory.close()
    file = disk.open(FIRST)
    file.truncate(0)
    file.append(kept)
    for suffix in (".index", ".timeindex"):
        disk.remove(segment.path(suffix))


def test_corrupt_small_files_are_rewritten() -> None:
    disk = SimDisk()
    directory = filled(disk)
    directory.checkpoint()
    scrubber = scrubbed(directory, disk)
    names = [
        ROOT / "recovery-point-offset-checkpoint",
        ROOT / "replication-offset-checkpoint",
        ROOT / "meta.properties",
        PLACE / "leader-epoch-checkpoint",
    ]
    before = [whole(disk, name) for name in names if name.name != "meta.properties"]
    for name in names:
        disk.flip_bit(name, 8 * (disk.size_of(name) - 2))

    one_pass(scrubber)

    assert {finding.file for finding in scrubber.findings.values()} == set(names)
    assert [whole(disk, name) for name in names if name.name != "meta.properties"] == before
    one_pass(scrubber)
    assert len(scrubber.findings) == len(names)


def test_a_segment_that_changes_under_the_look_is_left_to_the_next_pass() -> None:
    disk = SimDisk()
    directory = filled(disk)
    scrubber = Scrubber(directory, disk)
    log = directory.logs[TP]
    work = next(iter(scrubber.plan()))
    found = scrubber.verify(work, lambda size_bytes: None)
    log.truncate_to(5)

    assert scrubber.conclude(work, found) == 0
    assert not disk.exists(checksums_path(PLACE, 0))
    one_pass(scrubber)
    assert scrubber.findings == {}


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_log_that_is_being_truncated_is_left_to_the_next_pass(steps: int) -> None:
    disk = SimDisk()
    directory = filled(disk)
    truncation = directory.logs[TP].truncation(25)
    for _ in range(steps):
        next(truncation, None)
    scrubber = scrubbed(directory, disk)
    assert scrubber.findings == {}
    for _ in truncation:
        pass
    directory.logs[TP].flush()
    one_pass(scrubber)
    assert scrubber.findings == {}
    assert scrubber.segments_seen > 0


def test_the_report_says_what_was_found() -> None:
    disk = SimDisk()
    directory = filled(disk)
    disk.flip_bit(FIRST, 8 * 70)
    scrubber = scrubbed(directory, disk)

    scrubber.write_report(now_ms=NOW_MS)

    report = read_report(disk, ROOT)
    assert report is not None
    assert (report["passes"], report["written_ms"]) == (1, NOW_MS)
    findings = report["findings"]
    assert isinstance(findings, list)
    [finding] = findings
    assert finding["file"] == str(FIRST)
    assert (finding["first_offset"], finding["last_offset"]) == (0, 1)
    disk.flip_bit(ROOT / REPORT_FILE, 5)
    assert read_report(disk, ROOT) is None


def test_epochs_that_kafka_wrote_are_verified_before_they_verify_batches() -> None:
    disk = SimDisk()
    filled(disk).close()
    disk.remove(ROOT / "ottla-copies")
    path = PLACE / "leader-epoch-checkpoint"
    right = whole(disk, path)
    file = disk.open(path)
    file.truncate(0)
    file.append(right.replace(b"\n1 14\n", b"\n1 12\n"))

    directory = open_directory(disk, CONFIG)
    log = directory.logs[TP]
    assert read_all(log) == list(range(log.end_offset))
    assert log.epochs.epoch_of(12) == 1
    scrubber = scrubbed(directory, disk)

    assert [finding.file for finding in scrubber.findings.values()] == [path]
    assert log.epochs.epoch_of(12) == 0
    assert log.epochs.certain
    assert whole(disk, path) == right


@pytest.mark.parametrize("again", [False, True], ids=["before the first look", "after it"])
def test_a_corrupt_snapshot_is_found_and_given_up(again: bool) -> None:
    disk = SimDisk()
    directory = filled(disk)
    scrubber = scrubbed(directory, disk) if again else Scrubber(directory, disk)
    log = directory.logs[TP]
    path = log.segments[1].path(".snapshot")
    disk.flip_bit(path, 8 * (disk.size_of(path) - 2))

    one_pass(scrubber)

    assert [finding.file for finding in scrubber.findings.values()] == [path]
    assert not disk.exists(path)
    assert log.segments[1].base_offset not in log.snapshots.offsets


@pytest.mark.parametrize("before", [6, 14, 15, 21])
def test_batches_whose_epochs_were_forgotten_with_their_records_are_no_corrupt(before: int) -> None:
    disk = SimDisk()
    directory = filled(disk)
    log = directory.logs[TP]
    log.update_high_watermark(log.end_offset)
    log.delete_records(before)
    directory.close()

    directory = open_directory(disk, CONFIG)

    assert scrubbed(directory, disk).findings == {}
    assert read_all(directory.logs[TP]) == list(range(before, log.end_offset))
    disk.process_died()
    disk.remove(ROOT / ".kafka_cleanshutdown")
    directory = open_directory(disk, CONFIG)
    assert scrubbed(directory, disk).findings == {}
    assert read_all(directory.logs[TP]) == list(range(before, log.end_offset))


def compacted(disk: SimDisk) -> LogConfig:
    """A thinned-out first segment that has its checksums, after a clean stop."""
    config = LogConfig(index_interval_bytes=200, cleanup_policy=("compact",))
    thin_out(disk, filled(disk, config))
    directory = open_directory(disk, config)
    scrubbed(directory, disk)
    scrubbed(directory, disk)
    assert disk.exists(checksums_path(PLACE, 0))
    directory.close()
    return config


def test_a_batch_that_is_bad_by_itself_does_not_discredit_the_others_of_its_block() -> None:
    disk = SimDisk()
    config = compacted(disk)
    undamaged = read_all(open_directory(disk, config).logs[TP])
    disk.process_died()
    at = position_of(disk, FIRST, 3)
    disk.flip_bit(FIRST, 8 * (at + 70))

    log = open_directory(disk, config).logs[TP]

    assert read_all(log) == [offset for offset in undamaged if offset not in (12, 13)]


def test_corrupt_checksums_report_no_other_file() -> None:
    disk = SimDisk()
    config = compacted(disk)
    path = checksums_path(PLACE, 0)
    undamaged = read_all(open_directory(disk, config).logs[TP])
    for bit in range(0, 8 * disk.size_of(path), 37):
        disk.process_died()
        disk.flip_bit(path, bit)
        assert read_checksums(disk, path) is None
        assert read_all(open_directory(disk, config).logs[TP]) == undamaged
        disk.flip_bit(path, bit)
