"""Tests a corrupt batch on the disk: reads of it are refused, all other reads succeed."""

import logging
from pathlib import PurePath

import pytest

from ottla.core.errors import CorruptMessage
from ottla.records.batch import HEADER_BYTES, BatchHeader, split
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, batch, content, open_directory, records_in

LOG = ROOT / str(TP) / "00000000000000000000.log"
CONFIG = LogConfig(index_interval_bytes=200)
FIELDS = {  # where a field begins, and which of its bits to flip: counted from the least of its first byte
    "base offset, lowest bit": (7, 0),
    "base offset, highest bit": (0, 7),
    "base offset, a middle bit": (5, 3),
    "length, lowest bit": (11, 0),
    "length, highest bit": (8, 7),
    "length, a middle bit": (10, 1),
    "leader epoch": (15, 0),
    "leader epoch, made lower": (15, 1),
    "magic": (16, 0),
    "checksum": (17, 5),
    "attributes": (22, 0),
    "last offset delta": (26, 2),
    "last offset delta, huge": (23, 6),
    "greatest timestamp": (40, 0),
    "producer id": (50, 0),
    "record count": (60, 0),
    "a record": (HEADER_BYTES + 9, 4),
}


def written(disk: SimDisk, *, batches: int = 30, rolls: tuple[int, ...] = ()) -> list[BatchHeader]:
    """Two records a batch, epoch 2 from the fifth batch on, then a clean stop. Gives the headers."""
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP)
    for number in range(batches):
        if number in rolls:
            log.roll()
        log.append(
            batch(b"%d" % number * 20, b"second", timestamp_ms=NOW_MS + number),
            leader_epoch=1 if number < 5 else 2,
            now_ms=NOW_MS,
        )
    directory.close()
    return [header for path in logs(disk) for _, header in split(whole(disk, path))]


def logs(disk: SimDisk) -> list[PurePath]:
    return [LOG.parent / name for name in disk.names_in(LOG.parent) if name.endswith(".log")]


def whole(disk: SimDisk, path: PurePath) -> bytes:
    file = disk.open(path)
    return file.read_at(0, file.size())


def position_of(disk: SimDisk, number: int, path: PurePath = LOG) -> int:
    return [at for at, _ in split(whole(disk, path))][number]


def reopened(disk: SimDisk) -> PartitionLog:
    disk.process_died()
    return open_directory(disk, CONFIG).logs[TP]


def served(log: PartitionLog, *, max_bytes: int = 1 << 20) -> tuple[list[int], list[int]]:
    """Which offsets come, and which are refused, to a reader who steps over what is refused."""
    came: list[int] = []
    refused: list[int] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        try:
            region = log.read(offset, max_bytes=max_bytes, end_offset=log.end_offset)
            found = [record.offset for record in records_in(content(region)) if record.offset >= offset]
            assert found, f"nothing at {offset}"
            came += found
            offset = found[-1] + 1
        except CorruptMessage:
            refused.append(offset)
            offset += 1
    return came, refused


@pytest.mark.parametrize("number", [0, 4, 5, 13, 28])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_one_flipped_bit_costs_its_batch_and_no_other(field: str, number: int, max_bytes: int) -> None:
    disk = SimDisk()
    written(disk)
    byte, bit = FIELDS[field]
    disk.flip_bit(LOG, (position_of(disk, number) + byte) * 8 + bit)

    came, refused = served(reopened(disk), max_bytes=max_bytes)

    assert refused == [2 * number, 2 * number + 1]
    assert came == [offset for offset in range(60) if offset not in refused]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("number", [0, 9, 10, 19, 20])
