"""Conversion of groups between the classic and the new protocol through the coordinator, and its log (KIP-848)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.core.errors import ErrorCode, GroupIdNotFound, IllegalGeneration, KafkaError, StorageError
from ottla.core.ids import GroupType
from ottla.groups.classic.events import Heartbeat, Sync
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.config import GroupConfig
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.consumer.records import is_consumer_group
from ottla.groups.coordinator import CHANGED_AT_ONCE, GroupCoordinator
from ottla.groups.machine import Commit
from ottla.groups.modern.events import HeartbeatAnswer
from ottla.groups.offsets import CommittedOffset
from tests.support.consumer_group_driver import view
from tests.unit.groups.test_coordinator import WEB, Log, coordinator, log, member, reload

__all__ = ["coordinator", "log"]

pytestmark = [
    pytest.mark.simulated_time,
    pytest.mark.setup(config=GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)),
]

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)


async def beat(coordinator: GroupCoordinator, epoch: int, **fields: Any) -> HeartbeatAnswer:
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 60_000, "topics": frozenset({"web"}), "owned": {}} | fields
    return await coordinator.member_heartbeat("team", MemberHeartbeat(member_id="new", member_epoch=epoch, **fields))


async def classic_member(coordinator: GroupCoordinator) -> str:
    joined = await coordinator.join("team", member())
    synced = await coordinator.sync("team", Sync(member_id=joined.member_id, generation=joined.generation))
    assert (joined.error, synced.error) == (ErrorCode.NONE, ErrorCode.NONE)
    return joined.member_id


def kind(coordinator: GroupCoordinator) -> list[GroupType]:
    return [runtime.group.summary.type for runtime in coordinator.list_groups()]


def follow(coordinator: GroupCoordinator) -> None:
    coordinator._cluster.follow(view({"web": 4}))


async def test_a_group_with_members_is_converted_and_back_and_its_offsets_stay(coordinator: GroupCoordinator) -> None:
    follow(coordinator)
    await coordinator.commit("team", Commit(member_id="", generation=-1), {WEB: CommittedOffset(7)})
    old = await classic_member(coordinator)
    joined = await beat(coordinator, 0)
    assert (joined.error, kind(coordinator)) == (ErrorCode.NONE, [GroupType.CONSUMER])
    assert await coordinator.heartbeat("team", Heartbeat(member_id=old, generation=1)) is (
        ErrorCode.REBALANCE_IN_PROGRESS
    )
    await reload(coordinator)
    assert kind(coordinator) == [GroupType.CONSUMER]
    assert (await beat(coordinator, -1)).error is ErrorCode.NONE
    assert kind(coordinator) == [GroupType.CLASSIC]
    await reload(coordinator)
    described = coordinator.describe("team")
    assert isinstance(described, ClassicGroup)
    assert described.members.by_id.keys() == {old}
    found = coordinator.fetch("team").get(WEB)
    assert found is not None
    assert found.offset == 7


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_records_of_a_conversion_that_could_not_be_written_are_written_with_the_next_ones(
    coordinator: GroupCoordinator, log: Log, failures: int
) -> None:
    follow(coordinator)
    old = await classic_member(coordinator)
    await beat(coordinator, 0)
    log.failing = StorageError()
    assert (await beat(coordinator, -1)).error is ErrorCode.NOT_COORDINATOR
    assert kind(coordinator) == [GroupType.CLASSIC]
    for _ in range(failures - 1):
        joined = await coordinator.join("team", member(member_id=old))
        failed = await coordinator.sync("team", Sync(member_id=old, generation=joined.generation))
        assert failed.error is ErrorCode.NOT_COORDINATOR
    log.failing = None
    joined = await coordinator.join("team", member(member_id=old))
    synced = await coordinator.sync("team", Sync(member_id=old, generation=joined.generation))
    assert synced.error is ErrorCode.NONE
    await reload(coordinator)
    assert kind(coordinator) == [GroupType.CLASSIC]
    assert all(value is None for key, value in dict(log.records()).items() if is_consumer_group(key))


async def test_an_empty_group_changes_its_type_with_its_next_member(coordinator: GroupCoordinator) -> None:
    follow(coordinator)
    assert (await beat(coordinator, 0)).error is ErrorCode.NONE
    assert (await beat(coordinator, -1)).error is ErrorCode.NONE
    await classic_member(coordinator)
    assert kind(coordinator) == [GroupType.CLASSIC]
    await reload(coordinator)
    assert kind(coordinator) == [GroupType.CLASSIC]


async def test_a_heartbeat_to_an_unknown_or_a_classic_group_is_refused(coordinator: GroupCoordinator) -> None:
    follow(coordinator)
    with pytest.raises(GroupIdNotFound, match="Consumer group team not found"):
        await beat(coordinator, 3)
    await classic_member(coordinator)
    with pytest.raises(GroupIdNotFound, match="Group team is not a consumer group"):
        await beat(coordinator, 3)
    with pytest.raises(KafkaError):
        coordinator.describe_consumer("team")


async def test_a_regular_expression_is_resolved_in_a_thread_and_followed(coordinator: GroupCoordinator) -> None:
    follow(coordinator)
    answer = await beat(coordinator, 0, topics=None, regex="w.b")
    while not answer.assignment:
        await asyncio.sleep(0.01)
        answer = await beat(coordinator, answer.member_epoch)
    invalid = await beat(coordinator, 0, topics=None, regex="(")
    assert invalid.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    unsupported = await beat(coordinator, 0, assignor="sticky")
    assert unsupported.error is ErrorCode.UNSUPPORTED_ASSIGNOR


async def test_a_client_that_was_only_given_a_member_id_of_a_classic_group_does_not_prevent_its_conversion(
    coordinator: GroupCoordinator,
) -> None:
    follow(coordinator)
    given = await coordinator.join("team", member(requires_member_id=True))
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED
    assert (await beat(coordinator, 0)).error is ErrorCode.NONE
    assert kind(coordinator) == [GroupType.CONSUMER]


async def test_the_id_given_to_a_classic_member_of_a_consumer_group_is_one_as_members_choose_it(
    coordinator: GroupCoordinator,
) -> None:
    follow(coordinator)
    classic = await coordinator.join("other", member(requires_member_id=True))
    assert classic.member_id.startswith(member().client_id + "-")
    await beat(coordinator, 0)
    given = await coordinator.join("team", member(requires_member_id=True))
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED
    assert len(given.member_id) <= 36
    assert not given.member_id.startswith(member().client_id + "-")


async def test_a_share_group_has_no_offsets_to_fetch_and_takes_no_commit_in_any_version(
    coordinator: GroupCoordinator,
) -> None:
    follow(coordinator)
    shard = coordinator.led.shard_of("team")
    for version in (2, 8, 9):
        shard.find_or_create_share("team", may_create=True)  # unused, it is removed after each refusal
        assert not coordinator.fetch("team")
        with pytest.raises(GroupIdNotFound):
            await coordinator.commit(
                "team", Commit(member_id="m", generation=1, api_version=version), {WEB: CommittedOffset(7)}
            )
    with pytest.raises(IllegalGeneration):
        await coordinator.commit(
            "unknown", Commit(member_id="m", generation=1, api_version=8), {WEB: CommittedOffset(7)}
        )
    with pytest.raises(GroupIdNotFound):
        await coordinator.commit(
            "unknown", Commit(member_id="m", generation=1, api_version=9), {WEB: CommittedOffset(7)}
        )
    shard.find_or_create_share("team", may_create=True)
    joined = await coordinator.join("team", member(member_id="chosen"))
    assert (joined.error, joined.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")


async def test_a_change_of_the_cluster_reaches_many_groups_in_slices(coordinator: GroupCoordinator) -> None:
    first, then = view({"web": 4}), view({"web": 5})
    coordinator.follow(first, first)
    groups = 2 * CHANGED_AT_ONCE + 1
    for number in range(groups):
        join = MemberHeartbeat(
            member_id="new", member_epoch=0, rebalance_timeout_ms=60_000, topics=frozenset({"web"}), owned={}
        )
        await coordinator.member_heartbeat(f"team-{number}", join)

    def reached() -> int:
        machines = [runtime.machine for runtime in coordinator.list_groups()]
        return sum(machine.topics is coordinator._cluster.topics for machine in machines)  # type: ignore[attr-defined]

    coordinator.follow(first, then)
    assert reached() == CHANGED_AT_ONCE
    while reached() < groups:
        before = reached()
        await asyncio.sleep(0)
        assert reached() <= before + CHANGED_AT_ONCE
