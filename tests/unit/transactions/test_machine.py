"""Drives the state machine of a transactional id. Each rule of Kafka's is one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import ProducerIdAndEpoch
from ottla.transactions.events import InitProducerId, SendMarkers, TransactionAnswer
from ottla.transactions.machine import TransactionMachine
from ottla.transactions.metadata import EPOCH_MAX, TransactionState, TransactionVersion
from tests.support.transaction_driver import (
    FIRST_ID,
    OFFSETS_3,
    TIMEOUT_MS,
    TV_0,
    TV_2,
    WEB_0,
    WEB_1,
    TransactionDriver,
    new_metadata,
)

NONE = ErrorCode.NONE
CONCURRENT, FENCED = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED
WRONG_STATE, WRONG_ID = ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING
State = TransactionState
INIT = InitProducerId(timeout_ms=TIMEOUT_MS)


def state_of(it: TransactionDriver) -> TransactionState:
    """Its state; a call, so that no type checker takes it for constant."""
    return it.state


def initialized(epoch: int = 0) -> TransactionDriver:
    it = TransactionDriver(TransactionMachine(replace(new_metadata(), producer_epoch=epoch - 1)))
    assert it.init() == TransactionAnswer(NONE, FIRST_ID, epoch)
    return it


def ongoing(epoch: int = 0, version: TransactionVersion = TV_2) -> TransactionDriver:
    it = initialized(epoch)
    assert it.call(it.adding(epoch, WEB_0, version=version)).error is NONE
    return it


# ---- InitProducerId


def test_a_new_id_begins_with_epoch_0_once_that_is_durable() -> None:
    it = TransactionDriver()
    ticket = it.ask(INIT)
    assert ticket not in it.answers
    it.store()
    assert it.answers[ticket] == TransactionAnswer(NONE, FIRST_ID, 0)
    assert state_of(it) is State.EMPTY


def test_each_new_producer_gets_the_next_epoch_and_fences_the_one_before() -> None:
    it = initialized()
    assert it.init() == TransactionAnswer(NONE, FIRST_ID, 1)
    assert it.add(0) is FENCED
    assert it.add(1) is NONE


def test_a_second_request_waits_for_the_first() -> None:
    it = TransactionDriver()
    it.ask(INIT)
    assert it.answers[it.ask(INIT)].error is CONCURRENT


def test_an_id_that_could_not_be_written_is_initialized_by_the_next_request() -> None:
    it = TransactionDriver()
    ticket = it.ask(INIT)
    it.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert it.answers[ticket].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert it.init() == TransactionAnswer(NONE, FIRST_ID, 0)


def test_a_new_producer_aborts_the_transaction_that_is_open_and_has_to_retry() -> None:
    it = ongoing()
    assert it.init().error is CONCURRENT
    assert state_of(it) is State.COMPLETE_ABORT
    assert it.sent == [SendMarkers(FIRST_ID, 1, False, TV_2, frozenset({WEB_0}))]
    assert it.init() == TransactionAnswer(NONE, FIRST_ID, 2)


def test_a_producer_that_continues_gets_the_next_epoch() -> None:
    it = initialized()
    assert it.init(expected=(FIRST_ID, 0)) == TransactionAnswer(NONE, FIRST_ID, 1)
    assert it.init(expected=(FIRST_ID, 0)) == TransactionAnswer(NONE, FIRST_ID, 1)  # a retry: the answer was lost
    assert it.init(expected=(FIRST_ID, 1)) == TransactionAnswer(NONE, FIRST_ID, 2)
    assert it.init(expected=(FIRST_ID, 0)).error is FENCED


def test_a_producer_that_continues_is_fenced_after_another_one_began() -> None:
    it = initialized()
    it.init()
    assert it.init(expected=(FIRST_ID, 0)).error is FENCED
    assert it.init(expected=(FIRST_ID + 9, 1)).error is FENCED


def test_a_producer_whose_id_expired_may_continue_with_a_new_one() -> None:
    assert TransactionDriver().init(expected=(77, 5)) == TransactionAnswer(NONE, FIRST_ID, 0)


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    it = initialized(EPOCH_MAX - 1)
    assert it.init() == TransactionAnswer(NONE, FIRST_ID + 1, 0)
    assert it.add(EPOCH_MAX - 1) is WRONG_ID


def test_a_producer_that_continues_with_the_last_epoch_gets_a_new_id_also_on_its_retry() -> None:
    it = initialized(EPOCH_MAX - 1)
    last = (FIRST_ID, EPOCH_MAX - 1)
    assert it.init(expected=last) == TransactionAnswer(NONE, FIRST_ID + 1, 0)
    assert it.init(expected=last) == TransactionAnswer(NONE, FIRST_ID + 1, 0)
    assert it.init(expected=(FIRST_ID, 5)).error is FENCED


# ---- AddPartitions


def test_partitions_are_added_when_that_is_durable() -> None:
    it = initialized()
    ticket = it.ask(it.adding(0, WEB_0))
    assert ticket not in it.answers
    assert it.machine.verify(ProducerIdAndEpoch(FIRST_ID, 0), frozenset({WEB_0})) is ErrorCode.TRANSACTION_ABORTABLE
    it.store()
    assert it.answers[ticket].error is NONE
    assert state_of(it) is State.ONGOING
    assert it.add(0, WEB_1) is NONE
    assert it.machine.metadata.partitions == {WEB_0, WEB_1}


def test_partitions_that_were_added_already_are_not_written_again() -> None:
    it = ongoing()
    written = len(it.log)
    assert it.add(0, WEB_0) is NONE
    assert len(it.log) == written


def test_the_start_of_a_transaction_is_that_of_its_first_partition() -> None:
    it = ongoing()
    started = it.machine.metadata.started_wall_ms
    it.now_ms += 1_000
    it.add(0, WEB_1)
    assert it.machine.metadata.started_wall_ms == started
    assert it.machine.metadata.updated_wall_ms == started + 1_000


@pytest.mark.parametrize(("producer_id", "epoch", "error"), [(1, 0, WRONG_ID), (FIRST_ID, 1, FENCED)])
def test_partitions_of_another_producer_are_refused(producer_id: int, epoch: int, error: ErrorCode) -> None:
    it = ongoing()
    assert it.add(epoch, WEB_1, producer_id=producer_id) is error
    assert it.machine.verify(ProducerIdAndEpoch(producer_id, epoch), frozenset({WEB_0})) is error


def test_no_partition_is_added_while_the_transaction_ends() -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=True))
    assert it.answers[it.ask(it.adding(0, WEB_1))].error is CONCURRENT
    it.store()  # PrepareCommit
    assert state_of(it) is State.PREPARE_COMMIT
    assert it.answers[it.ask(it.adding(1, WEB_1))].error is CONCURRENT
    assert it.machine.verify(ProducerIdAndEpoch(FIRST_ID, 1), frozenset({WEB_0})) is CONCURRENT
    it.settle()
    assert it.add(1, WEB_1) is NONE


# ---- The end of a transaction


@pytest.mark.parametrize("committed", [True, False])
def test_the_outcome_is_durable_before_any_marker_and_the_completion_after_all(committed: bool) -> None:
    it = ongoing()
    it.add(0, OFFSETS_3)
    ticket = it.ask(it.ending(0, committed=committed))
    assert not it.sending
    it.store()
    assert it.answers[ticket] == TransactionAnswer(NONE, FIRST_ID, 1)
    (markers,) = it.sending
    assert markers == SendMarkers(FIRST_ID, 1, committed, TV_2, frozenset({WEB_0, OFFSETS_3}))
    assert not it.storing
    it.write_markers()
    assert state_of(it) is (State.PREPARE_COMMIT if committed else State.PREPARE_ABORT)
    it.store()
    assert state_of(it) is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)
    assert not it.machine.metadata.partitions


def test_in_the_first_version_the_epoch_stays() -> None:
    it = ongoing(version=TV_0)
    assert it.commit(0, TV_0) == TransactionAnswer()
    assert it.sent == [SendMarkers(FIRST_ID, 0, True, TV_0, frozenset({WEB_0}))]
    assert it.add(0) is NONE
    assert it.abort(0, TV_0) == TransactionAnswer()


def test_only_what_failed_is_written_again() -> None:
    it = ongoing()
    it.add(0, OFFSETS_3)
    it.ask(it.ending(0, committed=True))
    it.store()
    it.write_markers(web=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert it.retries == 1
    assert not it.storing
    it.retry()
    assert it.sending[0].partitions == {WEB_0}
    it.settle()
    assert state_of(it) is State.COMPLETE_COMMIT


def test_a_deleted_partition_needs_no_marker() -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=True))
    it.store()
    it.write_markers(web=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    it.settle()
    assert state_of(it) is State.COMPLETE_COMMIT


def test_a_fenced_coordinator_leaves_the_transaction_to_the_next_one() -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=True))
    it.store()
    it.write_markers(web=ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert not it.retries
    assert it.commit(0).error is CONCURRENT
    other = it.reload()
    other.settle()
    assert state_of(other) is State.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
def test_a_completion_that_could_not_be_written_is_written_again_without_markers(error: ErrorCode) -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=True))
    it.store()
    it.write_markers()
    it.store(error)
    assert it.retries == 1
    it.settle()
    assert len(it.sent) == 1
    assert state_of(it) is State.COMPLETE_COMMIT


def test_an_outcome_that_could_not_be_written_leaves_the_transaction_open() -> None:
    it = ongoing()
    ticket = it.ask(it.ending(0, committed=True))
    it.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert it.answers[ticket].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(it) is State.ONGOING
    assert it.commit(0) == TransactionAnswer(NONE, FIRST_ID, 1)


def test_a_transition_stays_in_progress_while_its_write_takes_too_long() -> None:
    it = ongoing()
    ticket = it.ask(it.ending(0, committed=True))
    it.time_out()
    assert it.answers[ticket].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(it) is State.ONGOING
    assert it.answers[it.ask(it.ending(0, committed=False))].error is CONCURRENT
    it.settle()
    assert state_of(it) is State.COMPLETE_COMMIT
    assert it.commit(0) == TransactionAnswer(NONE, FIRST_ID, 1)  # the client's retry


def test_a_completion_that_takes_too_long_is_not_written_twice() -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=True))
    it.store()
    it.write_markers()
    it.time_out()
    assert (len(it.storing), it.retries) == (1, 0)
    it.settle()
    assert state_of(it) is State.COMPLETE_COMMIT


@pytest.mark.parametrize("committed", [True, False])
def test_after_a_restart_the_markers_of_a_decided_transaction_are_written_again(committed: bool) -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=committed))
    it.store()
    other = it.reload()
    assert other.sending == it.sending
    other.settle()
    assert state_of(other) is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)
    assert other.call(other.ending(0, committed=committed)) == TransactionAnswer(
        NONE, FIRST_ID, 1
    )  # the client's retry


# The table of Kafka's TransactionCoordinator: state, retry (the last epoch) or present epoch, commit or abort.
SECOND_VERSION = [
    ("empty", "retry", True, FENCED),
    ("empty", "retry", False, FENCED),
    ("empty", "present", True, WRONG_STATE),
    ("empty", "present", False, NONE),
    ("committed", "retry", True, NONE),
    ("committed", "retry", False, WRONG_STATE),
    ("committed", "present", True, WRONG_STATE),
    ("committed", "present", False, NONE),
    ("aborted", "retry", True, WRONG_STATE),
    ("timed out", "retry", True, FENCED),  # it can recover from an abort of the coordinator (KAFKA-20785)
    ("aborted", "retry", False, NONE),
    ("aborted", "present", True, WRONG_STATE),
    ("aborted", "present", False, NONE),
    ("ongoing", "retry", True, FENCED),
    ("ongoing", "retry", False, FENCED),
]


@pytest.mark.parametrize(("state", "epoch", "committed", "error"), SECOND_VERSION)
def test_a_request_to_end_a_transaction_in_the_second_version_gets_the_error_of_its_state(
    state: str, epoch: str, committed: bool, error: ErrorCode
) -> None:
    it = ongoing(5) if state != "empty" else initialized(5)
    if state == "committed":
        it.commit(5)
    elif state == "aborted":
        it.abort(5)
    elif state == "timed out":
        it.now_ms += TIMEOUT_MS + 1
        it.check_timeout()
        it.settle()
    present = it.epoch
    given = present if epoch == "present" else present - 1
    answer = it.call(it.ending(given, committed=committed))
    assert answer.error is error
    bumped = epoch == "present" and not committed
    assert it.epoch == present + bumped
    if error is NONE:
        assert answer == TransactionAnswer(NONE, FIRST_ID, it.epoch)


FIRST_VERSION = [
    ("empty", True, WRONG_STATE),
    ("empty", False, WRONG_STATE),
    ("committed", True, NONE),
    ("committed", False, WRONG_STATE),
    ("aborted", True, WRONG_STATE),
    ("aborted", False, NONE),
]


@pytest.mark.parametrize(("state", "committed", "error"), FIRST_VERSION)
def test_a_request_to_end_a_transaction_in_the_first_version_gets_the_error_of_its_state(
    state: str, committed: bool, error: ErrorCode
) -> None:
    it = initialized(5) if state == "empty" else ongoing(5, TV_0)
    if state == "committed":
        it.commit(5, TV_0)
    elif state == "aborted":
        it.abort(5, TV_0)
    assert it.call(it.ending(5, committed=committed, version=TV_0)).error is error
    assert it.call(it.ending(4, committed=committed, version=TV_0)).error is FENCED
    assert it.call(it.ending(5, committed=committed, version=TV_0, producer_id=1)).error is WRONG_ID


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_a_repeated_end_waits_for_the_markers_and_the_opposite_one_is_refused(version: TransactionVersion) -> None:
    it = ongoing(version=version)
    it.ask(it.ending(0, committed=True, version=version))
    it.store()
    assert it.answers[it.ask(it.ending(0, committed=True, version=version))].error is CONCURRENT
    assert it.answers[it.ask(it.ending(0, committed=False, version=version))].error is CONCURRENT
    it.settle()
    assert it.call(it.ending(0, committed=False, version=version)).error is WRONG_STATE


def test_an_abort_of_no_transaction_fences_late_records_with_a_new_epoch() -> None:
    it = initialized()
    assert it.abort(0) == TransactionAnswer(NONE, FIRST_ID, 1)
    assert state_of(it) is State.COMPLETE_ABORT
    assert not it.sent


# ---- Overflow of the epoch


@pytest.mark.parametrize("committed", [True, False])
def test_the_last_epoch_is_followed_by_a_new_producer_id(committed: bool) -> None:
    it = ongoing(EPOCH_MAX - 1)
    end = it.ending(EPOCH_MAX - 1, committed=committed)
    assert it.call(end) == TransactionAnswer(NONE, FIRST_ID + 1, 0)
    assert (it.sent[0].producer_id, it.sent[0].producer_epoch) == (FIRST_ID, EPOCH_MAX)
    assert it.call(end) == TransactionAnswer(NONE, FIRST_ID + 1, 0)  # its retry
    assert it.add(0, producer_id=FIRST_ID + 1) is NONE
    assert it.commit(0, producer_id=FIRST_ID + 1) == TransactionAnswer(NONE, FIRST_ID + 1, 1)


def test_a_new_producer_id_survives_a_restart_before_the_completion() -> None:
    it = ongoing(EPOCH_MAX - 1)
    it.ask(it.ending(EPOCH_MAX - 1, committed=True))
    it.store()
    other = it.reload()
    other.settle()
    assert (other.machine.metadata.producer_id, other.epoch) == (FIRST_ID + 1, 0)
    assert other.commit(EPOCH_MAX - 1) == TransactionAnswer(NONE, FIRST_ID + 1, 0)


def test_a_transaction_that_times_out_in_the_last_epoch_gets_a_new_producer_id() -> None:
    it = ongoing(EPOCH_MAX - 1)
    it.now_ms += TIMEOUT_MS + 1
    it.check_timeout()
    it.settle()
    assert (it.machine.metadata.producer_id, it.epoch) == (FIRST_ID + 1, 0)


def test_a_transaction_with_the_epoch_that_is_reserved_for_fencing_is_still_aborted() -> None:
    it = ongoing()
    it.append(replace(it.machine.metadata, producer_epoch=EPOCH_MAX))
    assert it.init().error is CONCURRENT
    assert it.init() == TransactionAnswer(NONE, FIRST_ID + 1, 1)


# ---- Timeouts


def test_a_transaction_is_aborted_after_its_timeout_with_an_epoch_that_its_producer_does_not_have() -> None:
    it = ongoing()
    it.now_ms += TIMEOUT_MS
    it.check_timeout()
    assert not it.storing
    it.now_ms += 1
    it.check_timeout()
    it.settle()
    assert state_of(it) is State.COMPLETE_ABORT
    assert it.epoch == 1
    assert it.add(0) is FENCED
    assert it.commit(0).error is FENCED


def test_a_producer_whose_transaction_timed_out_can_continue() -> None:
    it = ongoing()
    it.now_ms += TIMEOUT_MS + 1
    it.check_timeout()
    it.settle()
    assert it.init(expected=(FIRST_ID, 0)) == TransactionAnswer(NONE, FIRST_ID, 1)
    assert it.add(1) is NONE


def test_a_transaction_that_is_being_ended_does_not_time_out() -> None:
    it = ongoing()
    it.ask(it.ending(0, committed=True))
    it.now_ms += TIMEOUT_MS + 1
    it.check_timeout()
    it.settle()
    assert state_of(it) is State.COMPLETE_COMMIT


def test_the_time_without_a_coordinator_counts() -> None:
    it = ongoing()
    it.now_ms += TIMEOUT_MS + 1
    other = it.reload()
    other.check_timeout()
    other.settle()
    assert state_of(other) is State.COMPLETE_ABORT


# ---- Expiry


def test_an_unused_id_expires() -> None:
    it = ongoing()
    it.commit(0)
    it.now_ms += 1_000
    it.expire(1_001)
    assert not it.storing
    it.expire(1_000)
    assert it.answers[it.ask(INIT)].error is CONCURRENT
    it.store()
    assert it.removed
    assert it.log[-1][1] is None


def test_an_id_with_an_open_transaction_does_not_expire() -> None:
    it = ongoing()
    it.now_ms += 1_000
    it.expire(1)
    assert not it.storing


def test_an_id_that_could_not_be_deleted_goes_on() -> None:
    it = initialized()
    it.expire(0)
    it.store(ErrorCode.NOT_COORDINATOR)
    assert not it.removed
    assert it.add(0) is NONE
