"""What may be appended, what is refused with which error, and what is stamped."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.core.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    TransactionCoordinatorFenced,
)
from ottla.records.batch import BatchHeader, increment_sequence, write_crc
from ottla.records.batch_faults import is_checksum_right
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from ottla.storage.log.producer_replay import HEADERS_READ_BACK_MAX
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import (
    NOW_MS,
    TP,
    StillClock,
    batch,
    content,
    everything,
    marker,
    open_directory,
    open_log,
    records_in,
    values,
)

CONFIG = LogConfig()


def put(log: PartitionLog, records: memoryview, **more: Any) -> AppendInfo:
    return log.append(records, leader_epoch=0, now_ms=NOW_MS, **more)


def outcome(info: AppendInfo) -> tuple[int, int, int, int, bool]:
    return info.first_offset, info.last_offset, info.append_time_ms, info.log_start_offset, info.duplicate


def changed(at: int, new: bytes, *, crc: bool = True) -> memoryview:
    """A good batch with bytes changed, and its checksum made right again."""
    records = batch(b"a", b"b")
    records[at : at + len(new)] = new
    if crc:
        write_crc(records, 0, records.nbytes)
    return records


@pytest.mark.parametrize(
    ("records", "error"),
    [
        pytest.param(lambda: batch(b"a")[:40], InvalidRecord, id="shorter than a header"),
        pytest.param(lambda: batch(b"a")[:-1], InvalidRecord, id="shorter than it says"),
        pytest.param(lambda: changed(8, (3).to_bytes(4, "big"), crc=False), CorruptMessage, id="length below header"),
        pytest.param(lambda: changed(70, b"\xff", crc=False), CorruptMessage, id="wrong checksum"),
        pytest.param(lambda: changed(16, b"\x01"), InvalidRecord, id="magic 1"),
        pytest.param(lambda: memoryview(bytearray(bytes(batch(b"a")) * 2)), InvalidRecord, id="two batches"),
        pytest.param(lambda: changed(57, (3).to_bytes(4, "big")), InvalidRecord, id="count beyond the offsets"),
        pytest.param(lambda: changed(23, (7).to_bytes(4, "big")), InvalidRecord, id="offsets beyond the count"),
        pytest.param(lambda: changed(57, (0).to_bytes(4, "big")), InvalidRecord, id="no records"),
        pytest.param(lambda: changed(21, b"\x00\x07"), InvalidRecord, id="unknown codec"),
        pytest.param(lambda: changed(21, b"\x00\x20"), InvalidRecord, id="control batch from a client"),
        pytest.param(lambda: changed(66, b"\x09"), InvalidRecord, id="a record that its key does not fill"),
        pytest.param(lambda: batch(b"a", base_offset=5), InvalidRecord, id="base offset not 0"),
        pytest.param(lambda: batch(b"a", producer_id=4, epoch=0), InvalidRecord, id="producer without a sequence"),
        pytest.param(lambda: batch(b"a", timestamp_ms=NOW_MS + 3_600_001), InvalidTimestamp, id="too far ahead"),
        pytest.param(lambda: batch(b"x" * 1_048_588), MessageTooLarge, id="larger than max.message.bytes"),
    ],
)
def test_a_bad_batch_gets_its_error_and_leaves_no_trace(
    records: Callable[[], memoryview], error: type[KafkaError]
) -> None:
    disk = SimDisk()
    log = open_log(disk)
    put(log, batch(b"before"))
    changes = disk.changes
    with pytest.raises(error) as raised:
        put(log, records())
    assert type(raised.value) is error
    assert (log.end_offset, disk.changes, log.producers.describe()) == (1, changes, [])
    assert put(log, batch(b"after")).first_offset == 1


def test_a_batch_larger_than_a_segment_is_refused_as_such() -> None:
    log = open_log(SimDisk(), replace(CONFIG, segment_bytes=200))
    with pytest.raises(RecordListTooLarge):
        put(log, batch(b"x" * 300))


def test_a_record_older_than_allowed_is_refused_even_inside_a_batch_of_younger_ones() -> None:
    log = open_log(SimDisk(), replace(CONFIG, timestamp_before_max_ms=1000))
    put(log, batch(b"a", timestamp_ms=NOW_MS - 1000))
    with pytest.raises(InvalidTimestamp):
        put(log, batch(b"a", timestamp_ms=NOW_MS - 1001))


def test_a_compacted_topic_takes_only_records_with_keys() -> None:
    log = open_log(SimDisk(), replace(CONFIG, cleanup_policy=("compact",)))
    put(log, batch(b"a", key=b"k", codec=4))
    with pytest.raises(InvalidRecord):
        put(log, batch(b"a", codec=4))


def test_offsets_and_epoch_are_stamped_in_the_callers_buffer_and_the_checksum_still_fits() -> None:
    log = open_log(SimDisk())
    put(log, batch(b"a", b"b"))
    records = batch(b"c")
    log.append(records, leader_epoch=6, now_ms=NOW_MS)
    header = BatchHeader(records)
    assert (header.base_offset, header.partition_leader_epoch) == (2, 6)
    assert is_checksum_right(records, header)
    assert content(log.read(2, max_bytes=1000, end_offset=3)) == bytes(records)


def test_log_append_time_stamps_every_record_with_the_arrival() -> None:
    log = open_log(SimDisk(), replace(CONFIG, timestamp_type="LogAppendTime"))
    appended = put(log, batch(b"a", b"b", timestamp_ms=5))
    assert appended.append_time_ms == NOW_MS
    data = content(log.read(0, max_bytes=1000, end_offset=2))
    assert [record.timestamp_ms for record in records_in(data)] == [NOW_MS, NOW_MS]
    assert is_checksum_right(data, BatchHeader(data))
    found = log.offset_for_timestamp(NOW_MS, end_offset=2)
    assert found is not None and found.offset == 0


class TestIdempotence:
    """The table at the head of storage/state/producer_state_manager.py, line by line."""

    def send(self, log: PartitionLog, sequence: int, *, epoch: int = 0, count: int = 1, pid: int = 4) -> AppendInfo:
        return put(log, batch(*[b"v"] * count, producer_id=pid, epoch=epoch, sequence=sequence))

    def test_the_last_five_batches_are_answered_with_their_first_place(self) -> None:
        log = open_log(SimDisk())
        sent = [self.send(log, at * 2, count=2) for at in range(8)]
        for at in range(3, 8):
            assert outcome(self.send(log, at * 2, count=2)) == (*outcome(sent[at])[:-1], True)
        with pytest.raises(OutOfOrderSequenceNumber):
            self.send(log, 4, count=2)
        assert log.end_offset == 16

    @pytest.mark.parametrize("others", [0, 7])
    @pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
    @pytest.mark.parametrize("sequence", [0, 2**31 - 10])  # the last ones wrap
    def test_the_last_five_batches_are_known_after_a_restart(
        self, sequence: int, segment_bytes: int, others: int
    ) -> None:
        disk, config = SimDisk(), LogConfig(segment_bytes=segment_bytes)
        directory = open_directory(disk, config)
        log = directory.create_log(TP, uuid.UUID(int=7))
        sequences = [increment_sequence(sequence, at * 2) for at in range(8)]
        sent = []
        for at, each in enumerate(sequences):
            sent.append(self.send(log, each, count=2))
            for pid in range(10, 10 + others):
                self.send(log, at, pid=pid)
        directory.close()
        log = open_directory(disk, config).logs[TP]
        for at in (4, 3, 7, 5, 6):
            again = self.send(log, sequences[at], count=2)
            assert (again.duplicate, again.first_offset) == (True, sent[at].first_offset)
        with pytest.raises(OutOfOrderSequenceNumber):
            self.send(log, sequences[2], count=2)
        end = log.end_offset
        assert self.send(log, increment_sequence(sequence, 16), count=2).first_offset == end
        assert self.send(log, sequences[4], count=2).duplicate

    def test_the_log_is_read_once_and_not_far_for_a_batch_that_is_none_of_the_last(self) -> None:
        disk = SimDisk()
        directory = open_directory(disk)
        log = directory.create_log(TP, uuid.UUID(int=7))
        first = self.send(log, 0)
        for at in range(HEADERS_READ_BACK_MAX + 10):
            self.send(log, at, pid=5)
        self.send(log, 1)
        directory.close()
        log = open_directory(disk).logs[TP]
        for wrong in (3, 0):  # a gap reads nothing; too much is between the batches of this one
            with pytest.raises(OutOfOrderSequenceNumber):
                self.send(log, wrong)
        assert first.first_offset == 0
        assert self.send(log, HEADERS_READ_BACK_MAX + 6, pid=5).duplicate
        assert self.send(log, 2).first_offset == log.end_offset - 1

    def test_a_batch_of_a_transaction_that_ended_is_known_after_a_restart(self) -> None:
        disk = SimDisk()
        directory = open_directory(disk)
        log = directory.create_log(TP, uuid.UUID(int=7))
        sent = [put(log, batch(b"t", producer_id=4, epoch=0, sequence=at, transactional=True)) for at in range(3)]
        put(log, marker(4, 0, commit=True), origin=AppendOrigin.COORDINATOR)
        directory.close()
        log = open_directory(disk).logs[TP]
        again = put(log, batch(b"t", producer_id=4, epoch=0, sequence=0, transactional=True), guard=None)
        assert (again.duplicate, again.first_offset) == (True, sent[0].first_offset)

    def test_a_repeat_with_another_number_of_records_is_out_of_order(self) -> None:
        log = open_log(SimDisk())
        self.send(log, 0, count=3)
        with pytest.raises(OutOfOrderSequenceNumber):
            self.send(log, 0, count=2)

    def test_a_gap_is_out_of_order(self) -> None:
        log = open_log(SimDisk())
        self.send(log, 0)
        with pytest.raises(OutOfOrderSequenceNumber):
            self.send(log, 2)

    def test_sequences_wrap_after_the_greatest_int32_even_inside_a_batch(self) -> None:
        log = open_log(SimDisk())
        self.send(log, 2**31 - 2, count=1)
        self.send(log, 2**31 - 1, count=3)
        assert log.producers.describe()[0].last_sequence == 1
        assert self.send(log, 2**31 - 1, count=3).duplicate
        assert self.send(log, 2).first_offset == 4

    def test_an_unknown_producer_may_begin_anywhere(self) -> None:
        assert self.send(open_log(SimDisk()), 77).first_offset == 0

    def test_a_new_epoch_begins_at_sequence_0(self) -> None:
        log = open_log(SimDisk())
        self.send(log, 5)
        with pytest.raises(OutOfOrderSequenceNumber):
            self.send(log, 6, epoch=1)
        self.send(log, 0, epoch=1)
        assert log.producers.describe()[0].producer_epoch == 1

    def test_an_older_epoch_is_fenced(self) -> None:
        log = open_log(SimDisk())
        self.send(log, 0, epoch=2)
        with pytest.raises(InvalidProducerEpoch):
            self.send(log, 1, epoch=1)

    def test_a_silent_producer_is_forgotten_and_one_with_old_record_times_is_not(self) -> None:
        clock = StillClock()
        log = open_log(SimDisk(), clock=clock)
        put(log, batch(b"v", timestamp_ms=1, producer_id=4, epoch=0, sequence=0))
        assert log.expire_producers(NOW_MS + 86_399_999) == 0
        assert log.expire_producers(NOW_MS + 86_400_000) == 1
        assert self.send(log, 9).first_offset == 1

    def test_a_failed_write_leaves_the_sequence_free_for_the_retry(self) -> None:
        disk = SimDisk()
        log = open_log(disk)
        disk.fail_at(1, 28)
        with pytest.raises(KafkaError):
            self.send(log, 0)
        assert not self.send(log, 0).duplicate


class TestTransactions:
    def test_the_last_stable_offset_waits_for_the_marker_and_for_its_replication(self) -> None:
        log = open_log(SimDisk())
        put(log, batch(b"plain"))
        put(log, batch(b"t", producer_id=4, epoch=0, sequence=0, transactional=True))
        put(log, batch(b"plain"))
        assert log.last_stable_offset == 1
        put(log, marker(4, 0, commit=True), origin=AppendOrigin.COORDINATOR)
        assert log.last_stable_offset == 1
        log.update_high_watermark(4)
        assert log.last_stable_offset == 4
        assert log.aborted_transactions(0, 4) == []

    def test_an_abort_is_listed_for_readers_of_its_range_and_survives_a_restart(self) -> None:
        log = open_log(SimDisk())
        put(log, batch(b"t", producer_id=4, epoch=0, sequence=0, transactional=True))
        put(log, marker(4, 0, commit=False), origin=AppendOrigin.COORDINATOR)
        entry = log.aborted_transactions(0, 2)[0]
        assert (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset) == (4, 0, 1, 2)
        assert log.aborted_transactions(2, 9) == []

    def test_a_plain_batch_inside_a_transaction_is_refused(self) -> None:
        log = open_log(SimDisk())
        put(log, batch(b"t", producer_id=4, epoch=0, sequence=0, transactional=True))
        with pytest.raises(InvalidTxnState):
            put(log, batch(b"t", producer_id=4, epoch=0, sequence=1))

    def test_markers_of_replaced_coordinators_and_producers_are_fenced(self) -> None:
        log = open_log(SimDisk())
        put(log, batch(b"t", producer_id=4, epoch=3, sequence=0, transactional=True))
        put(log, marker(4, 3, commit=True, coordinator_epoch=5), origin=AppendOrigin.COORDINATOR)
        with pytest.raises(TransactionCoordinatorFenced):
            put(log, marker(4, 3, commit=True, coordinator_epoch=4), origin=AppendOrigin.COORDINATOR)
        with pytest.raises(InvalidProducerEpoch):
            put(log, marker(4, 2, commit=True, coordinator_epoch=5), origin=AppendOrigin.COORDINATOR)


class TestReplication:
    def test_a_follower_takes_the_leaders_bytes_and_leaves_a_torn_batch_out(self) -> None:
        leader, follower = open_log(SimDisk()), open_log(SimDisk(), replace(CONFIG, segment_bytes=250))
        for at in range(6):
            leader.append(batch(b"v%d" % at, producer_id=2, epoch=0, sequence=at), leader_epoch=at // 3, now_ms=NOW_MS)
        data = bytearray(content(leader.read(0, max_bytes=10_000, end_offset=6)))
        appended = follower.append_as_follower(memoryview(data)[:-3], now_ms=NOW_MS)
        assert appended is not None and (appended.first_offset, appended.last_offset, follower.end_offset) == (0, 4, 5)
        assert follower.append_as_follower(memoryview(data)[-70:], now_ms=NOW_MS) is None or follower.end_offset == 6
        rest = bytearray(content(leader.read(5, max_bytes=10_000, end_offset=6)))
        if follower.end_offset == 5:
            follower.append_as_follower(memoryview(rest), now_ms=NOW_MS)
        assert everything(follower) == everything(leader)
        assert follower.epochs.entries == leader.epochs.entries
        assert follower.producers.describe() == leader.producers.describe()

    def test_a_wrong_checksum_or_an_offset_already_held_is_refused_whole(self) -> None:
        leader, follower = open_log(SimDisk()), open_log(SimDisk())
        for _ in range(2):
            put(leader, batch(b"v"))
        data = bytearray(content(leader.read(0, max_bytes=10_000, end_offset=2)))
        bad = bytearray(data)
        bad[-1] ^= 1
        for records in (bad, data + data):
            with pytest.raises(CorruptMessage):
                follower.append_as_follower(memoryview(records), now_ms=NOW_MS)
        assert follower.end_offset == 0


def test_deleting_beyond_the_high_watermark_is_refused() -> None:
    log = open_log(SimDisk())
    put(log, batch(b"a"))
    with pytest.raises(OffsetOutOfRange):
        log.delete_records(1)
    log.update_high_watermark(1)
    assert log.delete_records(1) == 1
    assert values(everything(log)) == []
