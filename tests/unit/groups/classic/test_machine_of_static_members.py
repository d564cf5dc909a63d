"""Drives the state machine of a group: static members, commits, deletion and loading."""

from __future__ import annotations

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import JoinAnswer, Leaver, State, Sync, SyncTimer
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.machine import Now, SessionTimer, TimerFired
from tests.support.group_driver import (
    NONE,
    GroupDriver,
    commit,
    driver,
    heartbeat,
    leave,
    loaded,
    state_of,
    subscription,
)

# ---- Static members


def with_statics(*names: str) -> GroupDriver:
    it = driver()
    for name in names:
        it.join(new_member_id=f"{name}-1", instance_id=name, requires_member_id=True)
    it.pass_time(9_000)
    for name in reversed(names):
        it.sync(f"{name}-1", **{f"{each}-1": each.encode() for each in names})
    assert state_of(it) is State.STABLE
    return it


def test_a_static_member_that_comes_back_gets_its_old_assignment_without_a_rebalance() -> None:
    it = with_statics("a", "b")
    ticket = it.join(new_member_id="b-2", instance_id="b")
    assert it.joined(ticket).generation == 1
    assert it.joined(ticket).member_id == "b-2"
    assert it.synced(it.sync("b-2")).assignment == b"b"
    assert state_of(it) is State.STABLE
    assert it.log[-1].members[1].member_id == "b-2"


def test_a_static_return_is_answered_when_the_new_name_is_stored() -> None:
    it = with_statics("a", "b")
    it.slow_log = True
    ticket = it.join(new_member_id="b-2", instance_id="b")
    assert it.answer(ticket) is None
    it.stored()
    assert it.joined(ticket).error is NONE


def test_a_static_return_that_cannot_be_stored_is_an_error_and_the_member_may_try_again() -> None:
    it = with_statics("a", "b")
    it.slow_log = True
    ticket = it.join(new_member_id="b-2", instance_id="b")
    it.not_stored()
    assert it.error(ticket) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.slow_log = False
    assert it.joined(it.join(new_member_id="b-3", instance_id="b")).member_id == "b-3"


def test_a_rebalance_that_begins_during_a_static_return_answers_it() -> None:
    it = with_statics("a", "b")
    it.slow_log = True
    ticket = it.join(new_member_id="b-2", instance_id="b")
    it.join("a-1", instance_id="a")
    it.stored()
    assert it.joined(ticket).generation == 2


def test_a_static_return_is_not_answered_from_the_old_generation_once_a_rebalance_began() -> None:
    it = with_statics("a", "b", "c")
    it.slow_log = True
    ticket = it.join(new_member_id="b-2", instance_id="b")
    it.join("a-1", instance_id="a")
    it.stored()
    assert it.answer(ticket) is None
    it.join("c-1", instance_id="c")
    assert it.joined(ticket).generation == 2


def test_a_static_member_that_comes_back_before_it_synced_must_still_sync() -> None:
    it = driver()
    for name in ("a", "b"):
        it.join(new_member_id=f"{name}-1", instance_id=name)
    it.pass_time(6_000)
    it.sync("a-1", **{"a-1": b"a", "b-1": b"b"})
    it.join(new_member_id="b-2", instance_id="b")
    assert it.group.members.not_synced == {"b-2"}
    assert it.synced(it.sync("b-2")).assignment == b"b"
    assert SyncTimer() not in it.timers


def test_a_static_leader_that_comes_back_need_not_assign_again() -> None:
    it = with_statics("a", "b")
    new = it.joined(it.join(new_member_id="a-2", instance_id="a", may_skip_assignment=True))
    assert (new.leader, new.skip_assignment, len(new.members)) == ("a-2", True, 2)


def test_an_older_static_leader_that_comes_back_does_not_learn_that_it_leads() -> None:
    it = with_statics("a", "b")
    new = it.joined(it.join(new_member_id="a-2", instance_id="a"))
    assert (new.leader, new.skip_assignment, new.members) == ("a-1", False, ())


def test_a_static_member_that_comes_back_for_other_topics_starts_no_rebalance() -> None:
    it = with_statics("a", "b")
    ticket = it.join(new_member_id="b-2", instance_id="b", protocols=(("range", subscription("other")),))
    assert it.joined(ticket).generation == 1
    assert state_of(it) is State.STABLE


def test_a_static_member_that_comes_back_with_another_protocol_starts_a_rebalance() -> None:
    it = driver()
    both = (("range", subscription("web")), ("sticky", subscription("web")))
    it.join(new_member_id="a-1", instance_id="a", protocols=both)
    it.pass_time(3_000)
    it.sync("a-1")
    ticket = it.join(new_member_id="a-2", instance_id="a", protocols=both[1:])
    assert it.joined(ticket).generation == 2


def test_a_static_member_that_comes_back_during_the_syncs_starts_a_rebalance() -> None:
    it = driver()
    it.join(new_member_id="a-1", instance_id="a")
    it.pass_time(3_000)
    it.join(new_member_id="a-2", instance_id="a")
    assert it.group.generation == 2


