"""What the coordinator refuses before any group is asked, and what a slow or failing log means for a group."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from ottla.core.errors import (
    ErrorCode,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    MessageTooLarge,
    NonEmptyGroup,
    NotCoordinator,
    StorageError,
)
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups import records
from ottla.groups import shard as shard_module
from ottla.groups.classic.events import Heartbeat, Leave, Leaver, State, Sync
from ottla.groups.classic.records import group_key
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator, Joining
from ottla.groups.machine import Commit
from ottla.groups.offsets import CommittedOffset
from ottla.groups.shard import OFFSETS_AT_ONCE, STARTED_AT_ONCE, GroupShard
from ottla.internal_topics.coordinator_partition import LOADED_AT_ONCE
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, ProducerIdentity
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.testing.sim_loop import SimClock
from tests.support.async_tests import setup_of
from tests.support.group_driver import subscription
from tests.support.topic_logs import MemoryTopicLog

pytestmark = pytest.mark.simulated_time

WEB = TopicPartition("web", 0)
ALONE = Commit(member_id="", generation=-1)


class Log(MemoryTopicLog):
    """An internal topic whose appends wait until the test releases them."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.appends = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        self.appends += 1
        await self.hold.wait()
        return await super().append(partition, records, producer, leader_epoch=leader_epoch)


def member(**more: Any) -> Joining:
    given: dict[str, Any] = {
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": (("range", subscription("web")),),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "instance_id": None,
        "client_id": "c",
        "client_host": "/127.0.0.1",
        "requires_member_id": False,
        "may_skip_assignment": False,
        **more,
    }
    return Joining(**given)


Scenario = Callable[[GroupCoordinator, Log], Awaitable[None]]


@pytest.fixture
async def log(request: pytest.FixtureRequest) -> Log:
    return Log(setup_of(request).get("partitions", 1))


@pytest.fixture
async def coordinator(request: pytest.FixtureRequest, log: Log) -> AsyncIterator[GroupCoordinator]:
    config = setup_of(request).get("config", GroupConfig())
    coordinator = GroupCoordinator(config, clock=SimClock(), log=log, node_id=1)
    coordinator.start()
    if log.partitions:
        coordinator.led.lead(0)
    await coordinator.led.wait_until_loaded()
    yield coordinator
    log.hold.set()
    await coordinator.close()


async def stable(coordinator: GroupCoordinator, group_id: str = "team", **more: Any) -> str:
    joined = await coordinator.join(group_id, member(**more))
    sync = Sync(member_id=joined.member_id, generation=joined.generation, assignments={joined.member_id: b"all"})
    assert (await coordinator.sync(group_id, sync)).assignment == b"all"
    return joined.member_id


async def test_members_need_a_group_with_a_name(coordinator: GroupCoordinator) -> None:
    with pytest.raises(InvalidGroupId):
        await coordinator.join("", member())
    with pytest.raises(InvalidGroupId):
        await coordinator.heartbeat("", Heartbeat(member_id="m", generation=1))
    await coordinator.commit("", ALONE, {WEB: CommittedOffset(1)})  # offsets never needed one


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
async def test_a_session_outside_the_limits_is_refused(coordinator: GroupCoordinator, session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeout):
        await coordinator.join("team", member(session_timeout_ms=session_ms))


@pytest.mark.setup(partitions=0)
async def test_before_the_topic_exists_there_is_no_coordinator(coordinator: GroupCoordinator) -> None:
    with pytest.raises(NotCoordinator):
        await coordinator.join("team", member())
    assert coordinator.list_groups() == []


