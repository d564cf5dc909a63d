"""Members that change their instance id or their protocol while they are in the group."""

from __future__ import annotations

import random

import pytest

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import Leave, Leaver
from ottla.groups.consumer.events import MemberJoinTimer, MemberSyncTimer, RebalanceTimer
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.machine import ConsumerMachine
from ottla.groups.consumer.member import MemberState
from ottla.groups.consumer.settings import ConsumerSettings
from tests.support.consumer_group_driver import Driver, timer_members
from tests.support.group_driver import subscription

BATCHED = ConsumerSettings(assignment_interval_ms=5_000)


# ---- The instance id


@pytest.mark.parametrize("new", ["J", None])
def test_a_member_that_joins_again_has_its_last_instance_id(new: str | None) -> None:
    driver = Driver()
    driver.join("m", instance_id="I")
    answer = driver.join("m", instance_id=new)
    assert (answer.error, driver.assigned(answer)) == (ErrorCode.NONE, {"web": {0, 1, 2, 3}})
    assert driver.group.by_instance == {new or "I": "m"}, "without one it keeps the last"
    assert driver.beat("m", answer.member_epoch, instance_id=new).error is ErrorCode.NONE
    driver.reload()
    assert driver.group.by_instance == {new or "I": "m"}


def test_an_instance_id_that_a_member_gave_up_is_free() -> None:
    driver = Driver()
    driver.join("m", instance_id="I")
    driver.join("m", instance_id="J")
    assert driver.beat("m", 1, instance_id="I").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.join("n", instance_id="J").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert driver.join("n", instance_id="I").error is ErrorCode.NONE
    assert driver.group.by_instance == {"J": "m", "I": "n"}


def test_a_member_that_takes_the_place_of_a_static_member_has_its_partitions_alone() -> None:
    driver = Driver()
    driver.join("m", instance_id="I")
    driver.join("n", instance_id="J")
    driver.settle("m", "n")
    left = driver.has("n")
    driver.leave("n", epoch=-2, instance_id="J")
    answer = driver.join("m", instance_id="J")
    assert (answer.error, driver.assigned(answer)) == (ErrorCode.NONE, left)
    assert driver.group.members.keys() == {"m"}
    assert driver.group.by_instance == {"J": "m"}
    other = driver.join("o")
    driver.settle("m", "o")
    assert other.error is ErrorCode.NONE
    assert driver.has("m")["web"] | driver.has("o")["web"] == {0, 1, 2, 3}


def test_a_regular_expression_that_ends_with_the_place_of_its_member_is_forgotten() -> None:
    driver = Driver()
    driver.join("n", instance_id="J")
    driver.leave("n", epoch=-2, instance_id="J")
    driver.join("m", regex="w.*")
    driver.compute()
    assert driver.group.regexes.keys() == {"w.*"}
    assert driver.join("m", "web", instance_id="J").error is ErrorCode.NONE
    assert driver.group.regexes == {}


# ---- The protocol


def _with_classic_member(*, settings: ConsumerSettings | None = None) -> Driver:
    """A group of `new`, of the new protocol, and `old`, of the classic one."""
    driver = Driver() if settings is None else Driver(settings=settings)
    driver.join("new")
    driver.classic_join("old")
    return driver


