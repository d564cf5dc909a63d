"""The state machine of a consumer group (KIP-848): heartbeats in, epochs and assignments out."""

from __future__ import annotations

import pytest

from ottla.core.errors import ErrorCode
from ottla.groups.consumer.events import GroupState, RebalanceTimer
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import MemberState
from ottla.groups.consumer.settings import ConsumerSettings
from ottla.groups.machine import SessionTimer
from tests.support.consumer_group_driver import EVERY_CHANGE, REBALANCE_TIMEOUT_MS, Driver, timer_members


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_first_member_gets_all_partitions_in_its_first_answer(driver: Driver) -> None:
    answer = driver.join("m1")
    assert (answer.error, answer.member_id, answer.member_epoch) == (ErrorCode.NONE, "m1", 1)
    assert driver.assigned(answer) == {"web": {0, 1, 2, 3}}
    assert answer.heartbeat_interval_ms == 5_000
    assert driver.group.state is GroupState.STABLE


def test_an_answer_without_change_has_no_assignment(driver: Driver) -> None:
    driver.join("m1")
    answer = driver.beat("m1", 1)
    assert (answer.error, answer.member_epoch, answer.assignment) == (ErrorCode.NONE, 1, None)


def test_a_full_request_gets_its_assignment_again(driver: Driver) -> None:
    driver.join("m1")
    answer = driver.beat("m1", 1, rebalance_timeout_ms=5_000, topics=["web"], owned={"web": [0]})
    assert driver.assigned(answer) == {"web": {0, 1, 2, 3}}


def test_a_second_member_gets_partitions_only_after_the_first_released_them(driver: Driver) -> None:
    driver.join("m1")
    second = driver.join("m2")
    assert (second.member_epoch, driver.assigned(second)) == (2, {})
    assert driver.member("m2").state is MemberState.UNRELEASED_PARTITIONS

    first = driver.beat("m1", 1, owned={"web": [0, 1, 2, 3]})
    assert (first.member_epoch, driver.assigned(first)) == (1, {"web": {0, 1}})
    assert driver.member("m1").state is MemberState.UNREVOKED_PARTITIONS
    assert driver.beat("m2", 2, owned={}).assignment is None, "the first member may still read them"
    assert driver.state == "Reconciling"

    first = driver.beat("m1", 1, owned={"web": [0, 1]})
    assert first.member_epoch == 2
    second = driver.beat("m2", 2)
    assert driver.assigned(second) == {"web": {2, 3}}
    assert driver.state == "Stable"


def test_a_heartbeat_without_owned_partitions_does_not_release(driver: Driver) -> None:
    driver.join("m1")
    driver.join("m2")
    driver.beat("m1", 1, owned={"web": [0, 1, 2, 3]})
    assert driver.beat("m1", 1).member_epoch == 1
    assert driver.member("m1").state is MemberState.UNREVOKED_PARTITIONS


def test_a_partition_changes_hands_with_the_epoch_of_its_new_target(driver: Driver) -> None:
    driver.join("m1")
    driver.join("m2")
    driver.settle("m1", "m2")
    driver.leave("m1")
    driver.settle("m2")
    epochs = next(iter(driver.member("m2").assigned.values()))
    assert epochs == {2: 2, 3: 2, 0: 3, 1: 3}


def test_the_partitions_of_a_member_that_left_are_free_at_once(driver: Driver) -> None:
    driver.join("m1")
    driver.join("m2")
    driver.settle("m1", "m2")
    answer = driver.leave("m1")
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, -1)
    assert driver.assigned(driver.beat("m2", 2)) == {"web": {0, 1, 2, 3}}


def test_the_last_member_leaves_an_empty_group_with_a_new_epoch(driver: Driver) -> None:
    driver.join("m1")
    driver.leave("m1")
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.epoch == 2
    assert driver.group.is_unused