@pytest.mark.setup(partitions=1)
async def test_groups_of_a_partition_on_a_lost_disk_have_no_coordinator_until_it_returns(
    coordinator: GroupCoordinator, log: Log
) -> None:
    led = tuple(PartitionView(index, 1, 0, (1,), (1,), 0) for index in range(1))
    view = ClusterView().with_topics({OFFSETS_TOPIC: TopicView(OFFSETS_TOPIC, uuid.UUID(int=1), led, {}, 0, 0)})

    coordinator.follow(ClusterView(), view)
    await coordinator.led.wait_until_loaded()
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(7)})
    log.offline = {0}
    coordinator.led.resign(0)  # as the broker does when it hears of it
    assert coordinator.led.is_offline(0)
    coordinator.led.lead_again(0)  # too early
    with pytest.raises(NotCoordinator):
        coordinator.fetch("team")
    log.offline = set()
    coordinator.led.lead_again(0)
    await coordinator.led.wait_until_loaded()
    assert dict(coordinator.fetch("team").items()) == {WEB: CommittedOffset(7)}


async def test_an_unknown_group_has_no_members_and_is_not_created_by_a_question(coordinator: GroupCoordinator) -> None:
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert (await coordinator.join("team", member(member_id="m"))).error is unknown
    assert (await coordinator.sync("team", Sync(member_id="m", generation=1))).error is unknown
    assert await coordinator.heartbeat("team", Heartbeat(member_id="m", generation=1)) is unknown
    assert (await coordinator.leave("team", Leave((Leaver(member_id="m"),)))).errors == (unknown,)
    with pytest.raises(GroupIdNotFound):
        await coordinator.commit("team", Commit(member_id="m", generation=1, api_version=9), {WEB: CommittedOffset(1)})
    assert (await coordinator.join("team", member(protocols=()))).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.list_groups() == []
    assert dict(coordinator.fetch("team").items()) == {}


async def test_too_long_a_text_beside_an_offset_fails_that_offset_alone(coordinator: GroupCoordinator) -> None:
    other = TopicPartition("web", 1)
    outcome = await coordinator.commit(
        "team", ALONE, {WEB: CommittedOffset(1, metadata="x" * 4097), other: CommittedOffset(2, metadata="x" * 4096)}
    )
    assert outcome == {WEB: ErrorCode.OFFSET_METADATA_TOO_LARGE, other: ErrorCode.NONE}
    assert set(coordinator.fetch("team")) == {other}


async def test_offsets_of_a_group_whose_subscriptions_cannot_be_read_are_not_deleted(
    coordinator: GroupCoordinator,
) -> None:
    await stable(coordinator, "workers", protocol_type="connect")
    with pytest.raises(NonEmptyGroup):
        await coordinator.delete_offsets("workers", [WEB])


async def test_offsets_that_a_member_subscribes_to_are_not_deleted(coordinator: GroupCoordinator) -> None:
    name, other = await stable(coordinator), TopicPartition("other", 0)
    await coordinator.commit(
        "team", Commit(member_id=name, generation=1), {WEB: CommittedOffset(1), other: CommittedOffset(2)}
    )
    outcome = await coordinator.delete_offsets("team", [WEB, other])
    assert outcome == {WEB: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, other: ErrorCode.NONE}
    assert set(coordinator.fetch("team")) == {WEB}


async def test_deletion_leaves_nothing_of_a_group_in_the_log(coordinator: GroupCoordinator, log: Log) -> None:
    name = await stable(coordinator)
    await coordinator.commit("team", Commit(member_id=name, generation=1), {WEB: CommittedOffset(1)})
    with pytest.raises(NonEmptyGroup):
        await coordinator.delete("team")
    await coordinator.leave("team", Leave((Leaver(member_id=name),)))
    await coordinator.delete("team")
    assert set(dict(log.records()).values()) == {None}
    assert dict(log.records()).keys() == {group_key("team"), records.offset_key("team", WEB)}


async def test_a_deletion_that_could_not_be_written_did_not_happen(coordinator: GroupCoordinator, log: Log) -> None:
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(1)})
    log.failing = StorageError()
    with pytest.raises(NotCoordinator):
        await coordinator.delete("team")
    log.failing = None
    assert coordinator.describe("team").state is State.EMPTY
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(2)})
    assert dict(coordinator.fetch("team").items())[WEB].offset == 2


