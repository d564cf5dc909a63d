"""Aborted transactions stay hidden from read_committed."""

from __future__ import annotations

from ottla.client.isolation import AbortedFilter

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def test_a_batch_of_an_aborted_transaction_is_hidden_until_its_marker() -> None:
    aborted = AbortedFilter([(7, 10)])
    assert not aborted.is_aborted(producer_id=7, last_offset=5, transactional=True)  # an earlier, committed one
    assert aborted.is_aborted(producer_id=7, last_offset=12, transactional=True)
    assert not aborted.is_aborted(producer_id=8, last_offset=14, transactional=True)
    assert not aborted.is_aborted(producer_id=7, last_offset=15, transactional=False)
    aborted.end_transaction(producer_id=7, last_offset=16, control_key=ABORT)
    assert not aborted.is_aborted(producer_id=7, last_offset=20, transactional=True)


def test_a_commit_marker_does_not_end_an_aborted_transaction() -> None:
    aborted = AbortedFilter([(7, 10)])
    assert aborted.is_aborted(producer_id=7, last_offset=10, transactional=True)
    aborted.end_transaction(producer_id=7, last_offset=10, control_key=COMMIT)
    assert aborted.is_aborted(producer_id=7, last_offset=11, transactional=True)


def test_an_unsorted_list_hides_the_same_records() -> None:
    aborted = AbortedFilter([(9, 30), (7, 10)])
    assert aborted.is_aborted(producer_id=7, last_offset=10, transactional=True)
    assert not aborted.is_aborted(producer_id=9, last_offset=20, transactional=True)
    assert aborted.is_aborted(producer_id=9, last_offset=30, transactional=True)


def test_records_after_an_abort_marker_are_visible_if_the_response_begins_with_the_marker() -> None:
    aborted = AbortedFilter([(7, 42)])
    aborted.end_transaction(producer_id=7, last_offset=44, control_key=ABORT)
    assert not aborted.is_aborted(producer_id=7, last_offset=45, transactional=True)
