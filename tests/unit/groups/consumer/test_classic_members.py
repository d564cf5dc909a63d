"""Members of the classic protocol in a consumer group, and conversion of groups with members (KIP-848)."""

from __future__ import annotations

import pytest

from ottla.client.consumer_protocol import read_assignment, write_assignment
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.groups.classic.events import GroupConverted, GroupDisbanded, GroupSnapshot, Join, MemberSnapshot, State
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.classic.records import group_key, read_group
from ottla.groups.consumer.conversion import consumer_group, validate_upgrade
from ottla.groups.consumer.events import GroupState, MemberJoinTimer, MemberSyncTimer
from ottla.groups.consumer.machine import ConsumerMachine
from ottla.groups.consumer.settings import ConsumerSettings, MigrationPolicy
from ottla.groups.machine import Now
from ottla.groups.modern.events import RequestRefused
from ottla.internal_topics.machine_events import Loaded, Reply
from tests.support.consumer_group_driver import EVERY_CHANGE, Driver, timer_members
from tests.support.group_driver import subscription


def _classic(*member_ids: str, protocol_type: str = "consumer", user_data: bytes = b"") -> ClassicGroup:
    """A stable classic group; each member has one of four partitions."""
    members = tuple(
        MemberSnapshot(
            member_id=member_id,
            instance_id=None,
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=10_000,
            subscription=subscription("web"),
            assignment=_with_user_data(write_assignment([TopicPartition("web", index)]), user_data),
        )
        for index, member_id in enumerate(member_ids)
    )
    snapshot = GroupSnapshot(
        protocol_type=protocol_type, generation=7, protocol="range", leader=member_ids[0], members=members
    )
    group = ClassicGroup("team")
    group.apply(snapshot)
    group.restore()
    return group


def _with_user_data(assignment: bytes, user_data: bytes) -> bytes:
    return assignment[:-4] + len(user_data).to_bytes(4, "big") + user_data if user_data else assignment


def _upgraded(*member_ids: str) -> Driver:
    driver = Driver()
    driver.group, first_records = consumer_group(_classic(*member_ids), driver.image)
    driver.machine = ConsumerMachine(driver.group, driver.settings, driver.image, first_records)
    driver.feed(Loaded())
    return driver


# ---- Upgrade


def test_an_upgraded_group_keeps_members_assignments_and_generation() -> None:
    driver = _upgraded("old1", "old2")
    assert (driver.group.epoch, driver.group.target_epoch) == (7, 7)
    assert (driver.has("old1"), driver.has("old2")) == ({"web": {0}}, {"web": {1}})
    assert driver.member("old1").classic is not None
    assert dict(driver.log)[group_key("team")] is None, "the classic group is deleted from the log"
    driver.reload()
    assert driver.has("old2") == {"web": {1}}


def test_classic_members_follow_a_new_member_through_join_and_sync() -> None:
    driver = _upgraded("old")
    driver.join("new")
    assert driver.group.epoch == 8
    assert driver.classic_beat("old", 7) is ErrorCode.REBALANCE_IN_PROGRESS
    assert timer_members(driver.timers, MemberJoinTimer) == {"old"}
    joined = driver.classic_join("old")
    assert (joined.error, joined.generation, joined.protocol_name) == (ErrorCode.NONE, 8, "range")
    assert timer_members(driver.timers, MemberJoinTimer) == set()
    assert timer_members(driver.timers, MemberSyncTimer) == {"old"}
    synced = driver.classic_sync("old", 8, protocol_type="consumer", protocol_name="range")
    assert synced.error is ErrorCode.NONE
    assert len(read_assignment(synced.assignment)) == 2
    assert timer_members(driver.timers, MemberSyncTimer) == set()
    assert driver.classic_beat("old", 8) is ErrorCode.NONE


