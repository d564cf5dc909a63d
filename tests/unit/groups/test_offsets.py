"""When committed offsets have had their day (KIP-211), and what a write in flight means for the others."""

from __future__ import annotations

import pytest

from ottla.core.ids import TopicPartition
from ottla.groups.classic.events import State
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.offsets import CommittedOffset, GroupOffsets, expired

DAY_MS = 86_400_000
WEB, OLD = TopicPartition("web", 0), TopicPartition("old", 0)


def offsets(*, committed_ms: int = 0, expires_ms: int = -1) -> GroupOffsets:
    found = GroupOffsets()
    one = CommittedOffset(5, committed_wall_ms=committed_ms, expires_wall_ms=expires_ms)
    found.apply({WEB: one, OLD: one})
    return found


def over(found: GroupOffsets, group: ClassicGroup, *, now_ms: int) -> set[TopicPartition]:
    return set(expired(found, group, now_wall_ms=now_ms, retention_ms=7 * DAY_MS))


def consumers(state: State, *, since_ms: int = 0) -> ClassicGroup:
    return ClassicGroup(
        "team", state=state, state_since_wall_ms=since_ms, protocol_type="consumer", topics=frozenset({"web"})
    )


def empty(*, since_ms: int = 0, protocol_type: str | None = "consumer") -> ClassicGroup:
    topics = frozenset[str]() if protocol_type == "consumer" else None
    return ClassicGroup("team", state_since_wall_ms=since_ms, protocol_type=protocol_type, topics=topics)


def test_an_empty_group_keeps_its_offsets_for_the_retention_after_its_last_member_left() -> None:
    group = empty(since_ms=100 * DAY_MS)
    assert over(offsets(), group, now_ms=107 * DAY_MS - 1) == set()
    assert over(offsets(), group, now_ms=107 * DAY_MS) == {WEB, OLD}


def test_an_offset_set_by_an_administrator_in_an_empty_group_has_its_full_time() -> None:
    group = empty(since_ms=0)
    assert over(offsets(committed_ms=100 * DAY_MS), group, now_ms=107 * DAY_MS - 1) == set()
    assert over(offsets(committed_ms=100 * DAY_MS), group, now_ms=107 * DAY_MS) == {WEB, OLD}


def test_an_old_record_that_does_not_say_since_when_counts_from_the_commit() -> None:
    group = empty(since_ms=-1)
    assert over(offsets(committed_ms=DAY_MS), group, now_ms=8 * DAY_MS - 1) == set()
    assert over(offsets(committed_ms=DAY_MS), group, now_ms=8 * DAY_MS) == {WEB, OLD}


def test_a_stable_group_keeps_what_it_subscribes_to_and_loses_the_rest() -> None:
    group = consumers(State.STABLE)
    assert over(offsets(), group, now_ms=7 * DAY_MS - 1) == set()
    assert over(offsets(), group, now_ms=700 * DAY_MS) == {OLD}


@pytest.mark.parametrize("state", [State.PREPARING, State.COMPLETING, State.DEAD])
def test_in_the_midst_of_a_rebalance_nothing_expires(state: State) -> None:
    assert over(offsets(), consumers(state), now_ms=700 * DAY_MS) == set()


def test_a_group_whose_subscriptions_are_not_to_be_known_keeps_everything_while_it_has_members() -> None:
    group = consumers(State.STABLE)
    group.topics = None
    assert over(offsets(), group, now_ms=700 * DAY_MS) == set()
    group.protocol_type = "connect"
    assert over(offsets(), group, now_ms=700 * DAY_MS) == set()


def test_offsets_of_consumers_without_a_group_expire_after_the_last_commit() -> None:
    group = empty(protocol_type=None, since_ms=100 * DAY_MS)
    assert over(offsets(committed_ms=DAY_MS), group, now_ms=8 * DAY_MS - 1) == set()
    assert over(offsets(committed_ms=DAY_MS), group, now_ms=8 * DAY_MS) == {WEB, OLD}


def test_an_expiry_that_the_client_asked_for_counts_alone() -> None:
    group = empty(protocol_type=None)
    assert over(offsets(committed_ms=0, expires_ms=50), group, now_ms=49) == set()
    assert over(offsets(committed_ms=0, expires_ms=50), group, now_ms=50) == {WEB, OLD}


def test_an_offset_that_is_being_written_does_not_expire() -> None:
    found = offsets()
    found.in_flight.begin([WEB])
    assert over(found, empty(), now_ms=700 * DAY_MS) == {OLD}


def test_an_offset_that_is_being_written_in_a_transaction_does_not_expire() -> None:
    found = offsets()
    found.in_flight.begin([WEB], producer_id=7)
    assert over(found, empty(), now_ms=700 * DAY_MS) == {OLD}
    found.in_flight.end([WEB], producer_id=7)
    found.apply({WEB: CommittedOffset(6)}, producer_id=7)
    assert over(found, empty(), now_ms=700 * DAY_MS) == {OLD}


def test_a_write_that_failed_changes_nothing() -> None:
    found = offsets()
    found.in_flight.begin([WEB])
    assert not found.all_stable
    found.in_flight.end([WEB])
    assert found.get(WEB) == CommittedOffset(5, committed_wall_ms=0)
    assert found.all_stable


def test_deletion_covers_what_is_being_written() -> None:
    found, third = GroupOffsets(), TopicPartition("third", 1)
    found.in_flight.begin([third])
    assert found.all_partitions() == {third}
    found.in_flight.begin([third])
    found.in_flight.end([third])
    assert not found.is_stable(third)
    found.in_flight.end([third])
    assert found.all_partitions() == set()


def test_of_a_commit_and_a_transaction_the_later_one_in_the_log_wins() -> None:
    for later_commit, shown in ((True, 6), (False, 8)):
        found = offsets()
        if not later_commit:
            found.apply({WEB: CommittedOffset(6)})
        found.apply({WEB: CommittedOffset(8), OLD: CommittedOffset(9)}, producer_id=7)
        found.apply({WEB: CommittedOffset(7)}, producer_id=8)
        if later_commit:
            found.apply({WEB: CommittedOffset(6)})
        found.end_transaction(8, commit=False)
        found.end_transaction(7, commit=True)
        assert {where: committed.offset for where, committed in found.items()} == {WEB: shown, OLD: 9}


def test_of_two_transactions_the_later_commit_wins_whichever_ends_first() -> None:
    for first, second in ((7, 8), (8, 7)):
        found = GroupOffsets()
        found.apply({WEB: CommittedOffset(1)}, producer_id=7)
        found.apply({WEB: CommittedOffset(2)}, producer_id=8)
        found.end_transaction(first, commit=True)
        found.end_transaction(second, commit=True)
        assert found.get(WEB) == CommittedOffset(2)
        found.apply({WEB: CommittedOffset(3)}, producer_id=9)
        found.end_transaction(9, commit=True)
        assert found.get(WEB) == CommittedOffset(3), "an order of an ended transaction does not stay"
