"""Reading a log through, and following it, across everything that moves under a reader."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.records.batch import split
from ottla.records.record_reader import read_records
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, batch, open_log


def new_log() -> PartitionLog:
    return open_log(SimDisk(), LogConfig())


def read_from(log: PartitionLog, offset: int) -> list[int]:
    """The offsets that a consumer at `offset` gets in one fetch."""
    region = log.read(offset, max_bytes=1 << 20, end_offset=log.end_offset)
    if region is None:
        return []
    view = memoryview(region.read())
    return [record.offset for at, head in split(view) for record in read_records(view[at : at + head.size_bytes])]


def test_a_consumer_at_the_end_of_a_segment_goes_on_in_the_next_one() -> None:
    log = new_log()
    log.append(batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
    assert read_from(log, 0) == [0]
    assert read_from(log, 1) == []

    log.roll()
    log.append(batch(b"b"), leader_epoch=0, now_ms=NOW_MS)

    assert read_from(log, 1) == [1]


def test_a_roll_by_time_does_not_stop_a_reader() -> None:
    log = new_log()
    log.append(batch(b"old", timestamp_ms=NOW_MS - 30 * 86_400_000), leader_epoch=0, now_ms=NOW_MS)
    assert read_from(log, 0) == [0]
    log.append(batch(b"new"), leader_epoch=0, now_ms=NOW_MS)

    assert read_from(log, 1) == [1]


def test_a_segment_that_was_closed_and_opened_again_is_read_as_before() -> None:
    log = new_log()
    log.append(batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
    log.append(batch(b"b"), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    log.close_files()
    log.segment_list.forget_positions()

    assert read_from(log, 0) == [0, 1]


@given(st.lists(st.sampled_from(["append", "roll", "read", "flush"]), min_size=5, max_size=60))
def test_a_reader_that_follows_the_log_sees_every_offset_once_in_order(steps: list[str]) -> None:
    log, seen = new_log(), list[int]()
    for step in [*steps, *["read"] * (len(steps) + 1)]:
        match step:
            case "append":
                log.append(batch(b"x", b"y"), leader_epoch=0, now_ms=NOW_MS)
            case "roll":
                log.roll()
            case "flush":
                log.flush()
            case _:
                seen += read_from(log, len(seen))

    assert seen == list(range(log.end_offset))
