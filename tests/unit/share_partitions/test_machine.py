"""One share partition: who gets which records, how often, and what is persisted before an answer."""

from __future__ import annotations

import pytest

from ottla.core.errors import ErrorCode
from ottla.share_coordinator.states import RecordState, StateBatch
from ottla.share_partitions.acknowledgements import AcknowledgeType, AcquiredRecords, AcquireMode
from ottla.share_partitions.events import (
    DeadLetters,
    DeadLettersDone,
    LogStartMoved,
    NotPersisted,
    Persisted,
    Release,
    SharePartitionLimits,
)
from ottla.share_partitions.machine import EXHAUSTED, REJECTED, PartitionMachine
from tests.support.share_driver import ShareDriver

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
LOCK_MS = SharePartitionLimits().lock_duration_ms


def test_a_record_that_is_accepted_is_never_delivered_again() -> None:
    driver = ShareDriver()
    assert driver.acquire("ada", (0, 9)) == [AcquiredRecords(0, 9, 1)]
    assert driver.acquire("bob", (0, 9)) == []
    assert driver.acknowledge_durably("ada", 0, 9) is ErrorCode.NONE
    assert (driver.machine.start_offset, driver.machine.next_fetch_offset) == (10, 10)
    assert driver.acquire("bob", (0, 9)) == []


def test_an_acknowledgement_is_answered_when_it_is_durable() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    ticket = driver.acknowledge("ada", 0, 9)
    assert ticket not in driver.replies
    (write,) = driver.writes
    assert write.batches == (StateBatch(0, 9, RecordState.ACKNOWLEDGED, 1),)
    assert (write.start_offset, write.delivery_complete_count) == (0, 10)
    assert driver.machine.start_offset == 0, "the start must not move before the write is durable"
    driver.feed(Persisted(write.write))
    assert driver.replies[ticket] is ErrorCode.NONE