def test_a_member_without_heartbeats_is_removed_after_its_session(driver: Driver) -> None:
    driver.join("m1")
    driver.pass_time(44_999)
    assert "m1" in driver.group.members
    driver.beat("m1", 1)
    driver.pass_time(44_999)
    assert "m1" in driver.group.members
    driver.pass_time(1)
    assert driver.group.state is GroupState.EMPTY
    assert driver.beat("m1", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_release_in_time_is_removed(driver: Driver) -> None:
    driver.join("m1")
    driver.join("m2")
    driver.beat("m1", 1, owned={"web": [0, 1, 2, 3]})
    assert timer_members(driver.timers, RebalanceTimer) == {"m1"}
    for _ in range(REBALANCE_TIMEOUT_MS // 5_000):
        driver.beat("m1", 1)
        driver.beat("m2", 2)
        driver.pass_time(5_000)
    assert driver.group.members.keys() == {"m2"}
    assert driver.assigned(driver.beat("m2", 2)) == {"web": {0, 1, 2, 3}}


def test_the_rebalance_timer_ends_with_the_release(driver: Driver) -> None:
    driver.join("m1")
    driver.join("m2")
    driver.beat("m1", 1, owned={"web": [0, 1, 2, 3]})
    driver.beat("m1", 1, owned={"web": [0, 1]})
    assert timer_members(driver.timers, RebalanceTimer) == set()
    assert timer_members(driver.timers, SessionTimer) == {"m1", "m2"}


# ---- Epochs


@pytest.mark.parametrize("epoch", [2, 7])
def test_a_greater_epoch_is_fenced(driver: Driver, epoch: int) -> None:
    driver.join("m1")
    answer = driver.beat("m1", epoch)
    assert answer.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert answer.message == (
        f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group coordinator"
        " (1). The member must abandon all its partitions and rejoin."
    )


def test_the_previous_epoch_is_accepted_with_a_subset_of_the_assignment(driver: Driver) -> None:
    """The response with the new epoch may be lost."""
    driver.join("m1")
    driver.join("m2")
    driver.settle("m1", "m2")
    driver.leave("m2")
    assert driver.beat("m1", 2).member_epoch == 3
    assert driver.beat("m1", 2).error is ErrorCode.FENCED_MEMBER_EPOCH, "it must report what it owns"
    assert driver.beat("m1", 2, owned={"web": [0, 9]}).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.beat("m1", 2, owned={"web": [0]}).member_epoch == 3
    assert driver.beat("m1", 1, owned={}).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_join_again_at_any_time(driver: Driver) -> None:
    driver.join("m1")
    driver.join("m2")
    driver.settle("m1", "m2")
    answer = driver.join("m1")
    assert (answer.member_epoch, driver.assigned(answer)) == (2, {"web": {0, 1}})


def test_a_request_that_is_repeated_gets_the_same_answer(driver: Driver) -> None:
    first = driver.join("m1")
    assert driver.join("m1") == first
    assert driver.group.epoch == 1


def test_an_unknown_member_cannot_send_heartbeats(driver: Driver) -> None:
    driver.join("m1")
    answer = driver.beat("m2", 1)
    assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.message == "Member m2 is not a member of group team."


def test_the_broker_chooses_the_id_of_a_member_without_one(driver: Driver) -> None:
    answer = driver.join("", new_member_id="chosen")
    assert answer.member_id == "chosen"
    assert driver.beat("chosen", 1).error is ErrorCode.NONE


# ---- Subscriptions and topics


def test_a_changed_subscription_moves_the_assignment(driver: Driver) -> None:
    driver.set_topics({"web": 2, "app": 2})
    driver.join("m1")
    answer = driver.beat("m1", 1, topics=["app"], owned={"web": [0, 1]})
    assert (answer.member_epoch, driver.assigned(answer)) == (1, {})
    answer = driver.beat("m1", 1, owned={})
    assert (answer.member_epoch, driver.assigned(answer)) == (2, {"app": {0, 1}})


def test_the_epoch_grows_when_a_topic_gets_partitions(driver: Driver) -> None:
    driver.join("m1")
    driver.set_topics({"web": 6})
    answer = driver.beat("m1", 1)
    assert (answer.member_epoch, driver.assigned(answer)) == (2, {"web": set(range(6))})


def test_the_epoch_grows_when_a_topic_is_created_or_deleted(driver: Driver) -> None:
    assert driver.assigned(driver.join("m1", "app")) == {}
    driver.set_topics({"web": 4, "app": 2})
    assert driver.assigned(driver.beat("m1", 1)) == {"app": {0, 1}}
    driver.set_topics({"web": 4})
    answer = driver.beat("m1", 2, owned={"app": [0, 1]})
    assert driver.assigned(answer) == {}


def test_a_foreign_topic_does_not_change_the_epoch(driver: Driver) -> None:
    driver.join("m1")
    driver.set_topics({"web": 4, "other": 2})
    assert driver.beat("m1", 1).member_epoch == 1


def test_most_members_choose_the_assignor(driver: Driver) -> None:
    driver.set_topics({"web": 2, "app": 2})
    driver.join("m1", "web", "app", assignor="range")
    driver.join("m2", "web", "app", assignor="range")
    driver.settle("m1", "m2")
    assert driver.has("m1") == {"web": {0}, "app": {0}}, "co-partitioned"
    assert driver.group.preferred_assignor() == "range"
    driver.beat("m1", driver.member("m1").epoch, assignor="uniform")
    driver.beat("m2", driver.member("m2").epoch, assignor="uniform")
    assert driver.group.preferred_assignor() == "uniform"


def test_a_full_group_refuses_new_members_alone() -> None:
    driver = Driver(settings=EVERY_CHANGE._replace(max_size=1))
    driver.join("m1")
    answer = driver.join("m2")
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert answer.message == "The consumer group has reached its maximum capacity of 1 members."
    assert driver.beat("m1", 1).error is ErrorCode.NONE


# ---- The assignment interval (KIP-1263)


def test_members_that_join_within_the_interval_share_a_target() -> None:
    driver = Driver(settings=ConsumerSettings(assignment_interval_ms=1_000))
    driver.join("m1")
    answers = [driver.join(name) for name in ("m2", "m3", "m4")]
    assert [(answer.member_epoch, driver.assigned(answer)) for answer in answers] == [(1, {})] * 3
    assert (driver.group.state, driver.group.epoch, driver.group.target_epoch) == (GroupState.ASSIGNING, 4, 1)
    driver.pass_time(1_000)
    answer = driver.beat("m1", 1, owned={"web": [0, 1, 2, 3]})
    assert driver.group.target_epoch == 4
    assert driver.assigned(answer) == {"web": {0}}


def test_within_the_interval_a_member_releases_topics_that_it_no_longer_subscribes_to() -> None:
    driver = Driver({"web": 2, "app": 2}, settings=ConsumerSettings(assignment_interval_ms=1_000))
    driver.join("m1", "web", "app")
    answer = driver.beat("m1", 1, topics=["web"], owned={"web": [0, 1], "app": [0, 1]})
    assert (answer.member_epoch, driver.assigned(answer)) == (1, {"web": {0, 1}})
    assert driver.member("m1").state is MemberState.UNREVOKED_PARTITIONS
    driver.pass_time(1_000)
    assert driver.beat("m1", 1, owned={"web": [0, 1]}).member_epoch == 2
    assert driver.group.state is GroupState.STABLE


# ---- Static members


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(driver: Driver) -> None:
    driver.join("a1", instance_id="a")
    driver.join("b1", instance_id="b")
    driver.settle("a1", "b1")
    left = driver.leave("a1", epoch=-2, instance_id="a")
    assert (left.error, left.member_epoch) == (ErrorCode.NONE, -2)
    assert driver.beat("b1", 2).assignment is None
    back = driver.join("a2", instance_id="a")
    assert (back.member_epoch, driver.assigned(back)) == (2, {"web": {0, 1}})
    assert driver.group.epoch == 2
    assert driver.group.members.keys() == {"a2", "b1"}
    assert driver.beat("a1", 2, instance_id="a").error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_does_not_return_is_removed_after_its_session(driver: Driver) -> None:
    driver.join("a1", instance_id="a")
    driver.leave("a1", epoch=-2, instance_id="a")
    driver.pass_time(45_000)
    assert driver.group.state is GroupState.EMPTY


def test_an_instance_id_in_use_is_not_given_to_another_member(driver: Driver) -> None:
    driver.join("a1", instance_id="a")
    answer = driver.join("a2", instance_id="a")
    assert answer.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert answer.message == (
        "Static member a2 with instance id a cannot join the group because the instance id is owned by a1 member."
    )
    assert driver.group.members.keys() == {"a1"}


def test_a_static_member_that_leaves_for_good_frees_its_partitions(driver: Driver) -> None:
    driver.join("a1", instance_id="a")
    driver.join("b1", instance_id="b")
    driver.settle("a1", "b1")
    driver.leave("a1", instance_id="a")
    assert driver.assigned(driver.beat("b1", 2)) == {"web": {0, 1, 2, 3}}


def test_unknown_static_members_are_refused(driver: Driver) -> None:
    driver.join("a1", instance_id="a")
    assert driver.beat("a1", 1, instance_id="x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("a1", epoch=-2, instance_id="x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("a9", epoch=-2, instance_id="a").error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_left_while_it_had_to_release_returns_without_those_partitions(driver: Driver) -> None:
    driver.join("a1", instance_id="a")
    driver.join("b1")
    driver.beat("a1", 1, owned={"web": [0, 1, 2, 3]})
    driver.leave("a1", epoch=-2, instance_id="a")
    assert driver.assigned(driver.beat("b1", 2)) == {"web": {2, 3}}
    back = driver.join("a2", instance_id="a")
    assert (back.member_epoch, driver.assigned(back)) == (2, {"web": {0, 1}})


# ---- Regular expressions


def test_a_regular_expression_is_resolved_off_the_loop_and_then_assigned() -> None:
    driver = Driver({"web.a": 1, "web.b": 2, "app": 1})
    answer = driver.join("m1", regex="web\\..*")
    assert (answer.member_epoch, driver.assigned(answer)) == (1, {})
    driver.compute()
    answer = driver.beat("m1", 1)
    assert (answer.member_epoch, driver.assigned(answer)) == (2, {"web.a": {0}, "web.b": {0, 1}})


def test_an_invalid_regular_expression_is_refused(driver: Driver) -> None:
    answer = driver.join("m1", regex="web(")
    assert answer.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not driver.group.members


def test_new_topics_are_matched_ten_seconds_after_the_last_resolution() -> None:
    driver = Driver({"web.a": 1})
    driver.join("m1", regex="web.*")
    driver.compute()
    driver.beat("m1", 1)
    driver.set_topics({"web.a": 1, "web.b": 1})
    driver.beat("m1", 2)
    assert not driver.computing, "too early"
    driver.pass_time(10_001)
    driver.beat("m1", 2)
    driver.compute()
    assert driver.assigned(driver.beat("m1", 2)) == {"web.a": {0}, "web.b": {0}}


def test_a_member_with_a_known_expression_gets_partitions_at_once() -> None:
    driver = Driver({"web.a": 2})
    driver.join("m1", regex="web.*")
    driver.compute()
    driver.beat("m1", 1)
    answer = driver.join("m2", regex="web.*")
    assert (answer.member_epoch, driver.member("m2").state) == (3, MemberState.UNRELEASED_PARTITIONS)
    assert not driver.computing


def test_names_and_an_expression_are_united() -> None:
    driver = Driver({"web": 1, "app": 1})
    driver.join("m1", "app", regex="web")
    driver.compute()
    driver.beat("m1", 1)
    assert driver.has("m1") == {"web": {0}, "app": {0}}


def test_an_expression_without_members_is_forgotten() -> None:
    driver = Driver({"web": 1})
    driver.join("m1", regex="web")
    driver.join("m2", regex="w.*")
    driver.compute()
    driver.settle("m1", "m2")
    driver.pass_time(10_001)
    driver.settle("m1", "m2")
    driver.compute()
    assert driver.group.regexes.keys() == {"web", "w.*"}
    driver.leave("m1")
    assert driver.group.regexes.keys() == {"w.*"}
    driver.beat("m2", driver.member("m2").epoch, regex="", topics=["web"])
    assert not driver.group.regexes


# ---- Writes


def test_a_request_is_answered_when_its_records_are_durable() -> None:
    driver = Driver(manual=True)
    ticket = driver.feed(driver.heartbeat("m1", 0, rebalance_timeout_ms=1, topics=["web"], owned={}))
    assert ticket not in driver.answers
    driver.stored()
    assert driver.answers[ticket].error is ErrorCode.NONE


def test_a_later_request_waits_for_the_records_before_it() -> None:
    driver = Driver(manual=True)
    driver.feed(driver.heartbeat("m1", 0, rebalance_timeout_ms=1, topics=["web"], owned={}))
    later = driver.feed(driver.heartbeat("m1", 1))
    assert later not in driver.answers
    driver.stored()
    assert driver.answers[later].error is ErrorCode.NONE


def test_changes_during_a_write_share_the_next_one() -> None:
    driver = Driver(manual=True)
    for name in ("m1", "m2", "m3"):
        driver.feed(driver.heartbeat(name, 0, rebalance_timeout_ms=1, topics=["web"], owned={}))
    assert len(driver.waiting) == 1
    driver.stored()
    assert len(driver.waiting) == 1
    assert len(driver.answers) >= 1
    driver.stored()
    assert not driver.waiting


def test_a_failed_write_fails_its_requests_and_is_written_with_the_next_event() -> None:
    driver = Driver(manual=True)
    join = driver.heartbeat("m1", 0, rebalance_timeout_ms=1, topics=["web"], owned={})
    ticket = driver.feed(join)
    driver.not_stored()
    assert driver.answers[ticket].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not driver.waiting
    again = driver.feed(join)
    driver.stored()
    assert driver.answers[again].error is ErrorCode.NONE
    driver.reload()
    assert driver.has("m1") == {"web": {0, 1, 2, 3}}


def test_many_failed_writes_keep_the_last_record_of_each_key() -> None:
    driver = Driver(manual=True)
    for number in range(400):
        driver.feed(driver.heartbeat("m1", 0, rebalance_timeout_ms=number + 1, topics=["web"], owned={}))
        if driver.waiting:
            driver.not_stored()
    assert len(driver.machine._records) < 1_100
    driver.feed(driver.heartbeat("m1", 0, rebalance_timeout_ms=9, topics=["web"], owned={}))
    driver.stored()
    driver.reload()
    assert driver.member("m1").rebalance_timeout_ms == 9


def test_a_group_with_members_or_pending_writes_is_not_deleted() -> None:
    driver = Driver(manual=True)
    driver.feed(driver.heartbeat("m1", 0, rebalance_timeout_ms=1, topics=["web"], owned={}))
    driver.stored()
    assert driver.machine.begin_deletion() is ErrorCode.NON_EMPTY_GROUP
    driver.feed(driver.heartbeat("m1", -1))
    assert driver.machine.begin_deletion() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.stored()
    assert driver.machine.begin_deletion() is ErrorCode.NONE
    assert driver.state == "Dead"
    assert driver.join("m2").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.machine.cancel_deletion()
    assert driver.state == "Empty"


def test_the_log_restores_the_group(driver: Driver) -> None:
    driver.set_topics({"web": 4, "app.x": 2})
    driver.join("m1", regex="app.*", topics=["web"], rack_id="r", client_id="c", client_host="/1.2.3.4")
    driver.compute()
    driver.join("a1", instance_id="a", assignor="range")
    driver.beat("m1", driver.member("m1").epoch, owned={"web": [0, 1, 2, 3], "app.x": [0, 1]})
    before = driver.group
    driver.reload()
    after = driver.group
    assert after.members == before.members
    assert (after.epoch, after.target_epoch, after.metadata_hash) == (
        before.epoch,
        before.target_epoch,
        before.metadata_hash,
    )
    assert (after.target, after.owners, after.by_instance) == (before.target, before.owners, before.by_instance)
    assert after.regexes.keys() == before.regexes.keys()
    assert timer_members(driver.timers, RebalanceTimer) == {"m1"}
    assert timer_members(driver.timers, SessionTimer) == {"m1", "a1"}


def test_tombstones_delete_every_record(driver: Driver) -> None:
    driver.join("m1", regex="web")
    driver.compute()
    driver.log += driver.group.tombstones()
    last = dict(driver.log)
    assert all(value is None for value in last.values())


def test_the_first_member_of_a_new_group_has_epoch_two_as_in_kafka() -> None:
    assert Driver(group=ConsumerGroup("team")).join("m1").member_epoch == 2
