"""What the group APIs' handlers add to the coordinator: names and ids of topics, and what each version can say."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from ottla.broker.config import read
from ottla.broker.coordinators import Coordinators
from ottla.broker.delayed_operations import DelayedOperations
from ottla.broker.record_validation_queue import RecordValidationQueue
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.broker.sessions.fetch_sessions import FetchSessions
from ottla.core.errors import ErrorCode, StorageError
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.share_group_coordinator import ShareGroupCoordinator
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.znodes import Endpoint
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.testing.requests import answer_to, connection_without_socket, request_to
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_loop import SimClock
from ottla.wire.generated import delete_groups as dg
from ottla.wire.generated import describe_groups as desc
from ottla.wire.generated import find_coordinator as fc
from ottla.wire.generated import heartbeat as hb
from ottla.wire.generated import join_group as jg
from ottla.wire.generated import leave_group as lg
from ottla.wire.generated import list_groups as ls
from ottla.wire.generated import offset_commit as oc
from ottla.wire.generated import offset_delete as od
from ottla.wire.generated import offset_fetch as of
from ottla.wire.generated import sync_group as sg
from tests.support.group_driver import subscription
from tests.support.storage import StillClock, open_directories
from tests.support.topic_logs import MemoryTopicLog

pytestmark = pytest.mark.simulated_time

NOTHING = cast("Any", None)
WEB_ID, OFFSETS_ID = uuid.UUID(int=7), uuid.UUID(int=8)


def topic(name: str, topic_id: uuid.UUID, partitions: int) -> TopicView:
    return TopicView(name, topic_id, tuple(PartitionView(i, 1, 0, (1,), (1,), 0) for i in range(partitions)), {}, 0, 0)


class Broker:
    """One broker's group APIs: the coordinator is real, the view of the cluster is fixed."""

    def __init__(self) -> None:
        self.cluster = MetadataCache(cast("Any", None))
        self.replicas = Replicas(open_directories(SimDisk()), node_id=1, defaults=LogConfig(), clock=StillClock())
        self.clock = SimClock()
        self.log = MemoryTopicLog()
        self.groups = GroupCoordinator(GroupConfig(), clock=self.clock, log=self.log, node_id=1)
        self.coordinators = Coordinators(
            read(file=None, environment={}, options={})[0],
            cluster=self.cluster,
            replicas=self.replicas,
            producer_ids=NOTHING,
            clock=self.clock,
            create_topic=NOTHING,
            create_named_topic=NOTHING,
            current_config=NOTHING,
            connect_to=NOTHING,
        )
        self.coordinators.groups = self.groups
        self.coordinators.share_groups = ShareGroupCoordinator(self.groups.led, NOTHING)
        view = ClusterView(brokers={1: BrokerInfo(1, {"PLAIN": Endpoint("host", 9092)}, None, 0, {})})
        self.show(
            view.with_topics(
                {"web": topic("web", WEB_ID, 2), "__consumer_offsets": topic("__consumer_offsets", OFFSETS_ID, 1)}
            )
        )

    def show(self, view: ClusterView) -> None:
        old, self.cluster.current = self.cluster.current, view
        self.groups.follow(old, view)

    def at(self, version: int) -> Request:
        services = Services(
            node_id=1,
            config=NOTHING,
            clock=self.clock,
            cluster=self.cluster,
            controller=NOTHING,
            controller_channel=NOTHING,
            nodes=NOTHING,
            replicas=self.replicas,
            coordinators=self.coordinators,
            producer_ids=NOTHING,
            fetch_sessions=FetchSessions(slots=1, rng=random.Random(1)),
            record_validation=RecordValidationQueue(self.clock, NOTHING, NOTHING),
            delayed_operations=DelayedOperations(),
        )
        return request_to(
            services, version, connection=connection_without_socket(host="10.0.0.1", listener="PLAIN"), client_id="c"
        )

    async def commit(self, *, version: int = 9, group: str = "team", **more: Any) -> list[int]:
        partitions = [oc.OffsetCommitRequestPartition(partition_index=i, committed_offset=5) for i in (0, 9)]
        asked = oc.OffsetCommitRequestTopic(**{"name": "web", "partitions": partitions, **more.pop("topic", {})})
        request = oc.OffsetCommitRequest(group_id=group, topics=[asked], **more)
        answer = await answer_to(self.at(version), "offset_commit", request)
        return [each.error_code for each in answer.topics[0].partitions]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.groups.led.wait_until_loaded()
    yield broker
    await broker.groups.close()


