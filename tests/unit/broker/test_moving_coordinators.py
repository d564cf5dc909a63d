"""Coordinators of three brokers: transactions over partitions of all brokers, and coordinators that move."""

from __future__ import annotations

import asyncio
import base64
import uuid

import pytest

from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.client.groups import OffsetAndMetadata, committed_offsets
from ottla.client.offsets import list_offsets
from ottla.client.producer import Producer
from ottla.client.share_groups import start_offsets
from ottla.client.transactions import ConsumerGroupMetadata, TransactionalProducer
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated import incremental_alter_configs as altering
from ottla.wire.generated import share_acknowledge as acknowledging
from ottla.wire.generated import share_fetch as fetching
from ottla.wire.generated import share_group_heartbeat as heartbeat

pytestmark = pytest.mark.simulated_time

ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
NODES = (1, 2, 3)
PARTITIONS = (0, 1, 2)


async def create(cluster: TestCluster, topic: str, *, partitions: int = 3, factor: int = 1) -> None:
    controller = cluster.services(cluster.controller).controller
    await controller.create_topic(topic, partitions=partitions, replication_factor=factor)
    await cluster.known_everywhere(topic)


def leader_of(cluster: TestCluster, topic: str, partition: int) -> int:
    """Return the leader that the controller's broker knows."""
    found = cluster.services(cluster.controller).cluster.current.partition(topic, partition)
    assert found is not None
    return found.leader


async def names_by_coordinator(cluster: TestCluster, topic: str, key_type: int) -> dict[int, str]:
    """Return for each broker a key that it coordinates; the topic is created with the first one."""
    async with await cluster.client() as client:
        await client.retrying(lambda: client.coordinator("first", key_type=key_type))
    await cluster.known_everywhere(topic)
    names: dict[int, str] = {}
    for number in range(100):
        name = f"{topic.strip('_')}-{number}"
        names.setdefault(leader_of(cluster, topic, partition_of(name, 3)), name)
    assert set(names) == set(NODES)
    return names


async def committed_ends(client: Cluster, topic: str) -> list[int]:
    """Return the last stable offset of each partition."""
    wanted = {TopicPartition(topic, index): -1 for index in PARTITIONS}
    found = await list_offsets(client, wanted, read_committed=True)
    return [found[where].offset for where in wanted]


@pytest.mark.options(ALONE)
async def test_any_broker_finds_the_coordinator_and_the_others_refuse(cluster: TestCluster) -> None:
    names = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    for node_id in NODES:
        async with await cluster.client(node_id) as client:
            for coordinator, name in names.items():
                assert await client.coordinator(name) == coordinator


@pytest.mark.options(ALONE)
async def test_a_transaction_spans_partitions_and_groups_of_all_brokers(cluster: TestCluster) -> None:
    await create(cluster, "web")
    assert {leader_of(cluster, "web", index) for index in PARTITIONS} == set(NODES)
    groups = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    ids = await names_by_coordinator(cluster, TRANSACTIONS_TOPIC, 1)
    async with await cluster.client() as client:
        expected = 0
        for number, (name, first_version) in enumerate((name, v) for name in ids.values() for v in (False, True)):
            producer = TransactionalProducer(client, name, clock=cluster.clock, first_version=first_version)
            async with producer:
                for is_committed in (True, False):
                    producer.begin()
                    for partition in PARTITIONS:
                        await (await producer.send("web", value=b"v", partition=partition))
                    offset = OffsetAndMetadata(10 * number + 1 + (not is_committed), -1, "")
                    for group_id in groups.values():
                        await producer.send_offsets(ConsumerGroupMetadata(group_id), {TopicPartition("web", 0): offset})
                    await (producer.commit() if is_committed else producer.abort())
                    expected += 2  # a record and a marker
            async with asyncio.timeout(20):
                while await committed_ends(client, "web") != [expected] * 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            for group_id in groups.values():
                found = await committed_offsets(client, group_id)
                assert found[TopicPartition("web", 0)].offset == 10 * number + 1


# ---- Share groups