async def test_a_group_under_deletion_admits_no_member(coordinator: GroupCoordinator, log: Log) -> None:
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(1)})
    log.hold.clear()
    deleting = asyncio.create_task(coordinator.delete("team"))
    await asyncio.sleep(0.1)
    with pytest.raises(GroupIdNotFound):
        coordinator.describe("team")
    assert (await coordinator.join("team", member())).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    log.hold.set()
    await deleting
    assert coordinator.list_groups() == []


async def test_an_assignment_that_is_not_durable_in_time_is_an_error_and_its_late_arrival_changes_nothing(
    coordinator: GroupCoordinator, log: Log
) -> None:
    joined = await coordinator.join("team", member())
    log.hold.clear()
    sync = Sync(member_id=joined.member_id, generation=1, assignments={joined.member_id: b"all"})
    assert (await coordinator.sync("team", sync)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    log.hold.set()
    await asyncio.sleep(0.1)
    assert coordinator.describe("team").state is State.PREPARING


async def test_a_commit_too_large_for_the_log_is_an_error_of_the_server_as_in_kafka(
    coordinator: GroupCoordinator, log: Log
) -> None:
    log.failing = MessageTooLarge()
    with pytest.raises(KafkaError) as failure:
        await coordinator.commit("team", ALONE, {WEB: CommittedOffset(1)})
    assert failure.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_commits_that_wait_for_the_disk_go_together(coordinator: GroupCoordinator, log: Log) -> None:
    log.hold.clear()
    commits = [
        asyncio.create_task(coordinator.commit(f"group-{index}", ALONE, {WEB: CommittedOffset(index)}))
        for index in range(100)
    ]
    await asyncio.sleep(0.1)
    log.hold.set()
    await asyncio.gather(*commits)
    assert log.appends <= 2
    assert [dict(coordinator.fetch(f"group-{index}").items())[WEB].offset for index in range(100)] == list(range(100))


@pytest.mark.simulated_time
async def test_corrupt_and_foreign_records_do_not_stop_the_loading() -> None:
    log = Log()
    stored: list[KeyValue] = [
        (b"\0\1\0", b"torn"),
        (b"\0\3\0\4team", b"of KIP-848"),
        (records.offset_key("team", WEB), records.offset_value(CommittedOffset(7))),
    ]
    log.put(0, stored)
    coordinator = GroupCoordinator(GroupConfig(), clock=SimClock(), log=log, node_id=1)
    coordinator.led.lead(0)
    await coordinator.led.wait_until_loaded()
    assert dict(coordinator.fetch("team").items())[WEB].offset == 7
    await coordinator.close()


async def test_a_group_whose_only_member_hung_up_is_forgotten(coordinator: GroupCoordinator) -> None:
    waiting = asyncio.create_task(coordinator.join("team", member()))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(60)
    assert coordinator.describe("team").state is State.EMPTY
    await asyncio.sleep(3600)
    assert coordinator.list_groups() == []


# ---- Offsets in transactions

OTHER = TopicPartition("web", 1)
PRODUCER = ProducerIdentity(7, 0)
IN_TRANSACTION = Commit(member_id="", generation=-1, is_transactional=True)


def committed(coordinator: GroupCoordinator, group_id: str = "team") -> dict[TopicPartition, int]:
    return {where: found.offset for where, found in coordinator.fetch(group_id).items()}


async def end(coordinator: GroupCoordinator, log: Log, producer: ProducerIdentity, *, commit: bool) -> None:
    coordinator.marker_appended(0, log.end_transaction(0, producer, commits=commit))
    await coordinator.complete_transaction(0, producer.producer_id, commit=commit)


async def reload(coordinator: GroupCoordinator, partitions: int = 1) -> None:
    for partition in range(partitions):
        coordinator.led.resign(partition)
    await asyncio.sleep(0)
    for partition in range(partitions):
        coordinator.led.lead(partition)
    await coordinator.led.wait_until_loaded()


@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_offsets_of_a_transaction_become_visible_with_its_marker(
    coordinator: GroupCoordinator, log: Log, *, commit: bool, reloaded: bool
) -> None:
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(1)})
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5)}, PRODUCER)
    assert committed(coordinator) == {WEB: 1}
    assert coordinator.fetch("team").in_transactions() == {WEB}
    if reloaded:
        await reload(coordinator)
        assert committed(coordinator) == {WEB: 1}
        assert coordinator.fetch("team").in_transactions() == {WEB}
    await end(coordinator, log, PRODUCER, commit=commit)
    expected = {WEB: 5 if commit else 1}
    assert committed(coordinator) == expected
    assert coordinator.fetch("team").in_transactions() == set()
    await reload(coordinator)
    assert committed(coordinator) == expected