def test_after_a_failed_write_the_member_holds_the_records_again() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    ticket = driver.acknowledge("ada", 0, 9)
    driver.feed(NotPersisted(driver.writes.pop().write, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.replies[ticket] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.states() == [(0, 9, "ACQUIRED", 1)]
    assert driver.acknowledge_durably("ada", 0, 9) is ErrorCode.NONE


def test_a_lock_that_expires_during_a_failing_write_is_released() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.acknowledge("ada", 0, 9)
    driver.wait(LOCK_MS)
    assert driver.states() == [(0, 9, "ACQUIRED", 1)], "the write may still succeed"
    driver.feed(NotPersisted(driver.writes.pop(0).write, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.states() == [(0, 9, "AVAILABLE", 1)]


def test_released_records_are_delivered_again_and_counted() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.acknowledge_durably("ada", 3, 5, RELEASE)
    assert driver.machine.next_fetch_offset == 3
    assert driver.acquire("bob", (0, 9)) == [AcquiredRecords(3, 5, 2)]


def test_a_record_released_after_its_last_delivery_is_archived() -> None:
    driver = ShareDriver(SharePartitionLimits(delivery_count_max=2))
    for delivery in (1, 2):
        assert driver.acquire("ada", (0, 0)) == [AcquiredRecords(0, 0, delivery)]
        driver.acknowledge_durably("ada", 0, 0, RELEASE)
    assert driver.machine.start_offset == 1
    assert driver.acquire("ada", (0, 0)) == []


def test_an_expired_lock_makes_records_available_and_is_persisted() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.wait(LOCK_MS - 1)
    assert driver.acquire("bob", (0, 9)) == []
    driver.wait(1)
    assert driver.changes > 0, "fetches that wait must look again"
    assert driver.writes[0].batches == (StateBatch(0, 9, RecordState.AVAILABLE, 1),)
    assert driver.acquire("bob", (0, 9)) == [AcquiredRecords(0, 9, 2)]


def test_a_renewed_lock_lasts_as_long_again_and_nothing_is_persisted() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.wait(LOCK_MS - 1)
    ticket = driver.acknowledge("ada", 0, 4, RENEW)
    assert driver.replies[ticket] is ErrorCode.NONE
    assert not driver.writes
    driver.wait(LOCK_MS - 1)
    assert driver.states() == [(0, 4, "ACQUIRED", 1), (5, 9, "AVAILABLE", 1)]


def test_renewing_is_refused_where_the_group_does_not_allow_it() -> None:
    driver = ShareDriver(SharePartitionLimits(may_renew=False))
    driver.acquire("ada", (0, 9))
    assert driver.acknowledge_durably("ada", 0, 9, RENEW) is ErrorCode.INVALID_REQUEST


def test_a_closed_session_releases_what_it_holds_and_counts_the_delivery() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 4))
    driver.acquire("bob", (5, 9))
    ticket = driver.ask(Release("ada"))
    driver.persist()
    assert driver.replies[ticket] is ErrorCode.NONE
    assert driver.states() == [(0, 4, "AVAILABLE", 1), (5, 9, "ACQUIRED", 1)]


@pytest.mark.parametrize(
    ("member", "first", "last", "error"),
    [
        ("bob", 0, 9, ErrorCode.INVALID_RECORD_STATE),
        ("ada", 5, 10, ErrorCode.INVALID_REQUEST),
        ("ada", 10, 12, ErrorCode.INVALID_REQUEST),
    ],
)
def test_records_that_the_member_does_not_hold_cannot_be_acknowledged(
    member: str, first: int, last: int, error: ErrorCode
) -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    assert driver.acknowledge_durably(member, first, last) is error
    assert driver.states() == [(0, 9, "ACQUIRED", 1)], "a refused acknowledgement changes nothing"


def test_a_second_acknowledgement_of_the_same_records_is_refused() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.acknowledge("ada", 2, 2)
    assert driver.replies[driver.acknowledge("ada", 2, 2)] is ErrorCode.INVALID_RECORD_STATE, "while it is written"
    driver.persist()
    assert driver.acknowledge_durably("ada", 2, 2, REJECT) is ErrorCode.INVALID_RECORD_STATE


def test_an_acknowledgement_of_records_before_the_start_is_ignored() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.feed(LogStartMoved(5))
    assert driver.acknowledge_durably("ada", 0, 3) is ErrorCode.NONE
    assert driver.acknowledge_durably("ada", 3, 6) is ErrorCode.NONE
    assert driver.states() == [(7, 9, "ACQUIRED", 1)]


def test_whole_batches_are_acquired_unless_the_limit_is_strict() -> None:
    driver = ShareDriver()
    assert driver.acquire("ada", (0, 9), (10, 19), max_records=3) == [AcquiredRecords(0, 9, 1)]
    strict = driver.acquire("bob", (10, 19), max_records=3, mode=AcquireMode.RECORD_LIMIT)
    assert strict == [AcquiredRecords(10, 12, 1)]
    assert driver.machine.next_fetch_offset == 13


def test_new_records_are_acquired_in_pieces_of_the_batch_size() -> None:
    driver = ShareDriver()
    acquired = driver.acquire("ada", (0, 4), (5, 9), (10, 14), (15, 19), batch_size=10)
    assert acquired == [AcquiredRecords(0, 9, 1), AcquiredRecords(10, 19, 1)]


def test_no_more_records_are_in_flight_than_the_limit_allows() -> None:
    driver = ShareDriver(SharePartitionLimits(record_locks_max=10))
    driver.acquire("ada", (0, 9))
    assert driver.machine.can_acquire is False
    driver.acknowledge_durably("ada", 5, 5, RELEASE)
    assert driver.machine.next_fetch_offset == 5
    assert driver.acquire("bob", (0, 9), (10, 19)) == [AcquiredRecords(5, 5, 2)]
    driver.acknowledge_durably("ada", 0, 4)
    assert driver.acquire("bob", (10, 14), (15, 19)) == [AcquiredRecords(10, 14, 1)]


def test_often_failed_records_are_delivered_in_smaller_pieces_and_at_last_alone() -> None:
    driver = ShareDriver(SharePartitionLimits(delivery_count_max=4))
    sizes: dict[int, list[int]] = {}
    for _ in range(40):
        acquired = driver.acquire("ada", (0, 7))
        if not acquired:
            break
        count = sum(one.last - one.first + 1 for one in acquired)
        sizes.setdefault(acquired[0].delivery_count, []).append(count)
        for one in acquired:
            driver.acknowledge_durably("ada", one.first, one.last, RELEASE)
    assert sizes == {1: [8], 2: [8], 3: [4, 4], 4: [1] * 8}


def test_offsets_without_records_do_not_stop_the_start() -> None:
    driver = ShareDriver()
    assert driver.acquire("ada", (0, 4), fetch_offset=0) == [AcquiredRecords(0, 4, 1)]
    assert driver.acquire("ada", (8, 9), fetch_offset=5) == [AcquiredRecords(8, 9, 1)]
    driver.acknowledge_durably("ada", 0, 4)
    driver.acknowledge_durably("ada", 8, 9)
    assert driver.machine.start_offset == 10


def test_available_records_that_compaction_removed_are_archived() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 9))
    driver.acknowledge_durably("ada", 0, 9, RELEASE)
    assert driver.acquire("ada", (6, 9), fetch_offset=0) == [AcquiredRecords(6, 9, 2)]
    assert driver.machine.start_offset == 6


