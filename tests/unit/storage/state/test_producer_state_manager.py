"""Tests the verification of transactions: guards, the epoch check before them, and the lowest sequence."""

import pytest

from ottla.core.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.records.batch import BatchHeader
from ottla.storage.state.end_marker import Marker, MarkerType
from ottla.storage.state.producer_state_manager import (
    EPOCH_MAX,
    NOT_REQUIRED,
    BatchMetadata,
    ProducerStateManager,
    VerificationGuard,
)
from tests.support.storage import NOW_MS, batch, marker

PRODUCER = 9
DAY_MS = 86_400_000


def begin(producers: ProducerStateManager, *, sequence: int = 0, epoch: int = 0, v2: bool = False) -> VerificationGuard:
    guard = producers.begin_verification(PRODUCER, sequence, epoch, supports_epoch_bump=v2, now_ms=NOW_MS)
    assert guard is not None
    return guard


def check(
    producers: ProducerStateManager, guard: VerificationGuard | None, *, sequence: int = 0, epoch: int = 0
) -> BatchMetadata | None:
    return producers.check_data_batch(PRODUCER, epoch, sequence, 1, transactional=True, guard=guard)


def append(producers: ProducerStateManager, offset: int, *, sequence: int = 0, epoch: int = 0) -> None:
    written = BatchMetadata(sequence, sequence, offset, offset, NOW_MS)
    producers.append_data_batch(PRODUCER, epoch, written, transactional=True, now_ms=NOW_MS)


def end(producers: ProducerStateManager, offset: int, *, epoch: int = 0, coordinator_epoch: int = 0) -> None:
    abort = Marker(MarkerType.ABORT, coordinator_epoch)
    producers.append_end_marker(PRODUCER, epoch, abort, offset=offset, timestamp=NOW_MS, now_ms=NOW_MS)


def test_the_first_batch_of_a_transaction_needs_a_guard_and_later_ones_none() -> None:
    producers = ProducerStateManager()
    with pytest.raises(InvalidTxnState, match="not part of an ongoing transaction"):
        check(producers, None)
    check(producers, begin(producers))
    append(producers, 0)
    assert producers.begin_verification(PRODUCER, 1, 0, supports_epoch_bump=False, now_ms=NOW_MS) is None
    check(producers, None, sequence=1)


def test_a_batch_of_an_old_epoch_is_refused_without_a_verification() -> None:
    producers = ProducerStateManager()
    end(producers, 0, epoch=7)
    with pytest.raises(InvalidProducerEpoch):
        begin(producers, epoch=6)
    check(producers, begin(producers, epoch=7), epoch=7)


def test_a_marker_between_verification_and_append_makes_the_guard_void() -> None:
    producers = ProducerStateManager()
    delayed = begin(producers)
    end(producers, 0)
    with pytest.raises(InvalidTxnState):
        check(producers, delayed)
    fresh = begin(producers)
    assert fresh is not delayed
    with pytest.raises(InvalidTxnState):
        check(producers, delayed)  # of the transaction before: the guard of the next one does not count for it
    check(producers, fresh)


def test_the_first_batch_after_a_transactions_end_needs_a_new_verification() -> None:
    producers = ProducerStateManager()
    used = begin(producers)
    append(producers, 0)
    end(producers, 1)
    for guard in (None, used):
        with pytest.raises(InvalidTxnState):
            check(producers, guard, sequence=1)
    check(producers, begin(producers, sequence=1), sequence=1)


def test_a_fenced_epoch_is_reported_before_a_missing_verification() -> None:
    producers = ProducerStateManager()
    append(producers, 0, epoch=5)
    end(producers, 1, epoch=6)
    with pytest.raises(InvalidProducerEpoch):
        check(producers, None, epoch=5, sequence=1)
    with pytest.raises(InvalidTxnState):
        check(producers, None, epoch=6)


def test_a_batch_of_the_next_epoch_is_verified_although_the_last_transaction_is_open() -> None:
    producers = ProducerStateManager()
    append(producers, 0, epoch=5)
    with pytest.raises(InvalidTxnState):
        check(producers, None, epoch=6)
    check(producers, begin(producers, epoch=6), epoch=6)


def test_a_later_batch_is_not_appended_before_one_that_is_still_to_be_verified() -> None:
    producers = ProducerStateManager()
    first, second = begin(producers, sequence=0), begin(producers, sequence=1)
    assert first is second
    with pytest.raises(OutOfOrderSequenceNumber):
        check(producers, second, sequence=1)
    check(producers, first, sequence=0)
    begin(producers, sequence=7, epoch=1)  # a new epoch begins its sequences again
    check(producers, first, sequence=7, epoch=1)