async def test_of_a_commit_and_an_older_one_in_a_transaction_the_later_in_the_log_wins(
    coordinator: GroupCoordinator, log: Log
) -> None:
    offsets = {WEB: CommittedOffset(5), OTHER: CommittedOffset(5)}
    await coordinator.commit("team", IN_TRANSACTION, offsets, PRODUCER)
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(9)})
    await end(coordinator, log, PRODUCER, commit=True)
    assert committed(coordinator) == {WEB: 9, OTHER: 5}
    await reload(coordinator)
    assert committed(coordinator) == {WEB: 9, OTHER: 5}


async def test_transactions_of_two_producers_end_apart(coordinator: GroupCoordinator, log: Log) -> None:
    second = ProducerIdentity(8, 0)
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5)}, PRODUCER)
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(6)}, second)
    await end(coordinator, log, second, commit=True)
    assert committed(coordinator) == {WEB: 6}
    assert coordinator.fetch("team").in_transactions() == {WEB}
    await end(coordinator, log, PRODUCER, commit=True)
    assert committed(coordinator) == {WEB: 6}


async def test_a_marker_waits_for_the_results_of_the_writes_before_it(coordinator: GroupCoordinator, log: Log) -> None:
    log.hold.clear()
    commit = asyncio.create_task(coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5)}, PRODUCER))
    await asyncio.sleep(0.01)
    marker = asyncio.create_task(coordinator.complete_transaction(0, PRODUCER.producer_id, commit=True))
    await asyncio.sleep(0.01)
    assert not marker.done()
    log.hold.set()
    await marker
    assert committed(coordinator) == {WEB: 5}
    await commit


async def test_a_deleted_offset_does_not_return_with_the_transaction(coordinator: GroupCoordinator, log: Log) -> None:
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5), OTHER: CommittedOffset(6)}, PRODUCER)
    assert await coordinator.delete_offsets("team", [WEB]) == {WEB: ErrorCode.NONE}
    await reload(coordinator)
    await end(coordinator, log, PRODUCER, commit=True)
    assert committed(coordinator) == {OTHER: 6}


async def test_a_deleted_group_does_not_return_with_the_transaction(coordinator: GroupCoordinator, log: Log) -> None:
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5)}, PRODUCER)
    await coordinator.delete("team")
    await end(coordinator, log, PRODUCER, commit=True)
    assert coordinator.list_groups() == []
    await reload(coordinator)
    assert coordinator.list_groups() == []


async def test_a_group_with_an_open_transaction_does_not_expire(coordinator: GroupCoordinator, log: Log) -> None:
    await coordinator.commit("team", ALONE, {WEB: CommittedOffset(1), OTHER: CommittedOffset(1)})
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5)}, PRODUCER)
    await asyncio.sleep(8 * 24 * 3600)
    await coordinator.expire()
    assert committed(coordinator) == {WEB: 1}
    await end(coordinator, log, PRODUCER, commit=False)
    await coordinator.expire()
    assert coordinator.list_groups() == []