@pytest.mark.parametrize("joins", [False, True])
def test_a_classic_member_goes_on_by_heartbeats_of_the_new_protocol(joins: bool) -> None:
    driver = _with_classic_member()
    answer = driver.join("old") if joins else driver.beat("old", driver.member("old").epoch)
    assert answer.error is ErrorCode.NONE
    assert driver.member("old").classic is None
    assert not timer_members(driver.group.timers, MemberJoinTimer) | timer_members(driver.group.timers, MemberSyncTimer)
    assert driver.classic_beat("old", answer.member_epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.settle("new", "old")
    assert driver.has("new")["web"] | driver.has("old")["web"] == {0, 1, 2, 3}


def test_a_classic_member_that_must_release_partitions_has_its_time_for_that_in_the_new_protocol() -> None:
    driver = _with_classic_member()
    driver.settle("new")
    driver.classic_join("old")
    driver.join("third")
    owning = (("range", subscription("web", owned=driver.has("old"))),)
    driver.classic_join("old", protocols=owning)
    assert driver.member("old").state is MemberState.UNREVOKED_PARTITIONS
    assert "old" not in timer_members(driver.group.timers, RebalanceTimer)
    assert driver.beat("old", driver.member("old").epoch).error is ErrorCode.NONE
    assert "old" in timer_members(driver.group.timers, RebalanceTimer)
    driver.classic_join("old", protocols=owning)
    assert "old" not in timer_members(driver.group.timers, RebalanceTimer)
    assert "old" in timer_members(driver.group.timers, MemberSyncTimer)


def test_a_refused_join_names_no_member() -> None:
    driver = _with_classic_member()
    assert driver.classic_join("old", instance_id="unknown").member_id == ""


def test_every_member_leaves_by_leave_group() -> None:
    driver = _with_classic_member()
    driver.join("static", instance_id="I")
    driver.join("other", instance_id="J")
    leavers = (("new", None), ("static", "I"), ("", "J"), ("static", "J"), ("", "K"))
    left = driver.ask(Leave(tuple(Leaver(member_id=name, instance_id=instance) for name, instance in leavers)))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert left.errors == (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID, unknown)


def test_a_classic_member_need_not_join_again_before_there_is_a_new_target() -> None:
    driver = _with_classic_member(settings=BATCHED)
    member = driver.member("old")
    assert driver.group.epoch > driver.group.target_epoch == member.epoch
    assert driver.classic_sync("old", member.epoch).error is ErrorCode.NONE
    assert driver.classic_beat("old", member.epoch) is ErrorCode.NONE
    driver.now_ms += 5_000
    driver.beat("new", driver.member("new").epoch)
    assert driver.classic_beat("old", member.epoch) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_classic_member_joins_again_if_no_member_of_the_new_protocol_computes_the_target() -> None:
    driver = _with_classic_member(settings=BATCHED)
    driver.classic_join("new")
    assert driver.classic_beat("old", driver.member("old").epoch) is ErrorCode.REBALANCE_IN_PROGRESS


# ---- Everything, in any order


def _random_request(driver: Driver, rng: random.Random) -> None:
    group = driver.group
    member_id = rng.choice("abc")
    instance_id = rng.choice([None, None, "I", "J"])
    member = group.members.get(member_id)
    epoch = member.epoch if member is not None and rng.random() < 0.8 else rng.randrange(1, 6)
    topics = rng.choice([("web",), ("app",), ("web", "app")])
    owned = driver.has(member_id) if member is not None else {}
    match rng.randrange(10):
        case 0 | 1:
            regex = rng.choice([{}, {}, {"regex": "w.*"}, {"regex": ""}])
            driver.join(member_id, *topics, instance_id=instance_id, **regex)
        case 2 | 3:
            driver.beat(member_id, epoch, owned=rng.choice([owned, {}, None]), instance_id=instance_id)
        case 4:
            driver.beat(member_id, epoch, topics=topics, instance_id=instance_id)
        case 5:
            driver.leave(member_id, epoch=rng.choice([-1, -2]), instance_id=instance_id)
        case 6:
            protocols = (("range", subscription(*topics, owned=rng.choice([owned, None]))),)
            chosen = rng.choice([member_id, ""])
            driver.classic_join(chosen, new_member_id=member_id, instance_id=instance_id, protocols=protocols)
        case 7:
            driver.classic_sync(member_id, epoch, instance_id=instance_id)
        case 8:
            driver.classic_beat(member_id, epoch, instance_id=instance_id)
        case _:
            driver.ask(Leave((Leaver(member_id=rng.choice([member_id, ""]), instance_id=instance_id),)))


@pytest.mark.parametrize("seed", range(120))
def test_no_order_of_requests_breaks_a_group_and_the_log_has_all_of_it(seed: int) -> None:
    rng = random.Random(seed)
    settings = ConsumerSettings(assignment_interval_ms=rng.choice([0, 1_000]))
    driver = Driver({"web": 3, "app": 2}, settings=settings)
    for _ in range(80):
        if not isinstance(driver.machine, ConsumerMachine):
            return  # the last members of the classic protocol go on in a classic group
        _random_request(driver, rng)
        driver.compute()
        driver.pass_time(rng.choice([0, 0, 200, 1_500, 40_000]))
        if rng.random() < 0.1 and driver.group.members and isinstance(driver.machine, ConsumerMachine):
            _assert_log_has(driver)


def _assert_log_has(driver: Driver) -> None:
    before: ConsumerGroup = driver.group
    driver.reload()
    after = driver.group
    assert (after.members, after.by_instance, after.epoch) == (before.members, before.by_instance, before.epoch)
    assert after.target_epoch == before.target_epoch
    assert {name: target for name, target in after.target.items() if target} == {
        name: target for name, target in before.target.items() if target
    }
    assert after.regexes.keys() == before.regexes.keys()