async def test_offsets_are_committed_by_name_or_by_id_and_unknown_topics_fail_alone(broker: Broker) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await broker.commit() == [0, unknown]
    assert await broker.commit(topic={"name": "other"}) == [unknown, unknown]
    assert await broker.commit(version=10, topic={"name": "", "topic_id": WEB_ID}) == [0, unknown]
    by_id = ErrorCode.UNKNOWN_TOPIC_ID
    assert await broker.commit(version=10, topic={"topic_id": uuid.UUID(int=1)}) == [by_id, by_id]


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
async def test_a_member_of_an_unknown_group_is_refused_as_its_version_knows_it(
    broker: Broker, version: int, error: ErrorCode
) -> None:
    assert (await broker.commit(version=version, generation_id_or_member_epoch=3, member_id="m"))[0] == error


async def fetched(broker: Broker, version: int, topics: list[Any] | None, group: str = "team") -> list[Any]:
    if version >= 8:
        asked = [of.OffsetFetchRequestGroup(group_id=group, topics=topics)]
        (one,) = (await answer_to(broker.at(version), "offset_fetch", of.OffsetFetchRequest(groups=asked))).groups
        return list(one.topics)
    answer = await answer_to(broker.at(version), "offset_fetch", of.OffsetFetchRequest(group_id=group, topics=topics))
    return list(answer.topics)


@pytest.mark.parametrize("version", range(1, 11))
async def test_offsets_are_fetched_in_every_version(broker: Broker, version: int) -> None:
    await broker.commit()
    named = {"topic_id": WEB_ID} if version >= 10 else {"name": "web"}
    kind: Any = of.OffsetFetchRequestTopics if version >= 8 else of.OffsetFetchRequestTopic
    (found,) = await fetched(broker, version, [kind(**named, partition_indexes=[0, 1])])
    assert [(each.partition_index, each.committed_offset) for each in found.partitions] == [(0, 5), (1, -1)]
    if version >= 2:
        (found,) = await fetched(broker, version, None)
        assert [(each.partition_index, each.committed_offset) for each in found.partitions] == [(0, 5)]
        assert await fetched(broker, version, None, "unknown") == []
    if version >= 10:
        (found,) = await fetched(broker, version, [kind(topic_id=uuid.UUID(int=1), partition_indexes=[0])])
        assert found.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [1, 2, 8])
async def test_while_groups_are_loading_the_error_is_in_the_field_of_the_version(broker: Broker, version: int) -> None:
    broker.groups.led.resign(0)
    kind: Any = of.OffsetFetchRequestTopics if version >= 8 else of.OffsetFetchRequestTopic
    topics = [kind(name="web", partition_indexes=[0])]
    request = of.OffsetFetchRequest(group_id="team", topics=topics)
    if version >= 8:
        request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id="team", topics=topics)])
    answer = await answer_to(broker.at(version), "offset_fetch", request)
    away = ErrorCode.NOT_COORDINATOR
    if version == 1:
        assert answer.topics[0].partitions[0].error_code == away
    else:
        assert (answer.groups[0] if version == 8 else answer).error_code == away


async def test_an_offset_does_not_meet_a_new_topic_of_the_same_name(broker: Broker) -> None:
    await broker.commit()
    view = broker.cluster.current
    broker.log.failing = StorageError()  # the tombstones cannot be written, as after a crash
    broker.show(view.with_topics({"web": None}))
    broker.show(view.with_topics({"web": topic("web", uuid.UUID(int=99), 2)}))
    await asyncio.sleep(1)
    (found,) = await fetched(broker, 9, [of.OffsetFetchRequestTopics(name="web", partition_indexes=[0])])
    assert found.partitions[0].committed_offset == -1


async def test_the_offsets_of_a_deleted_topic_go_away(broker: Broker) -> None:
    await broker.commit()
    broker.show(broker.cluster.current.with_topics({"web": None}))
    await asyncio.sleep(1)
    assert await fetched(broker, 9, None) == []


def join_request(**more: Any) -> jg.JoinGroupRequest:
    protocol = jg.JoinGroupRequestProtocol(name="range", metadata=subscription("web"))
    return jg.JoinGroupRequest(
        **{
            "group_id": "team",
            "protocol_type": "consumer",
            "protocols": [protocol],
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            **more,
        }
    )


async def one_member(broker: Broker) -> jg.JoinGroupResponse:
    joined: jg.JoinGroupResponse = await answer_to(broker.at(3), "join_group", join_request())
    given = sg.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    request = sg.SyncGroupRequest(
        group_id="team", member_id=joined.member_id, generation_id=joined.generation_id, assignments=[given]
    )
    assert (await answer_to(broker.at(3), "sync_group", request)).assignment == b"all"
    return joined