def test_a_classic_member_releases_by_joining_with_what_it_still_owns() -> None:
    driver = Driver()
    driver.join("new")
    driver.leave("new")
    driver.classic_join("a")  # an empty consumer group stays one in this driver
    driver.classic_sync("a", driver.member("a").epoch)
    assert driver.has("a") == {"web": {0, 1, 2, 3}}
    driver.join("new")
    epoch = driver.member("a").epoch
    assert driver.classic_beat("a", epoch) is ErrorCode.REBALANCE_IN_PROGRESS
    owned = [TopicPartition("web", index) for index in range(4)]
    driver.classic_join("a", protocols=(("range", _owning(owned)),))
    assert driver.has("a") == {"web": {0, 1}}
    assert driver.beat("new", driver.member("new").epoch).assignment is None
    driver.classic_join("a", protocols=(("range", _owning(owned[:2])),))
    answer = driver.beat("new", driver.member("new").epoch)
    assert driver.assigned(answer) == {"web": {2, 3}}


def _owning(owned: list[TopicPartition]) -> bytes:
    """A subscription of version 1."""
    return b"\0\1" + subscription("web")[2:] + write_assignment(owned)[2:-4]


def test_a_classic_member_that_does_not_join_or_sync_in_time_is_removed() -> None:
    driver = _upgraded("old")
    driver.join("new")
    for _ in range(13):
        driver.classic_beat("old", 7)
        driver.beat("new", driver.member("new").epoch)
        driver.pass_time(5_000)
    assert driver.group.members.keys() == {"new"}

    driver = _upgraded("old")
    driver.join("new")
    driver.classic_join("old")
    for _ in range(13):
        driver.beat("new", driver.member("new").epoch)
        if "old" in driver.group.members:
            driver.classic_beat("old", driver.member("old").epoch)
        driver.pass_time(5_000)
    assert driver.group.members.keys() == {"new"}


def test_classic_requests_are_validated() -> None:
    driver = _upgraded("old")
    driver.join("new")
    driver.classic_join("old")
    assert driver.classic_beat("old", 7) is ErrorCode.ILLEGAL_GENERATION
    assert driver.classic_beat("new", 8) is ErrorCode.UNKNOWN_MEMBER_ID, "it does not use the classic protocol"
    assert driver.classic_sync("old", 7).error is ErrorCode.ILLEGAL_GENERATION
    wrong = driver.classic_sync("old", 8, protocol_name="sticky")
    assert wrong.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.classic_join("x", protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    sticky = (("sticky", subscription("web")),)
    assert driver.classic_join("x", protocols=sticky).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.classic_join("", requires_member_id=True).error is ErrorCode.MEMBER_ID_REQUIRED
    garbage = (("range", b"\xff"),)
    assert driver.classic_join("x", protocols=garbage).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.classic_leave("new", "unknown").errors == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


def test_no_classic_member_joins_a_consumer_group_without_migration() -> None:
    driver = Driver(settings=EVERY_CHANGE._replace(migration_policy=MigrationPolicy.DISABLED))
    driver.join("new")
    assert driver.classic_join("old").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("group", "settings"),
    [
        (_classic("m"), ConsumerSettings(migration_policy=MigrationPolicy.DOWNGRADE)),
        (_classic("m"), ConsumerSettings(migration_policy=MigrationPolicy.DISABLED)),
        (_classic("m", protocol_type="connect"), ConsumerSettings()),
        (_classic("m", "n"), ConsumerSettings(max_size=1)),
    ],
)
def test_some_groups_are_not_upgraded(group: ClassicGroup, settings: ConsumerSettings) -> None:
    with pytest.raises(RequestRefused, match="Cannot upgrade classic group team") as refused:
        validate_upgrade(group, settings)
    assert refused.value.error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_custom_assignor_prevents_the_upgrade() -> None:
    with pytest.raises(RequestRefused, match="custom assignor"):
        consumer_group(_classic("m", user_data=b"state"), Driver().image)


