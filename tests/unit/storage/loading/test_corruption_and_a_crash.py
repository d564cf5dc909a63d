"""Tests a crash and a flipped bit together: corruption below the recovery point is not truncated."""

import pytest

from ottla.core.errors import CorruptMessage
from ottla.records.batch import split
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, batch, content, marker, open_directory, records_in

LOG = ROOT / str(TP) / "00000000000000000000.log"
BATCHES = 12


def crashed(disk: SimDisk, config: LogConfig, *, more: int = 0) -> list[int]:
    """Write batches of two records below the recovery point and `more` beyond it; returns their positions."""
    directory = open_directory(disk, config)
    log = directory.create_log(TP)
    for number in range(BATCHES):
        log.append(batch(b"%d" % number * 9, b"x", key=b"k"), leader_epoch=1 + number // 6, now_ms=NOW_MS)
    log.flush()
    directory.checkpoint()
    for _ in range(more):
        log.append(batch(b"more", b"y", key=b"k"), leader_epoch=2, now_ms=NOW_MS)
    log.flush()
    disk.process_died()
    return positions(disk)


def positions(disk: SimDisk) -> list[int]:
    return [at for at, _ in split(disk.open(LOG).read_at(0, 1 << 30))]


def served(log: PartitionLog) -> tuple[list[int], list[int]]:
    came: list[int] = []
    refused: list[int] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        try:
            data = content(log.read(offset, max_bytes=1, end_offset=log.end_offset))
        except CorruptMessage:
            refused.append(offset)
            offset += 1
            continue
        came += [record.offset for record in records_in(data) if record.offset >= offset]
        offset = came[-1] + 1
    return came, refused


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("number", [0, 5, 6, 10, 11])
@pytest.mark.parametrize(
    ("byte", "bit"),
    [(7, 5), (6, 0), (11, 0), (12, 0), (15, 0), (16, 0), (70, 1)],
    ids=["offset up", "offset far up", "length", "epoch far up", "epoch", "magic", "content"],
)
def test_one_batch_below_the_recovery_point_is_refused_and_nothing_is_cut(
    number: int, byte: int, bit: int, compacts: bool
) -> None:
    disk, config = SimDisk(), LogConfig(cleanup_policy=("compact",) if compacts else ("delete",))
    at = crashed(disk, config, more=2)[number]
    disk.flip_bit(LOG, 8 * (at + byte) + bit)

    log = open_directory(disk, config).logs[TP]

    assert log.end_offset == 2 * BATCHES + 4
    came, refused = served(log)
    assert refused == [2 * number, 2 * number + 1]
    assert came == [offset for offset in range(2 * BATCHES + 4) if offset not in refused]
    assert log.append(batch(b"new", key=b"k"), leader_epoch=3, now_ms=NOW_MS).first_offset == 2 * BATCHES + 4


def test_the_last_batch_below_the_recovery_point_moved_up_is_not_believed_though_nothing_follows() -> None:
    disk, config = SimDisk(), LogConfig(cleanup_policy=("compact",))
    at = crashed(disk, config)[-1]
    disk.flip_bit(LOG, 8 * (at + 7) + 6)

    log = open_directory(disk, config).logs[TP]

    assert log.end_offset == 2 * BATCHES
    assert served(log) == (list(range(2 * BATCHES - 2)), [2 * BATCHES - 2, 2 * BATCHES - 1])


def test_recovery_truncates_at_an_invalid_batch_beyond_the_recovery_point() -> None:
    disk, config = SimDisk(), LogConfig()
    at = crashed(disk, config, more=4)[BATCHES + 1]
    disk.flip_bit(LOG, 8 * (at + 70))

    log = open_directory(disk, config).logs[TP]

    assert log.end_offset == 2 * BATCHES + 2
    assert served(log) == (list(range(2 * BATCHES + 2)), [])
    assert disk.size_of(LOG) == at


@pytest.mark.parametrize("byte", [2 + 7, 2 + 8 + 7, 2 + 16 + 7], ids=["producer", "first offset", "last offset"])
def test_an_entry_of_aborted_transactions_that_names_no_marker_is_not_believed(byte: int) -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP)
    for turn in range(3):
        for producer_id in (1, 2):
            records = batch(b"%d" % turn, producer_id=producer_id, epoch=0, sequence=turn, transactional=True)
            log.append(records, leader_epoch=0, now_ms=NOW_MS)
            log.append(
                marker(producer_id, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
            )
    log.roll()
    log.append(batch(b"last"), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    directory.checkpoint()
    right = log.aborted_transactions(0, log.end_offset)
    assert len(right) == 6
    disk.process_died()
    disk.flip_bit(LOG.with_suffix(".txnindex"), 8 * (34 * 2 + byte))

    log = open_directory(disk).logs[TP]

    assert log.aborted_transactions(0, log.end_offset) == right