def test_records_of_aborted_transactions_are_not_delivered() -> None:
    driver = ShareDriver()
    acquired = driver.acquire("ada", (0, 4), (5, 9), (10, 14), aborted=[(5, 9)])
    assert acquired == [AcquiredRecords(0, 4, 1), AcquiredRecords(10, 14, 1)]
    driver.acknowledge_durably("ada", 0, 4)
    assert driver.machine.start_offset == 10


def test_after_a_restart_what_was_acquired_is_available_and_the_rest_as_persisted() -> None:
    batches = (StateBatch(10, 14, RecordState.ACKNOWLEDGED, 1), StateBatch(18, 19, RecordState.AVAILABLE, 2))
    machine = PartitionMachine(8, batches, SharePartitionLimits())
    found = [(each.first, each.last, each.state, each.delivery_count) for each in machine.ranges()]
    assert found == [
        (8, 9, RecordState.AVAILABLE, 0),
        (10, 14, RecordState.ACKNOWLEDGED, 1),
        (15, 17, RecordState.AVAILABLE, 0),
        (18, 19, RecordState.AVAILABLE, 2),
    ]
    assert (machine.next_fetch_offset, machine.end_offset, machine.delivery_complete_count) == (8, 20, 5)


def test_types_of_single_offsets_are_applied_one_by_one() -> None:
    driver = ShareDriver()
    driver.acquire("ada", (0, 4))
    driver.acknowledge_durably("ada", 0, 4, ACCEPT, RELEASE, REJECT, AcknowledgeType.GAP, ACCEPT)
    assert driver.states() == [(1, 1, "AVAILABLE", 1), (2, 3, "ARCHIVED", 1), (4, 4, "ACKNOWLEDGED", 1)]


# ---- Dead letter queues

WITH_QUEUE = SharePartitionLimits(delivery_count_max=2, has_dead_letter_queue=True)


def test_a_rejected_record_is_a_dead_letter_once_that_is_durable_and_archived_afterwards() -> None:
    driver = ShareDriver(WITH_QUEUE)
    driver.acquire("ada", (0, 4))
    ticket = driver.acknowledge("ada", 0, 4, REJECT, REJECT, ACCEPT, AcknowledgeType.GAP, REJECT)
    assert driver.dead_letters == []
    assert [batch for batch in driver.writes[0].batches if batch.state is RecordState.ARCHIVING] == [
        StateBatch(0, 1, RecordState.ARCHIVING, 1),
        StateBatch(4, 4, RecordState.ARCHIVING, 1),
    ]
    driver.persist()
    assert driver.replies[ticket] is ErrorCode.NONE
    (letters,) = driver.dead_letters
    assert letters == (DeadLetters(0, 1, 1, REJECTED), DeadLetters(4, 4, 1, REJECTED))
    assert driver.machine.start_offset == 0, "a dead letter that is not written holds the start"
    assert driver.acquire("bob", (0, 4)) == []
    assert driver.acknowledge_durably("ada", 0, 0) is ErrorCode.INVALID_RECORD_STATE
    driver.feed(DeadLettersDone(letters))
    assert [batch.state for batch in driver.writes[0].batches] == [RecordState.ARCHIVED] * 2
    assert driver.machine.start_offset == 5
    driver.persist()
    assert len(driver.dead_letters) == 1