def test_a_flipped_bit_at_a_segments_edge_costs_its_batch_alone(field: str, number: int) -> None:
    disk = SimDisk()
    written(disk, rolls=(10, 20))
    byte, bit = FIELDS[field]
    path = logs(disk)[number // 10]
    disk.flip_bit(path, (position_of(disk, number % 10, path) + byte) * 8 + bit)

    came, refused = served(reopened(disk))

    assert refused == [2 * number, 2 * number + 1]
    assert len(came) == 58


@pytest.mark.parametrize("offset", range(0, 60, 7))
def test_a_lookup_after_a_corrupt_batch_finds_its_batch_whatever_field_is_corrupt(offset: int) -> None:
    for byte, bit in FIELDS.values():
        disk = SimDisk()
        written(disk)
        disk.flip_bit(LOG, (position_of(disk, 8) + byte) * 8 + bit)
        log = reopened(disk)
        if offset // 2 == 8:
            with pytest.raises(CorruptMessage):
                log.read(offset, max_bytes=1, end_offset=60)
        else:
            region = log.read(offset, max_bytes=1, end_offset=60)
            assert [record.offset for record in records_in(content(region))] == [offset & ~1, offset | 1]


def test_the_log_names_the_place_and_the_next_step_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    written(disk)
    at = position_of(disk, 8)
    disk.flip_bit(LOG, (at + 80) * 8)
    log = reopened(disk)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            served(log)

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 1
    assert f"{LOG}, bytes {at} to " in lines[0]
    assert "offsets 16 to 17" in lines[0]
    assert ". Copy the partition from another replica" in lines[0]


def test_batches_that_this_process_wrote_or_has_checked_are_not_read_again_before_they_are_sent() -> None:
    disk = SimDisk()
    written(disk)
    log = reopened(disk)
    served(log)
    log.append(batch(b"new"), leader_epoch=2, now_ms=NOW_MS)
    assert log.active.verified_ranges_at(0) is None

    disk.flip_bit(LOG, (position_of(disk, 8) + 80) * 8)
    came, refused = served(log)

    assert (len(came), refused) == (61, []), "it would be found by the scrubber: reading costs what sending costs"


def test_a_reader_checks_a_portion_at_a_time() -> None:
    disk = SimDisk()
    log = open_directory(disk, CONFIG).create_log(TP)
    for _ in range(60):
        log.append(batch(b"x" * 200_000), leader_epoch=0, now_ms=NOW_MS)
    log.flush()

    log = reopened(disk)
    log.close_files()  # recovery has read it all; now it is as if it had lain there
    region = log.read(0, max_bytes=1 << 30, end_offset=log.end_offset)

    assert region is not None
    assert 200_000 <= region.size <= 3 << 20  # of twelve: one portion, and what the start had looked at
    assert served(log, max_bytes=1 << 30) == (list(range(60)), [])


def test_without_leave_to_check_little_more_is_read_than_a_look_up_needs() -> None:
    disk = SimDisk()
    directory = open_directory(disk, CONFIG)
    log = directory.create_log(TP)
    for number in range(40):
        if number == 20:
            log.roll()
        log.append(batch(b"x" * 10_000), leader_epoch=0, now_ms=NOW_MS)
    directory.close()
    log = reopened(disk)

    def size_at(offset: int, *, may_check: bool) -> int:
        region = log.read(offset, max_bytes=1 << 20, end_offset=40, may_check=may_check)
        return 0 if region is None else region.size

    assert size_at(0, may_check=False) < 30_000
    assert size_at(0, may_check=True) > 200_000
    assert size_at(0, may_check=False) > 200_000
    assert size_at(20, may_check=False) < 30_000


def test_a_sealed_segment_that_lost_its_end_is_refused_there() -> None:
    disk = SimDisk()
    written(disk, rolls=(10, 20))
    at = position_of(disk, 7)
    disk.open(LOG).truncate(at)
    log = reopened(disk)

    assert served(log) == ([*range(14), *range(20, 60)], [*range(14, 20)])


def test_a_batch_in_a_value_is_not_taken_for_the_one_after_the_corrupt_batch() -> None:
    disk = SimDisk()
    directory = open_directory(disk, LogConfig(index_interval_bytes=1 << 20))
    log = directory.create_log(TP)
    inner = bytes(batch(b"from another log", base_offset=2, leader_epoch=0))
    for value in (b"zero", inner * 3, b"two", b"three"):
        log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)
    directory.close()
    disk.flip_bit(LOG, (position_of(disk, 1) + 8) * 8 + 7)  # its length: where it ends is not known

    log = reopened(disk)
    came, refused = served(log)

    assert (came, refused) == ([0, 2, 3], [1])
    assert [record.value for record in records_in(content(log.read(2, max_bytes=1, end_offset=4)))] == [b"two"]


def test_a_look_up_by_time_is_refused_where_the_answer_may_have_been_in_what_was_lost() -> None:
    disk = SimDisk()
    written(disk, rolls=(10, 20))
    disk.open(LOG).truncate(position_of(disk, 7))
    for suffix in (".index", ".timeindex"):  # rebuilt indexes have no entry for it either
        disk.open(LOG.with_suffix(suffix)).truncate(0)
    log = reopened(disk)

    found = log.offset_for_timestamp(NOW_MS + 3, end_offset=60)
    assert found is not None
    assert found.offset == 6
    for time_ms in (NOW_MS + 8, NOW_MS + 15):
        with pytest.raises(CorruptMessage):
            log.offset_for_timestamp(time_ms, end_offset=60)


def test_a_look_up_by_time_is_refused_where_a_corrupt_batch_is_on_the_way() -> None:
    disk = SimDisk()
    written(disk)
    disk.flip_bit(LOG, (position_of(disk, 8) + 80) * 8)
    log = reopened(disk)

    found = log.offset_for_timestamp(NOW_MS + 7, end_offset=60)
    assert found is not None
    assert found.offset == 14
    with pytest.raises(CorruptMessage):
        log.offset_for_timestamp(NOW_MS + 8, end_offset=60)