def test_waiting_requests_of_a_classic_group_fail_when_it_is_upgraded() -> None:
    machine = ClassicMachine(_classic("m"))
    machine.step(GroupConverted(rebalance=False), now=Now(0, 0))
    join = Join(
        member_id="m",
        new_member_id="",
        protocol_type="consumer",
        protocols=(("range", subscription("app")),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
    )
    other = Join(
        member_id="",
        new_member_id="n",
        protocol_type="consumer",
        protocols=(("range", subscription("app")),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        requires_member_id=False,
    )
    machine.step(other, now=Now(0, 0), ticket=1)
    del join
    outputs = machine.step(GroupDisbanded(), now=Now(0, 0))
    [reply] = [output for output in outputs if isinstance(output, Reply)]
    assert (reply.ticket, reply.answer.error) == (1, ErrorCode.REBALANCE_IN_PROGRESS)
    assert machine.group.state is State.DEAD
    assert not machine.group.timers


# ---- Downgrade


def test_the_group_becomes_classic_when_its_last_new_member_leaves() -> None:
    driver = _upgraded("old1", "old2")
    driver.join("new")
    answer = driver.leave("new")
    assert (answer.error, answer.member_epoch) == (ErrorCode.NONE, -1)
    assert isinstance(driver.machine, ClassicMachine)
    group = driver.machine.group
    assert group.state is State.PREPARING, "its members must join again"
    assert group.members.by_id.keys() == {"old1", "old2"}
    last = dict(driver.log)
    value = last.pop(group_key("team"))
    assert value is not None
    assert (read_group(value).generation, len(read_group(value).members)) == (8, 2)
    assert all(value is None for value in last.values()), "the consumer group is deleted from the log"


def test_the_group_becomes_classic_when_the_session_of_its_last_new_member_ends() -> None:
    driver = _upgraded("old")
    driver.join("new")
    for _ in range(9):
        driver.pass_time(5_000)
        if isinstance(driver.machine, ConsumerMachine):
            driver.classic_beat("old", driver.member("old").epoch)
    assert isinstance(driver.machine, ClassicMachine)


def test_a_static_member_that_returns_with_the_classic_protocol_downgrades_without_a_rebalance() -> None:
    driver = Driver()
    driver.join("a1", instance_id="a")
    joined = driver.classic_join("", instance_id="a", new_member_id="a2")
    assert (joined.error, joined.member_id, joined.generation) == (ErrorCode.NONE, "a2", 1)
    machine = driver.machine
    assert isinstance(machine, ClassicMachine)
    assert machine.group.state is State.STABLE
    assert len(read_assignment(machine.group.members.by_id["a2"].assignment)) == 4


def test_without_the_policy_the_group_stays_a_consumer_group() -> None:
    driver = _upgraded("old")
    driver.machine.settings = EVERY_CHANGE._replace(migration_policy=MigrationPolicy.UPGRADE)
    driver.join("new")
    driver.leave("new")
    assert isinstance(driver.machine, ConsumerMachine)
    assert driver.group.members.keys() == {"old"}


def test_the_last_member_of_all_leaves_an_empty_consumer_group() -> None:
    driver = Driver()
    driver.join("new")
    driver.leave("new")
    assert isinstance(driver.machine, ConsumerMachine)
    assert driver.group.state is GroupState.EMPTY


def test_a_pending_write_is_no_obstacle_to_a_downgrade() -> None:
    driver = _upgraded("old")
    driver.join("new")
    driver.manual = True
    ticket = driver.feed(driver.heartbeat("new", 8, topics=["app"]))
    leaving = driver.feed(driver.heartbeat("new", -1))
    assert isinstance(driver.machine, ClassicMachine)
    assert len(driver.waiting) == 2
    driver.stored()
    assert ticket in driver.answers
    driver.stored()
    assert driver.answers[leaving].error is ErrorCode.NONE
    last = dict(driver.log)
    assert [key for key, value in last.items() if value is not None] == [group_key("team")]