def test_the_older_of_two_that_claim_one_instance_id_is_fenced_everywhere() -> None:
    it = with_statics("a", "b")
    it.join(new_member_id="b-2", instance_id="b")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert heartbeat(it, "b-1", instance_id="b") is fenced
    assert commit(it, "b-1", generation=1, instance_id="b") is fenced
    assert it.error(it.request(Sync(member_id="b-1", generation=1, instance_id="b"))) is fenced
    assert it.error(it.join("b-1", instance_id="b")) is fenced
    assert leave(it, Leaver(member_id="b-1", instance_id="b")).errors == (fenced,)
    assert heartbeat(it, "b-2", instance_id="b") is NONE


def test_a_static_member_that_waits_is_fenced_when_its_successor_comes() -> None:
    it = with_statics("a", "b")
    waiting = it.join("a-1", instance_id="a")
    it.join(new_member_id="a-2", instance_id="a")
    assert it.joined(waiting) == JoinAnswer(error=ErrorCode.FENCED_INSTANCE_ID, member_id="a-1")


def test_static_members_that_are_away_keep_their_place_until_their_session_runs_out() -> None:
    it = with_statics("a", "b")
    it.join("a-1", instance_id="a", session_timeout_ms=100_000)
    it.pass_time(9_999)
    assert set(it.group.members.by_id) == {"a-1", "b-1"}
    it.pass_time(1)
    assert set(it.group.members.by_id) == {"a-1"}
    assert it.group.generation == 2


def test_the_id_of_a_pending_member_cannot_be_used_with_an_instance_id() -> None:
    it = with_statics("a")
    it.join(new_member_id="p")
    assert it.error(it.join("p", instance_id="a")) is ErrorCode.FENCED_INSTANCE_ID


def test_when_no_static_member_joins_the_rebalance_waits_for_their_sessions() -> None:
    it = driver()
    it.join(new_member_id="a-1", instance_id="a", session_timeout_ms=600_000, rebalance_timeout_ms=20_000)
    it.join(new_member_id="b-1", instance_id="b", session_timeout_ms=600_000, rebalance_timeout_ms=20_000)
    it.pass_time(6_000)
    it.sync("b-1"), it.sync("a-1")
    leave(it, Leaver(member_id="", instance_id="b"))
    it.pass_time(100_000)
    assert state_of(it) is State.PREPARING
    it.pass_time(500_000)
    assert state_of(it) is State.EMPTY


# ---- Commits


def test_a_member_of_this_generation_may_commit_and_so_shows_that_it_lives() -> None:
    it = GroupDriver().stable("a")
    for _ in range(5):
        it.pass_time(9_000)
        assert commit(it, "a", generation=1) is NONE
    assert state_of(it) is State.STABLE


def test_zombies_may_not_commit() -> None:
    it = GroupDriver().stable("a", "b")
    assert commit(it, "a", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert commit(it, "stranger", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(it) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(it, "a", generation=-1) is ErrorCode.ILLEGAL_GENERATION


def test_a_member_may_commit_while_others_join_but_not_before_it_has_its_assignment() -> None:
    it = GroupDriver().stable("a", "b")
    it.join("a")
    assert commit(it, "b", generation=1) is NONE
    it.join("b")
    assert commit(it, "b", generation=2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_any_client_may_commit_while_the_group_has_no_members() -> None:
    assert commit(driver()) is NONE
    it = GroupDriver().stable("a")
    leave(it, Leaver(member_id="a"))
    assert commit(it) is NONE
    assert commit(it, "a", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID


# ---- Deletion and loading


def test_only_an_empty_group_dies_and_a_dead_one_refuses_every_request() -> None:
    it = GroupDriver().stable("a")
    assert it.machine.begin_deletion() is ErrorCode.NON_EMPTY_GROUP
    leave(it, Leaver(member_id="a"))
    assert it.machine.begin_deletion() is NONE
    assert it.machine.begin_deletion() is ErrorCode.GROUP_ID_NOT_FOUND
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert it.error(it.join()) is away
    assert it.error(it.sync("a")) is away
    assert heartbeat(it, "a") is away
    assert commit(it) is away
    assert leave(it, Leaver(member_id="a")).error is away
    it.machine.cancel_deletion()
    assert commit(it) is NONE


def test_a_loaded_group_goes_on_where_it_was() -> None:
    snapshot = GroupDriver().stable("a", "b").log[-1]
    it = loaded(snapshot, ClassicSettings())
    assert heartbeat(it, "a", generation=1) is NONE
    assert it.synced(it.sync("b")).assignment == b"b"
    assert it.group.members.leader == "a"
    assert it.group.is_subscribed_to("web")
    it.pass_time(10_000)
    assert state_of(it) is State.EMPTY


def test_a_timer_that_was_moved_on_its_way_does_nothing() -> None:
    it = GroupDriver().stable("a")
    stale = SessionTimer("a")
    outputs = it.machine.step(TimerFired(stale), now=Now(it.timers[stale] - 1, 0))
    assert outputs == []
    assert "a" in it.group.members.by_id