class ShareMember:
    """A member of a share group that subscribes to one topic, with requests of its own to each leader."""

    def __init__(self, client: Cluster, group_id: str, topic: str) -> None:
        self.client, self.group_id, self.topic = client, group_id, topic
        self.member_id, self.epoch = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="), 0
        self.sessions: dict[int, int] = {}  # node id -> epoch of the session with this leader
        self.accepted: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        self.unsure: dict[int, set[int]] = {partition: set() for partition in PARTITIONS}  # without a good answer

    async def beat(self) -> int:
        """Send a heartbeat; returns how many partitions are assigned."""

        async def attempt() -> int:
            node_id = await self.client.coordinator(self.group_id)
            request = heartbeat.ShareGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                subscribed_topic_names=[self.topic],
            )
            answer = await self.client.request(node_id, ApiKey.SHARE_GROUP_HEARTBEAT, request)
            raise_for(answer.error_code, answer.error_message)
            self.epoch = answer.member_epoch
            assigned = answer.assignment.topic_partitions if answer.assignment is not None else []
            return sum(len(each.partitions) for each in assigned)

        return await self.client.retrying(attempt)

    async def join(self, partitions: int) -> None:
        """Send heartbeats until the partitions are assigned."""
        while await self.beat() < partitions:  # noqa: ASYNC110  # the coordinator answers no sooner
            await asyncio.sleep(0.05)

    async def take(self, partition: int) -> list[tuple[int, int, int]]:
        """Fetch once from the leader of a partition and accept everything; returns partitions and ranges of offsets.

        The leader also returns records of the other partitions of the session.
        """
        info = await self.client.partition(TopicPartition(self.topic, partition), fresh=True)
        topic_id = self.client.info.topics[self.topic].topic_id
        epoch = self.sessions.get(info.leader_id, 0)
        found: list[tuple[int, int, int]] = []
        fetched = fetching.FetchTopic(
            topic_id=topic_id, partitions=[fetching.FetchPartition(partition_index=partition)]
        )
        request = fetching.ShareFetchRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=500,
            batch_size=500,
            topics=[fetched],
        )
        answer = await self.client.request(info.leader_id, ApiKey.SHARE_FETCH, request)
        raise_for(answer.error_code, answer.error_message)
        self.sessions[info.leader_id] = epoch + 1
        for topic in answer.responses:
            for part in topic.partitions:
                raise_for(part.error_code, part.error_message)
                found += [(part.partition_index, one.first_offset, one.last_offset) for one in part.acquired_records]
        for index, first, last in found:
            self.unsure[index] |= set(range(first, last + 1))
            await self._accept(info.leader_id, topic_id, index, first, last)
            self.accepted[index] += range(first, last + 1)
            self.unsure[index] -= set(range(first, last + 1))
        return found

    async def _accept(self, leader: int, topic_id: uuid.UUID, partition: int, first: int, last: int) -> None:
        batch = acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[1])
        part = acknowledging.AcknowledgePartition(partition_index=partition, acknowledgement_batches=[batch])
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=self.sessions[leader],
            topics=[acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=[part])],
        )
        answer = await self.client.request(leader, ApiKey.SHARE_ACKNOWLEDGE, request)
        self.sessions[leader] += 1
        raise_for(answer.error_code, answer.error_message)
        raise_for(answer.responses[0].partitions[0].error_code, answer.responses[0].partitions[0].error_message)

    async def take_until(self, partition: int, end_offset: int) -> None:
        """Take from a partition until its last record; what a leader that is lost had delivered may come again."""
        while not {*self.accepted[partition], *self.unsure[partition]} >= set(range(end_offset)):
            try:
                await self.take(partition)
            except KafkaError as error:
                if not error.retriable and error.code is not ErrorCode.INVALID_RECORD_STATE:
                    raise
                self.sessions.clear()
                await asyncio.sleep(0.05)


async def from_the_start(client: Cluster, group_id: str) -> None:
    """Let a share group begin at the first record."""
    change = altering.AlterConfigsResource(
        resource_type=32,
        resource_name=group_id,
        configs=[altering.AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")],
    )
    answer = await client.request_controller(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, altering.IncrementalAlterConfigsRequest(resources=[change])
    )
    raise_for(answer.responses[0].error_code, answer.responses[0].error_message)


@pytest.mark.options(ALONE)
async def test_share_partitions_keep_their_state_with_coordinators_on_all_brokers(cluster: TestCluster) -> None:
    await create(cluster, "web")
    groups = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    async with await cluster.client() as client:
        async with Producer(client, clock=cluster.clock) as producer:
            for partition in PARTITIONS:
                for _ in range(10):
                    await (await producer.send("web", value=b"v", partition=partition))
        for group_id in groups.values():
            await from_the_start(client, group_id)
            member = ShareMember(client, group_id, "web")
            await member.join(3)
            for partition in PARTITIONS:
                await member.take_until(partition, 10)
                assert member.accepted[partition] == list(range(10))
            assert {where.partition for where in await start_offsets(client, group_id)} == {0, 1, 2}
            another = ShareMember(client, group_id, "web")
            await another.join(1)
            for partition in PARTITIONS:
                assert await another.take(partition) == [], "everything is accepted, durably"