@pytest.mark.parametrize("end", ["released", "lock expired", "session ended"])
def test_what_was_delivered_too_often_is_a_dead_letter_however_its_last_delivery_ended(end: str) -> None:
    driver = ShareDriver(WITH_QUEUE)
    driver.acquire("ada", (0, 0))
    driver.acknowledge_durably("ada", 0, 0, RELEASE)
    assert driver.dead_letters == []
    driver.acquire("ada", (0, 0))
    if end == "released":
        driver.acknowledge("ada", 0, 0, RELEASE)
    elif end == "lock expired":
        driver.wait(LOCK_MS)
    else:
        driver.ask(Release("ada"))
    driver.persist()
    assert driver.dead_letters == [(DeadLetters(0, 0, 2, EXHAUSTED),)]


def test_a_rejection_that_was_not_persisted_makes_no_dead_letter() -> None:
    driver = ShareDriver(WITH_QUEUE)
    driver.acquire("ada", (0, 0))
    driver.acknowledge("ada", 0, 0, REJECT)
    driver.feed(NotPersisted(driver.writes.pop().write, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.states() == [(0, 0, "ACQUIRED", 1)]
    assert driver.dead_letters == []
    assert driver.acknowledge_durably("ada", 0, 0) is ErrorCode.NONE
    assert driver.machine.start_offset == 1


def test_a_lock_that_expired_for_the_last_time_makes_a_dead_letter_also_if_that_cannot_be_persisted() -> None:
    driver = ShareDriver(WITH_QUEUE)
    driver.acquire("ada", (0, 1))
    driver.acknowledge_durably("ada", 0, 1, RELEASE)
    driver.acquire("ada", (0, 0))
    driver.wait(LOCK_MS)
    driver.feed(NotPersisted(driver.writes.pop().write, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.dead_letters == [(DeadLetters(0, 0, 2, EXHAUSTED),)]


def test_a_lock_that_expires_for_the_last_time_while_a_write_fails_makes_a_dead_letter() -> None:
    driver = ShareDriver(WITH_QUEUE)
    driver.acquire("ada", (0, 0))
    driver.acknowledge_durably("ada", 0, 0, RELEASE)
    driver.acquire("ada", (0, 0))
    driver.acknowledge("ada", 0, 0)
    driver.wait(LOCK_MS)
    driver.feed(NotPersisted(driver.writes.pop().write, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert driver.states() == [(0, 0, "ARCHIVING", 2)]
    driver.persist()
    assert driver.dead_letters == [(DeadLetters(0, 0, 2, EXHAUSTED),)]


def test_dead_letters_that_were_not_archived_are_known_after_loading() -> None:
    batches = [
        StateBatch(0, 1, RecordState.ARCHIVING, 1),
        StateBatch(2, 2, RecordState.ARCHIVED, 1),
        StateBatch(3, 3, RecordState.ARCHIVING, 2),
    ]
    machine = PartitionMachine(0, batches, WITH_QUEUE)
    assert (machine.start_offset, machine.next_fetch_offset) == (0, 4)
    letters = machine.unwritten_dead_letters()
    assert letters == (DeadLetters(0, 1, 1, REJECTED), DeadLetters(3, 3, 2, EXHAUSTED))
    machine.step(DeadLettersDone(letters), now_ms=1)
    assert (machine.start_offset, machine.unwritten_dead_letters()) == (4, ())


def test_dead_letters_of_records_that_were_deleted_meanwhile_are_nothing_to_archive() -> None:
    driver = ShareDriver(WITH_QUEUE)
    driver.acquire("ada", (0, 3))
    driver.acknowledge_durably("ada", 0, 3, REJECT)
    (letters,) = driver.dead_letters
    driver.feed(LogStartMoved(4))
    ticket = driver.ask(DeadLettersDone(letters))
    assert driver.replies[ticket] is ErrorCode.NONE
    assert (driver.machine.start_offset, driver.writes) == (4, [])