async def test_a_member_joins_syncs_beats_and_leaves_in_old_versions(broker: Broker) -> None:
    joined = await one_member(broker)
    beat = hb.HeartbeatRequest(group_id="team", member_id=joined.member_id, generation_id=1)
    assert (await answer_to(broker.at(0), "heartbeat", beat)).error_code == 0
    leave = lg.LeaveGroupRequest(group_id="team", member_id=joined.member_id)
    assert (await answer_to(broker.at(1), "leave_group", leave)).error_code == 0
    assert (await answer_to(broker.at(1), "leave_group", leave)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("version", "protocol_name"), [(6, ""), (7, None)])
async def test_an_answer_without_a_protocol_says_so_as_its_version_can(
    broker: Broker, version: int, protocol_name: str | None
) -> None:
    answer = await answer_to(broker.at(version), "join_group", join_request(session_timeout_ms=1))
    assert (answer.error_code, answer.protocol_name) == (ErrorCode.INVALID_SESSION_TIMEOUT, protocol_name)


async def test_the_newest_sync_must_name_the_protocol(broker: Broker) -> None:
    request = sg.SyncGroupRequest(group_id="team", member_id="m", generation_id=1, protocol_type="consumer")
    answer = await answer_to(broker.at(5), "sync_group", request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await answer_to(broker.at(4), "sync_group", request)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("version", "error", "message"), [(5, 0, None), (6, ErrorCode.GROUP_ID_NOT_FOUND, "Group unknown not found.")]
)
async def test_an_unknown_group_is_dead_and_from_v6_on_an_error(
    broker: Broker, version: int, error: int, message: str | None
) -> None:
    (answer,) = (
        await answer_to(broker.at(version), "describe_groups", desc.DescribeGroupsRequest(groups=["unknown"]))
    ).groups
    assert (answer.group_state, answer.error_code, answer.error_message) == ("Dead", error, message)


async def test_a_stable_group_is_described_with_its_members(broker: Broker) -> None:
    joined = await one_member(broker)
    request = desc.DescribeGroupsRequest(groups=["team"], include_authorized_operations=True)
    (answer,) = (await answer_to(broker.at(5), "describe_groups", request)).groups
    (member,) = answer.members
    assert (answer.group_state, answer.protocol_data, answer.authorized_operations) == ("Stable", "range", 3400)
    assert (member.member_id, member.client_host, member.member_assignment) == (joined.member_id, "/10.0.0.1", b"all")


@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [([], [], 1), (["sTABLE"], [], 1), (["Empty"], [], 0), ([], ["Classic"], 1), ([], ["consumer"], 0)],
)
async def test_groups_are_listed_through_filters(
    broker: Broker, states: list[str], types: list[str], listed: int
) -> None:
    await one_member(broker)
    request = ls.ListGroupsRequest(states_filter=states, types_filter=types)
    assert len((await answer_to(broker.at(5), "list_groups", request)).groups) == listed


async def test_groups_and_offsets_are_deleted_each_with_its_own_outcome(broker: Broker) -> None:
    await one_member(broker)
    await broker.commit(group="idle")
    partitions = [od.OffsetDeleteRequestPartition(partition_index=i) for i in (0, 9)]
    topics = [od.OffsetDeleteRequestTopic(name="web", partitions=partitions)]
    gone = await answer_to(broker.at(0), "offset_delete", od.OffsetDeleteRequest(group_id="unknown", topics=topics))
    assert (gone.error_code, gone.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    held = await answer_to(broker.at(0), "offset_delete", od.OffsetDeleteRequest(group_id="team", topics=topics))
    assert [each.error_code for each in held.topics[0].partitions] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    request = dg.DeleteGroupsRequest(groups_names=["team", "idle", "unknown", "idle"])
    results = (await answer_to(broker.at(1), "delete_groups", request)).results
    assert [(each.group_id, each.error_code) for each in results] == [
        ("team", ErrorCode.NON_EMPTY_GROUP),
        ("idle", ErrorCode.NONE),
        ("unknown", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


async def test_coordinators_are_found_one_by_one_and_many_at_once(broker: Broker) -> None:
    one = await answer_to(broker.at(2), "find_coordinator", fc.FindCoordinatorRequest(key="team"))
    assert (one.error_code, one.error_message, one.node_id, one.host, one.port) == (0, "NONE", 1, "host", 9092)
    many = await answer_to(broker.at(4), "find_coordinator", fc.FindCoordinatorRequest(coordinator_keys=["a", "b"]))
    assert [(each.key, each.node_id, each.error_code) for each in many.coordinators] == [("a", 1, 0), ("b", 1, 0)]
    share = await answer_to(
        broker.at(6), "find_coordinator", fc.FindCoordinatorRequest(coordinator_keys=["a"], key_type=2)
    )
    assert (share.coordinators[0].error_code, share.coordinators[0].node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert broker.groups.list_groups() == []  # asking makes no group
