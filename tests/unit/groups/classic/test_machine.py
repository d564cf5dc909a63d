"""Drives the state machine of a group: joining, syncing, heartbeats, leaving. Each rule of Kafka's is one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import JoinAnswer, JoinTimer, Leave, LeaveAnswer, Leaver, State, Sync, SyncTimer
from ottla.groups.classic.machine import NEW_MEMBER_TIMEOUT_MS
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.classic.validation import PENDING_MAX
from ottla.groups.machine import SessionTimer
from tests.support.group_driver import NONE, GroupDriver, driver, heartbeat, leave, loaded, state_of, subscription

# ---- Joining


def test_a_new_member_first_gets_its_id() -> None:
    it = driver()
    first = it.join(new_member_id="c-1")
    assert it.joined(first) == JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="c-1")
    assert state_of(it) is State.EMPTY


def test_an_old_client_joins_without_getting_its_id_first() -> None:
    it = driver()
    ticket = it.join(new_member_id="c-1", requires_member_id=False)
    it.pass_time(3_000)
    assert it.joined(ticket).member_id == "c-1"


def test_the_first_rebalance_waits_for_more_members() -> None:
    it = driver()
    early, late = it.join_as("a"), it.join_as("b")
    it.pass_time(2_999)
    assert it.answer(early) is None
    it.pass_time(1)
    assert it.answer(early) is None  # b came during the delay, so it is extended
    it.pass_time(3_000)
    assert it.joined(early).generation == it.joined(late).generation == 1


def test_the_delay_of_the_first_rebalance_ends_with_the_rebalance_timeout() -> None:
    it = driver()
    first = it.join_as("m0", rebalance_timeout_ms=7_000)
    for index in range(1, 20):
        it.pass_time(1_000)
        if it.answer(first) is not None:
            break
        it.join_as(f"m{index}", rebalance_timeout_ms=7_000)
    assert it.joined(first).error is NONE
    assert it.now_ms - 1_000_000 == 7_000


def test_only_the_leader_gets_the_members() -> None:
    it = driver()
    a, b = it.join_as("a"), it.join_as("b")
    it.pass_time(6_000)
    assert it.joined(a).leader == it.joined(b).leader == "a"
    assert [member.member_id for member in it.joined(a).members] == ["a", "b"]
    assert it.joined(b).members == ()


def test_the_generation_grows_once_per_completed_rebalance_and_not_per_join() -> None:
    it = GroupDriver().stable("a", "b")
    assert it.group.generation == 1
    it.join_as("c")
    it.join("a")
    assert it.group.generation == 1
    it.join("b")
    assert it.group.generation == 2


def test_a_rebalance_is_complete_as_soon_as_everybody_has_joined() -> None:
    it = GroupDriver().stable("a", "b")
    c = it.join_as("c")
    it.join("a")
    assert it.answer(c) is None
    it.join("b")
    assert it.joined(c).generation == 2


def test_a_member_that_does_not_join_in_time_is_removed() -> None:
    it = GroupDriver().stable("a", "b")
    it.join("a", rebalance_timeout_ms=20_000)
    while state_of(it) is State.PREPARING:  # b lives, and does not join
        it.pass_time(5_000)
        error = heartbeat(it, "b", generation=1)
    assert it.now_ms == 1_000_000 + 9_000 + 60_000  # the slowest member's timeout counts, and that is b's
    assert error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(it.group.members.by_id) == ["a"]


def test_a_rebalance_waits_as_long_as_its_slowest_member_may_take() -> None:
    it = driver()
    it.join_as("quick", rebalance_timeout_ms=10_000)
    it.join_as("slow", rebalance_timeout_ms=90_000)
    it.pass_time(9_000)
    it.sync("slow")
    it.sync("quick")
    it.join("quick", rebalance_timeout_ms=10_000)
    assert it.timers[JoinTimer()] == it.now_ms + 90_000


def test_a_slower_member_that_comes_during_a_rebalance_gives_it_more_time() -> None:
    it = GroupDriver().stable("a", "b")
    it.join("a")
    began_ms = it.now_ms
    it.pass_time(5_000)
    it.join_as("c", rebalance_timeout_ms=300_000)
    assert it.timers[JoinTimer()] == began_ms + 300_000


def test_joins_during_a_rebalance_do_not_put_off_its_end() -> None:
    it = GroupDriver().stable("a", "b")
    it.join("a")
    end_ms = it.timers[JoinTimer()]
    it.pass_time(5_000)
    it.join_as("c")
    assert it.timers[JoinTimer()] == end_ms


def test_a_quicker_member_that_comes_during_a_rebalance_does_not_hurry_the_others() -> None:
    it = GroupDriver().stable("a", "b")
    it.join("a")
    end_ms = it.timers[JoinTimer()]
    it.join_as("c", rebalance_timeout_ms=10_000)
    assert it.timers[JoinTimer()] == end_ms


def test_a_pending_member_that_does_not_join_in_time_is_removed() -> None:
    it = GroupDriver().stable("a")
    pending = it.join(new_member_id="b")
    a = it.join("a")
    assert it.answer(a) is None
    it.pass_time(10_000)
    assert it.joined(a).generation == 2
    assert it.error(pending) is ErrorCode.MEMBER_ID_REQUIRED
    assert it.error(it.join("b")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unknown_member_is_sent_away() -> None:
    it = GroupDriver().stable("a")
    assert it.joined(it.join("stranger")) == JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id="stranger")


@pytest.mark.parametrize("odd", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_member_without_any_protocol_is_refused(odd: dict[str, Any]) -> None:
    it = driver()
    assert it.error(it.join(**odd)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_of_another_protocol_type_is_refused() -> None:
    it = GroupDriver().stable("a")
    assert it.error(it.join(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_shares_no_protocol_with_all_is_refused() -> None:
    it = GroupDriver().stable("a")
    assert it.error(it.join(protocols=(("sticky", b""),))) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_the_one_most_members_prefer_of_those_all_speak() -> None:
    it = driver()
    it.join_as("a", protocols=(("only-a", b""), ("x", b""), ("y", b"")))
    it.join_as("b", protocols=(("y", b""), ("x", b"")))
    ticket = it.join_as("c", protocols=(("y", b""), ("x", b"")))
    it.pass_time(9_000)
    assert it.joined(ticket).protocol_name == "y"


def test_a_protocol_that_not_all_speak_gets_no_vote() -> None:
    it = driver()
    it.join_as("a", protocols=(("modern", b""), ("old", b"")))
    it.join_as("b", protocols=(("modern", b""), ("old", b"")))
    ticket = it.join_as("c", protocols=(("old", b""),))
    it.pass_time(9_000)
    assert it.joined(ticket).protocol_name == "old"


def test_an_opaque_protocol_type_is_served_and_its_bytes_are_not_read() -> None:
    it = driver()
    ticket = it.join_as("worker", protocol_type="connect", protocols=(("sessioned", b"\xff\x00"),))
    it.pass_time(3_000)
    assert it.joined(ticket).protocol_type == "connect"
    assert it.joined(ticket).members[0].metadata == b"\xff\x00"
    assert it.group.topics is None


def test_a_member_that_did_not_get_its_answer_gets_it_again() -> None:
    it = driver()
    first = it.join_as("a")
    it.pass_time(3_000)
    assert it.joined(it.join("a")) == it.joined(first)
    assert it.group.generation == 1


def test_a_follower_that_joins_unchanged_starts_no_rebalance_but_a_leader_does() -> None:
    it = GroupDriver().stable("a", "b")
    assert it.joined(it.join("b")).generation == 1
    assert state_of(it) is State.STABLE
    assert it.answer(it.join("a")) is None
    assert state_of(it) is State.PREPARING


def test_a_follower_with_another_subscription_starts_a_rebalance() -> None:
    it = GroupDriver().stable("a", "b")
    it.join("b", protocols=(("range", subscription("web", "more")),))
    assert state_of(it) is State.PREPARING


def test_a_member_that_asks_again_over_another_connection_is_answered_there() -> None:
    it = driver()
    first = it.join_as("a")
    second = it.join("a")
    assert it.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    it.pass_time(6_000)
    assert it.joined(second).generation == 1


def test_a_new_member_that_waits_for_five_minutes_is_given_up() -> None:
    it = GroupDriver().stable("a")
    it.join("a", rebalance_timeout_ms=3_600_000)
    it.join("a", rebalance_timeout_ms=3_600_000)
    it.sync("a")
    ticket = it.join_as("b")
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 5_000):
        assert heartbeat(it, "a") is ErrorCode.REBALANCE_IN_PROGRESS
        it.pass_time(5_000)
    assert it.error(ticket) is ErrorCode.UNKNOWN_MEMBER_ID


# ---- The size of a group


def test_a_full_group_admits_no_member() -> None:
    it = driver(max_size=1).stable("a")
    assert it.error(it.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert list(it.group.members.by_id) == ["a"]


def test_a_group_larger_than_a_lowered_limit_shrinks_when_it_is_loaded() -> None:
    snapshot = GroupDriver().stable("a", "b", "c").log[-1]
    it = loaded(snapshot, ClassicSettings(max_size=2))
    assert state_of(it) is State.PREPARING
    kept = [it.join(name) for name in ("a", "b")]
    assert it.error(it.join("c")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [it.error(ticket) for ticket in kept] == [NONE, NONE]


def test_a_static_member_comes_back_into_a_full_group() -> None:
    it = driver(max_size=1)
    it.join(new_member_id="a-1", instance_id="a")
    it.pass_time(3_000)
    it.sync("a-1")
    ticket = it.join(new_member_id="a-2", instance_id="a")
    assert it.joined(ticket).member_id == "a-2"


def test_pending_members_are_bounded() -> None:
    it = driver()
    it.group.members.pending.update(f"p{index}" for index in range(PENDING_MAX))
    it.group.timers.update({SessionTimer(name): 2_000_000 for name in it.group.members.pending})
    it.timers.update(it.group.timers.items())
    assert it.error(it.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED


# ---- Syncing


def test_assignments_are_announced_only_when_they_are_stored() -> None:
    it = driver()
    it.join_as("a"), it.join_as("b")
    it.pass_time(6_000)
    it.slow_log = True
    follower = it.sync("b")
    leader = it.sync("a", a=b"p0", b=b"p1")
    assert it.answer(follower) is None
    assert it.answer(leader) is None
    assert state_of(it) is State.COMPLETING
    it.stored()
    assert it.synced(leader).assignment == b"p0"
    assert it.synced(follower).assignment == b"p1"
    assert [(m.member_id, m.assignment) for m in it.log[-1].members] == [("a", b"p0"), ("b", b"p1")]


def test_a_member_the_leader_forgot_gets_an_empty_assignment() -> None:
    it = driver()
    it.join_as("a"), it.join_as("b")
    it.pass_time(6_000)
    it.sync("a", a=b"all", stranger=b"nothing")
    assert it.synced(it.sync("b")).assignment == b""


def test_an_assignment_that_cannot_be_stored_is_an_error_and_a_new_rebalance() -> None:
    it = driver()
    it.join_as("a")
    it.pass_time(3_000)
    it.slow_log = True
    ticket = it.sync("a", a=b"p0")
    it.not_stored()
    assert it.error(ticket) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(it) is State.PREPARING


def test_an_assignment_stored_after_the_group_went_on_is_history() -> None:
    it = driver()
    it.join_as("a")
    it.pass_time(3_000)
    it.slow_log = True
    ticket = it.sync("a", a=b"old")
    it.join_as("b")
    assert it.error(ticket) is ErrorCode.REBALANCE_IN_PROGRESS
    it.join("a")
    it.stored()
    assert state_of(it) is State.COMPLETING
    assert it.group.members.by_id["a"].assignment == b""


def test_a_leader_that_asks_twice_does_not_change_what_is_being_written() -> None:
    it = driver()
    it.join_as("a")
    it.pass_time(3_000)
    it.slow_log = True
    first = it.sync("a", a=b"one")
    second = it.sync("a", a=b"two")
    assert it.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(it.storing) == 1
    it.stored()
    assert it.synced(second).assignment == b"one"


def test_a_member_may_ask_for_its_assignment_again_while_the_group_is_stable() -> None:
    it = GroupDriver().stable("a", "b")
    assert it.synced(it.sync("b")).assignment == b"b"


@pytest.mark.parametrize(
    ("sync", "error"),
    [
        (Sync(member_id="stranger", generation=1), ErrorCode.UNKNOWN_MEMBER_ID),
        (Sync(member_id="a", generation=0), ErrorCode.ILLEGAL_GENERATION),
        (Sync(member_id="a", generation=2), ErrorCode.ILLEGAL_GENERATION),
        (Sync(member_id="a", generation=1, protocol_name="sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (Sync(member_id="a", generation=1, protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (Sync(member_id="a", generation=1, instance_id="i"), ErrorCode.UNKNOWN_MEMBER_ID),
        (Sync(member_id="a", generation=1, protocol_type="consumer", protocol_name="range"), NONE),
    ],
)
def test_only_a_member_of_this_generation_gets_an_assignment(sync: Sync, error: ErrorCode) -> None:
    it = GroupDriver().stable("a")
    assert it.error(it.request(sync)) is error


def test_members_that_never_ask_for_their_assignment_are_removed() -> None:
    it = driver()
    it.join_as("a"), it.join_as("b")
    it.pass_time(6_000)
    it.sync("a", a=b"all")
    for _ in range(11):
        it.pass_time(5_000)
        heartbeat(it, "a")
        heartbeat(it, "b")
    assert "b" in it.group.members.by_id
    it.pass_time(5_000)
    assert "b" not in it.group.members.by_id
    assert state_of(it) is State.PREPARING
    assert SyncTimer() not in it.timers


# ---- Heartbeats and sessions


def test_heartbeats_keep_a_member_and_silence_removes_it() -> None:
    it = GroupDriver().stable("a", "b")
    for _ in range(10):
        it.pass_time(9_000)
        assert heartbeat(it, "a") is NONE
        assert heartbeat(it, "b") is NONE
    it.pass_time(9_999)
    heartbeat(it, "a")
    it.pass_time(1)
    assert heartbeat(it, "a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(it.group.members.by_id) == ["a"]


def test_a_heartbeat_of_another_generation_or_of_a_stranger_is_refused() -> None:
    it = GroupDriver().stable("a")
    assert heartbeat(it, "a", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert heartbeat(it, "b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_for_the_others_is_not_removed_for_its_silence() -> None:
    it = GroupDriver().stable("a", "b")
    waiting = it.join("a")
    for _ in range(5):
        it.pass_time(9_000)
        heartbeat(it, "b")
    assert it.answer(waiting) is None
    it.join("b")
    assert it.joined(waiting).generation == 2


def test_when_the_last_member_falls_silent_the_group_is_empty_and_that_is_stored() -> None:
    it = GroupDriver().stable("a")
    it.pass_time(10_000)
    assert state_of(it) is State.EMPTY
    assert it.log[-1].members == ()
    assert it.log[-1].generation == 2
    assert it.log[-1].protocol_type == "consumer"
    assert it.log[-1].state_since_wall_ms == it.group.state_since_wall_ms


# ---- Leaving


def test_a_member_that_leaves_starts_a_rebalance_at_once() -> None:
    it = GroupDriver().stable("a", "b")
    assert leave(it, Leaver(member_id="a")).errors == (NONE,)
    assert state_of(it) is State.PREPARING
    assert it.joined(it.join("b")).leader == "b"


def test_the_last_one_to_leave_is_answered_when_that_is_stored() -> None:
    it = GroupDriver().stable("a")
    it.slow_log = True
    ticket = it.request(Leave((Leaver(member_id="a"),)))
    assert it.answer(ticket) is None
    it.stored()
    assert it.answer(ticket) == LeaveAnswer((NONE,))


def test_a_leave_that_cannot_be_stored_is_an_error() -> None:
    it = GroupDriver().stable("a")
    it.slow_log = True
    ticket = it.request(Leave((Leaver(member_id="a"),)))
    it.not_stored()
    assert it.error(ticket) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_many_leave_at_once_and_each_has_its_own_outcome() -> None:
    it = driver()
    it.join(new_member_id="s-1", instance_id="s"), it.join_as("a")
    it.pass_time(6_000)
    pending = it.join(new_member_id="p")
    errors = leave(
        it,
        Leaver(member_id="", instance_id="s"),
        Leaver(member_id="a", instance_id="unknown"),
        Leaver(member_id="stranger"),
        Leaver(member_id="p"),
        Leaver(member_id=""),
    ).errors
    assert it.error(pending) is ErrorCode.MEMBER_ID_REQUIRED
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert errors == (NONE, unknown, unknown, NONE, unknown)
    assert list(it.group.members.by_id) == ["a"]


def test_a_member_that_leaves_while_it_waits_gets_an_error() -> None:
    it = GroupDriver().stable("a", "b")
    waiting = it.join("a")
    leave(it, Leaver(member_id="a"))
    assert it.error(waiting) is ErrorCode.UNKNOWN_MEMBER_ID
