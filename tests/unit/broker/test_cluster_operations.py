"""What operators do with a cluster: move replicas, change their number, elect leaders, delete topics, stop brokers."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.audit import AUDIT_TOPIC
from ottla.client.audit_topic import ensure_audit_topic
from ottla.core.errors import ErrorCode
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import PartitionView
from ottla.testing.cluster import TestCluster
from ottla.wire.generated import alter_partition_reassignments, elect_leaders, list_partition_reassignments
from tests.unit.broker.test_replicated_topic import TP, equal_replicas, in_sync, leader_of, read, replica, send

pytestmark = pytest.mark.simulated_time


def state(cluster: TestCluster, node_id: int) -> PartitionView:
    """Return the partition as a broker knows it."""
    found = cluster.services(node_id).cluster.current.partition(*TP)
    assert found is not None
    return found


async def create(cluster: TestCluster, *replicas: int) -> None:
    controller = cluster.services(cluster.controller).controller
    await controller.create_topic(TP.topic, assignments=[(0, replicas)])
    await cluster.known_everywhere(TP.topic)


async def reassign(cluster: TestCluster, replicas: list[int] | None) -> int:
    """Request a reassignment; returns the error code."""
    wanted = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=replicas)
    topic = alter_partition_reassignments.ReassignableTopic(name=TP.topic, partitions=[wanted])
    request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[topic])
    answer = await cluster.handlers(cluster.controller).call("alter_partition_reassignments", 1, request)
    assert answer.error_code == 0
    return int(answer.responses[0].partitions[0].error_code)


async def running(cluster: TestCluster) -> list[tuple[list[int], list[int], list[int]]]:
    request = list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None)
    answer = await cluster.handlers(cluster.controller).call("list_partition_reassignments", 0, request)
    return [
        (found.replicas, found.adding_replicas, found.removing_replicas)
        for topic in answer.topics
        for found in topic.partitions
    ]


async def assigned(cluster: TestCluster, *replicas: int) -> None:
    """Wait until all brokers know this assignment, all of it in sync."""
    await cluster.until(
        lambda: all(
            (state(cluster, node_id).replicas, set(state(cluster, node_id).isr)) == (replicas, set(replicas))
            for node_id in cluster.brokers
        ),
        seconds=20,
    )


def has_log(cluster: TestCluster, node_id: int) -> bool:
    logs = cluster.services(node_id).replicas.directories.logs()
    return any(log.topic_partition == TP for _, log in logs)


async def test_a_replica_moves_with_its_records_and_the_old_one_goes(cluster: TestCluster) -> None:
    await create(cluster, 1, 2)
    await send(cluster, range(100))
    assert await reassign(cluster, [3, 2]) == 0
    await assigned(cluster, 3, 2)
    assert await running(cluster) == []
    await cluster.until(lambda: leader_of(cluster) == 3 and not has_log(cluster, 1))
    await send(cluster, range(100, 200))
    assert await read(cluster, 200) == list(range(200))


async def test_the_number_of_replicas_is_raised_and_lowered(cluster: TestCluster) -> None:
    await create(cluster, 1)
    await send(cluster, range(100))
    assert await reassign(cluster, [1, 2, 3]) == 0
    await assigned(cluster, 1, 2, 3)
    await equal_replicas(cluster, 100)
    assert await reassign(cluster, [2]) == 0
    await assigned(cluster, 2)
    await cluster.until(lambda: leader_of(cluster) == 2 and not has_log(cluster, 1) and not has_log(cluster, 3))
    assert await read(cluster, 100) == list(range(100))


async def test_a_reassignment_to_a_broker_that_is_down_waits_and_can_be_cancelled(cluster: TestCluster) -> None:
    await create(cluster, 1, 2)
    await send(cluster, range(10))
    assert await reassign(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    await cluster.kill(3, session_expires=False)
    assert await reassign(cluster, [3]) == 0
    assert await running(cluster) == [([3, 1, 2], [3], [1, 2])]
    await send(cluster, range(10, 20))
    assert await reassign(cluster, None) == 0
    await assigned(cluster, 1, 2)
    await cluster.expire(3)
    await cluster.restart(3)
    await assigned(cluster, 1, 2)
    assert await read(cluster, 20) == list(range(20))


@pytest.mark.brokers(4)
async def test_a_replica_moves_away_from_a_broker_while_another_one_of_the_partition_is_down(
    cluster: TestCluster,
) -> None:
    await create(cluster, 1, 2, 3)
    await send(cluster, range(100))
    await cluster.kill(2)
    await cluster.until(lambda: set(state(cluster, 1).isr) == {1, 3})
    assert await reassign(cluster, [4, 2, 3]) == 0
    await cluster.until(
        lambda: all((state(cluster, node).replicas, state(cluster, node).isr) == ((4, 2, 3), (4, 3)) for node in (3, 4))
    )
    assert await running(cluster) == []
    await cluster.until(lambda: leader_of(cluster) == 4 and not has_log(cluster, 1))
    await send(cluster, range(100, 200))
    await cluster.restart(2)
    await assigned(cluster, 4, 2, 3)
    assert await read(cluster, 200) == list(range(200))


async def test_preferred_replicas_lead_again_on_request_and_an_unclean_election_needs_an_order(
    cluster: TestCluster,
) -> None:
    await create(cluster, 1, 2)
    await send(cluster, range(10))

    async def elect(kind: int) -> int:
        asked = elect_leaders.TopicPartitions(topic=TP.topic, partitions=[0])
        request = elect_leaders.ElectLeadersRequest(election_type=kind, topic_partitions=[asked])
        answer = await cluster.handlers(cluster.controller).call("elect_leaders", 2, request)
        return int(answer.replica_election_results[0].partition_result[0].error_code)

    await cluster.kill(1)
    await cluster.until(lambda: leader_of(cluster) == 2)
    assert await elect(0) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    await cluster.restart(1)
    await in_sync(cluster, 2)
    assert await elect(0) == 0
    await cluster.until(lambda: leader_of(cluster) == 1)
    assert await elect(0) == ErrorCode.ELECTION_NOT_NEEDED

    await cluster.kill(2)
    await in_sync(cluster, 1)
    await send(cluster, range(10, 20))
    await cluster.kill(1)
    await cluster.restart(2)
    await cluster.until(
        lambda: state(cluster, 2).leader == -1 and 2 in cluster.services(cluster.controller).cluster.current.brokers
    )
    assert await elect(1) == 0
    await cluster.until(lambda: leader_of(cluster) == 2 and not state(cluster, 3).is_recovering, seconds=20)
    assert state(cluster, 3).last_unclean_epoch == state(cluster, 3).leader_epoch
    await cluster.restart(1)
    await in_sync(cluster, 2)
    await send(cluster, range(20, 30))
    assert await read(cluster, 20) == [*range(10), *range(20, 30)]
    await cluster.until(lambda: all(replica(cluster, n).high_watermark == 20 for n in (1, 2)), seconds=20)


async def test_a_topic_deleted_while_a_broker_is_down_leaves_no_log_there(cluster: TestCluster) -> None:
    await create(cluster, 1, 2, 3)
    await send(cluster, range(10))
    topic_id = cluster.services(1).cluster.current.topics[TP.topic].topic_id
    await cluster.kill(3)
    controller = cluster.services(cluster.controller).controller
    assert await controller.delete_topics([TP.topic]) == [None]
    await cluster.until(lambda: not has_log(cluster, 1) and not has_log(cluster, 2))
    node = await cluster.store.session().get(znodes.deleted_topic_path(topic_id))
    assert node is not None
    assert 3 in znodes.decode_deleted_topic("", node.value).brokers
    await controller.create_topic(TP.topic, assignments=[(0, [1, 2])])
    await cluster.restart(3)
    await cluster.until(lambda: not has_log(cluster, 3))


async def test_a_replica_that_was_moved_away_while_its_broker_was_down_leaves_no_log(cluster: TestCluster) -> None:
    await create(cluster, 1, 2)
    await send(cluster, range(50))
    await cluster.kill(2)
    await in_sync(cluster, 1)
    assert await reassign(cluster, [1, 3]) == 0
    await assigned(cluster, 1, 3)
    await cluster.restart(2)
    await cluster.until(lambda: not has_log(cluster, 2))
    assert await read(cluster, 50) == list(range(50))


async def test_the_controller_is_killed_again_and_again_and_the_cluster_goes_on(cluster: TestCluster) -> None:
    await create(cluster, 1, 2, 3)
    for turn in range(5):
        was = cluster.controller
        sent = await send(cluster, range(turn * 20, turn * 20 + 20))
        assert sent == list(range(turn * 20, turn * 20 + 20))
        await cluster.kill(was)
        await cluster.until(lambda: any(cluster.services(n).controller.is_active for n in cluster.brokers))
        while leader_of(cluster) in {-1, was}:  # noqa: ASYNC110 - of any broker that runs
            await asyncio.sleep(0.01)
        await cluster.restart(was)
        await in_sync(cluster, 3)
    assert await read(cluster, 100) == list(range(100))
    await equal_replicas(cluster, 100)
    assert cluster.services(1).cluster.current.controller_epoch == 6


@pytest.mark.brokers(2)
async def test_the_topic_of_an_audit_is_known_once_it_is_ensured_though_the_asked_broker_learns_of_it_later(
    cluster: TestCluster,
) -> None:
    asked = next(node_id for node_id in cluster.brokers if node_id != cluster.controller)
    controllers_view = cluster.services(cluster.controller).cluster
    async with await cluster.client(asked) as client:
        async with cluster.services(asked).cluster._updating:  # it applies a large snapshot
            ensuring = asyncio.ensure_future(ensure_audit_topic(client))
            await cluster.until(lambda: AUDIT_TOPIC in controllers_view.current.topics)
        await ensuring
        assert client.info.topics[AUDIT_TOPIC].partitions