def test_a_duplicate_needs_no_verification() -> None:
    producers = ProducerStateManager()
    append(producers, 0)
    end(producers, 1)
    duplicate = check(producers, None)
    assert duplicate is not None and duplicate.first_offset == 0


def test_a_verification_that_was_never_used_expires() -> None:
    producers = ProducerStateManager()
    guard = begin(producers)
    producers.remove_expired(NOW_MS + DAY_MS - 1, after_ms=DAY_MS)
    check(producers, guard)
    producers.remove_expired(NOW_MS + DAY_MS, after_ms=DAY_MS)
    with pytest.raises(InvalidTxnState):
        check(producers, guard)


def test_offsets_that_a_group_commits_in_a_transaction_are_verified_and_have_no_sequence() -> None:
    producers = ProducerStateManager()
    records = batch(b"offsets", producer_id=PRODUCER, epoch=3, sequence=-1, transactional=True)
    header = BatchHeader(records)
    with pytest.raises(InvalidTxnState):
        producers.check_coordinator_batch(header, records, None)
    guard = producers.begin_verification(PRODUCER, -1, 3, supports_epoch_bump=True, now_ms=NOW_MS)
    assert producers.check_coordinator_batch(header, records, guard) is None
    producers.update(header, None, 10, 10, NOW_MS, NOW_MS)
    assert producers.first_unstable_offset() == 10
    assert producers.check_coordinator_batch(header, records, None) is None
    older = batch(b"offsets", producer_id=PRODUCER, epoch=2, sequence=-1, transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        producers.check_coordinator_batch(BatchHeader(older), older, None)
    plain = batch(b"offsets", producer_id=PRODUCER, epoch=3, sequence=-1)
    with pytest.raises(InvalidTxnState):
        producers.check_coordinator_batch(BatchHeader(plain), plain, None)


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "error"),
    [(4, 9, InvalidProducerEpoch), (5, 6, TransactionCoordinatorFenced), (5, 7, None), (6, 8, None)],
)
def test_markers_are_fenced_by_the_producers_epoch_and_the_coordinators(
    epoch: int, coordinator_epoch: int, error: type[KafkaError] | None
) -> None:
    producers = ProducerStateManager()
    append(producers, 0, epoch=5)
    end(producers, 1, epoch=5, coordinator_epoch=7)
    records = marker(PRODUCER, epoch, commit=True, coordinator_epoch=coordinator_epoch)
    if error is None:
        assert producers.check_coordinator_batch(BatchHeader(records), records, None) is not None
        return
    with pytest.raises(error):
        producers.check_coordinator_batch(BatchHeader(records), records, None)


def test_the_first_unstable_offset_is_the_oldest_of_open_and_unreplicated_transactions() -> None:
    producers = ProducerStateManager()
    for producer_id, offset in ((1, 0), (2, 1), (3, 2)):
        written = BatchMetadata(0, 0, offset, offset, NOW_MS)
        producers.append_data_batch(producer_id, 0, written, transactional=True, now_ms=NOW_MS)
    commit = Marker(MarkerType.COMMIT, 0)
    producers.append_end_marker(1, 0, commit, offset=3, timestamp=NOW_MS, now_ms=NOW_MS)
    assert producers.first_unstable_offset() == 0, "its marker is not replicated yet"
    producers.high_watermark_updated(3)
    assert producers.first_unstable_offset() == 0
    producers.high_watermark_updated(4)
    assert producers.first_unstable_offset() == 1
    assert producers.late_transactions(NOW_MS + 2, after_ms=1) == [(2, 1), (3, 2)]
    assert producers.late_transactions(NOW_MS + 1, after_ms=1) == []


def test_with_implicitly_added_partitions_a_producer_without_state_begins_with_sequence_0() -> None:
    producers = ProducerStateManager()
    guard = begin(producers, sequence=3, v2=True)
    with pytest.raises(OutOfOrderSequenceNumber, match="Expected sequence 0"):
        check(producers, guard, sequence=3)
    check(ProducerStateManager(), NOT_REQUIRED, sequence=3)
    older = ProducerStateManager()
    check(older, begin(older, sequence=3), sequence=3)


def test_a_marker_of_the_second_version_has_a_higher_epoch_than_its_transaction() -> None:
    producers = ProducerStateManager()
    producers.check_epoch_bump(PRODUCER, 0)
    append(producers, 0, epoch=5)
    with pytest.raises(InvalidProducerEpoch):
        producers.check_epoch_bump(PRODUCER, 5)
    producers.check_epoch_bump(PRODUCER, 6)
    end(producers, 1, epoch=6)
    producers.check_epoch_bump(PRODUCER, 6)  # the coordinator sends it again: it did not get the answer
    append(producers, 2, epoch=EPOCH_MAX)
    producers.check_epoch_bump(PRODUCER, EPOCH_MAX)