async def test_an_aborted_first_commit_leaves_no_group(coordinator: GroupCoordinator, log: Log) -> None:
    await coordinator.commit("team", IN_TRANSACTION, {WEB: CommittedOffset(5)}, PRODUCER)
    assert len(coordinator.list_groups()) == 1
    await end(coordinator, log, PRODUCER, commit=False)
    assert coordinator.list_groups() == []


async def test_a_producer_of_a_member_is_checked_and_one_without_is_not(coordinator: GroupCoordinator) -> None:
    name = await stable(coordinator)
    offsets = {WEB: CommittedOffset(5)}
    for member_id, generation, expected in [
        ("", -1, ErrorCode.NONE),
        (name, 1, ErrorCode.NONE),
        (name, 0, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        commit = Commit(member_id=member_id, generation=generation, is_transactional=True)
        try:
            await coordinator.commit("team", commit, offsets, PRODUCER)
            error = ErrorCode.NONE
        except KafkaError as refusal:
            error = refusal.code
        assert error is expected, (member_id, generation)


async def test_a_reader_of_stable_offsets_waits_for_commits_that_are_being_written(
    coordinator: GroupCoordinator, log: Log
) -> None:
    log.hold.clear()
    commit = asyncio.create_task(coordinator.commit("team", ALONE, {WEB: CommittedOffset(5)}))
    await asyncio.sleep(0.01)
    reader = asyncio.create_task(coordinator.wait_until_written("team"))
    await asyncio.sleep(0.01)
    assert not reader.done()
    log.hold.set()
    await reader
    assert committed(coordinator) == {WEB: 5}
    await commit


@pytest.mark.parametrize(
    "partitions", [pytest.param(count, marks=pytest.mark.setup(partitions=count)) for count in (1, 8)]
)
async def test_many_groups_are_loaded_compared_and_expired_in_slices(
    coordinator: GroupCoordinator, log: Log, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    groups, each = 400, 10
    in_turn: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counted(what: str, owner: Any, name: str, size: Callable[..., int]) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            in_turn[what] += size(*args)
            most[what] = max(most[what], in_turn[what])
            return original(*args, **more)

        monkeypatch.setattr(owner, name, call)

    for what, name in (("groups started", "_start"), ("offsets compared", "_is_of_present_topic")):
        counted(what, GroupShard, name, lambda shard, *_: shard._partition.is_open)  # not a replica's
    applied: Callable[..., int] = lambda shard, runtime, change, *_: len(change) * shard._partition.is_open  # noqa: E731
    counted("records applied", GroupShard, "apply_offsets", applied)
    counted("offsets examined", shard_module, "expired", lambda offsets, *_: len(offsets))

    for number in range(groups):
        change = {TopicPartition("web", index): CommittedOffset(1, topic_id=uuid.UUID(int=1)) for index in range(each)}
        group = f"group-{number}"
        log.put(partition_of(group, partitions), records.offset_pairs(group, change))

    async def turns() -> None:
        while True:
            in_turn.clear()
            await asyncio.sleep(0)

    ticker = asyncio.ensure_future(turns())
    coordinator._cluster._view = ClusterView(unreadable_topics=frozenset({"web"}))
    log.has_lied = True  # it has what memory has not
    await reload(coordinator, partitions)
    log.has_lied = False
    assert len(coordinator.list_groups()) == groups
    for _ in range(100):  # meanwhile the offsets are compared with the topics
        await asyncio.sleep(0)
    await coordinator.expire()
    ticker.cancel()
    assert coordinator.list_groups() == []
    assert most.keys() == {"records applied", "groups started", "offsets compared", "offsets examined"}
    # Between two turns of the task that counts may be two slices.
    assert most["records applied"] <= 2 * (LOADED_AT_ONCE + each)
    assert most["groups started"] <= 2 * STARTED_AT_ONCE
    assert most["offsets compared"] <= 2 * (OFFSETS_AT_ONCE + each)
    assert most["offsets examined"] <= 2 * (OFFSETS_AT_ONCE + each)
