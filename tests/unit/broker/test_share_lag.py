"""The lag of a share group, whichever brokers lead the partitions."""

from __future__ import annotations

import pytest

from ottla.client.share_groups import alter_start_offsets
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.share_coordinator.machine import StateWrite
from ottla.share_coordinator.records import SharePartitionKey
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated import describe_share_group_offsets as describing
from ottla.wire.generated.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.unit.broker.test_replicated_topic import create, send

pytestmark = pytest.mark.simulated_time

GROUP, TOPIC, PARTITIONS = "workers", "jobs", [0, 1, 2]
JOIN, LEAVE = 0, -1
ONE_STATE_PARTITION = {"share.coordinator.state.topic.num.partitions": "1", "offsets.topic.num.partitions": "1"}


async def begin(cluster: TestCluster) -> int:
    """Create a group without members that starts at the first records and has done one; returns its coordinator."""
    async with await cluster.client() as client:
        coordinator = await client.coordinator(GROUP)
        for epoch in (JOIN, LEAVE):
            beat = ShareGroupHeartbeatRequest(
                group_id=GROUP, member_id="m", member_epoch=epoch, subscribed_topic_names=[TOPIC]
            )
            answer = await client.request(coordinator, ApiKey.SHARE_GROUP_HEARTBEAT, beat)
            assert answer.error_code == ErrorCode.NONE, answer.error_message
        await alter_start_offsets(client, GROUP, {TopicPartition(TOPIC, index): 0 for index in PARTITIONS})
    states = cluster.services(1).coordinators._share_state_persister
    topic_id = cluster.services(1).cluster.current.topics[TOPIC].topic_id
    for index in PARTITIONS:
        key = SharePartitionKey(GROUP, topic_id, index)
        state = (await states.read(key, 0)).state
        assert state is not None
        await states.write(key, StateWrite(state.state_epoch, 0, 0, 1, ()))
    return coordinator


async def lags(cluster: TestCluster) -> list[int]:
    """Ask the coordinator of the group."""
    topic = describing.DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=PARTITIONS)
    group = describing.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=[topic])
    request = describing.DescribeShareGroupOffsetsRequest(groups=[group])
    async with await cluster.client() as client:
        answer = await client.request(await client.coordinator(GROUP), ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, request)
    (described,) = answer.groups
    assert described.error_code == ErrorCode.NONE, described.error_message
    return [each.lag for each in described.topics[0].partitions]


@pytest.mark.options(ONE_STATE_PARTITION)
async def test_the_lag_counts_records_of_partitions_that_other_brokers_lead(cluster: TestCluster) -> None:
    await create(cluster, TOPIC, partitions=len(PARTITIONS), factor=1)
    state = cluster.services(1).cluster.current.topics[TOPIC].partitions
    assert sorted(each.leader for each in state) == [1, 2, 3]
    for index in PARTITIONS:
        await send(cluster, range(10), TopicPartition(TOPIC, index))
    await begin(cluster)
    assert await lags(cluster) == [9, 9, 9]


@pytest.mark.options(ONE_STATE_PARTITION)
async def test_the_lag_of_a_partition_without_a_leader_is_unknown(cluster: TestCluster) -> None:
    await create(cluster, TOPIC, partitions=len(PARTITIONS), factor=1)
    keeps = await begin(cluster)
    gone = next(node_id for node_id in cluster.brokers if node_id not in {keeps, cluster.controller})
    await cluster.kill(gone)
    view = cluster.services(keeps).cluster
    lost = [each.index for each in view.current.topics[TOPIC].partitions if each.leader == gone]
    await cluster.until(lambda: all(view.current.topics[TOPIC].partitions[index].leader < 0 for index in lost))
    assert [lag for index, lag in enumerate(await lags(cluster)) if index in lost] == [-1]
