"""Coordinators of three brokers with three replicas each: one is killed, another takes over and has lost nothing."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.group_member import GroupMember
from ottla.client.groups import OffsetAndMetadata, commit_offsets, committed_offsets
from ottla.client.offsets import LATEST, list_offsets
from ottla.client.producer import Producer
from ottla.client.transactions import ConsumerGroupMetadata, TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated import consumer_group_heartbeat as heartbeat
from tests.unit.broker.test_moving_coordinators import (
    NODES,
    PARTITIONS,
    ShareMember,
    create,
    from_the_start,
    leader_of,
    names_by_coordinator,
)

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
"""A killed broker does not run the requests that it has just received."""

REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.share.record.lock.duration.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    "min.insync.replicas": "2",
}
WEB = TopicPartition("web", 0)


async def in_sync(cluster: TestCluster, topic: str) -> None:
    """Wait until all running brokers are in sync on a topic."""

    def is_in_sync() -> bool:
        found = cluster.services(cluster.controller).cluster.current.topics[topic]
        return all(len(partition.isr) == len(cluster.brokers) for partition in found.partitions)

    await cluster.until(is_in_sync, seconds=30)


class Committer:
    """Commits growing offsets of one group, and remembers the last one that was acknowledged."""

    def __init__(self, client: Cluster, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.next = self.acknowledged = 0
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            self.next += 1
            await commit_offsets(self.client, self.group_id, {WEB: self.next})
            self.acknowledged = self.next

    async def committed(self) -> int:
        found = await committed_offsets(self.client, self.group_id)
        return found[WEB].offset

    async def advance(self, count: int = 20) -> None:
        """Wait for more acknowledged commits."""
        target = self.acknowledged + count
        async with asyncio.timeout(30):
            while self.acknowledged < target:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.options(REPLICATED)
@pytest.mark.timeout(90)
async def test_no_commit_is_lost_when_its_coordinator_is_killed_again_and_again(cluster: TestCluster) -> None:
    await create(cluster, "web", factor=3)
    groups = list((await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)).values())
    await in_sync(cluster, OFFSETS_TOPIC)
    async with await cluster.client() as client:
        committers = [Committer(client, group_id) for group_id in groups]
        running = [asyncio.create_task(committer.run()) for committer in committers]
        for killed in (1, 2, 3):
            await asyncio.gather(*(committer.advance() for committer in committers))
            before = [committer.acknowledged for committer in committers]
            await cluster.kill(killed)
            for committer, acknowledged in zip(committers, before, strict=True):
                assert await committer.committed() >= acknowledged
            await asyncio.gather(*(committer.advance() for committer in committers))
            await cluster.restart(killed)
            await in_sync(cluster, OFFSETS_TOPIC)
        for committer in committers:
            committer.is_stopping = True
        await asyncio.gather(*running)
        for committer in committers:
            assert await committer.committed() == committer.acknowledged


@pytest.mark.options(REPLICATED)
@pytest.mark.timeout(90)
async def test_a_group_has_one_coordinator_which_is_the_leader_after_a_kill(cluster: TestCluster) -> None:
    await create(cluster, "web", factor=3)
    names = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    await in_sync(cluster, OFFSETS_TOPIC)
    group_id = names[2]
    async with await cluster.client(1, 3) as client:
        await commit_offsets(client, group_id, {WEB: 7})
        await cluster.kill(2)
        found = await committed_offsets(client, group_id)
        assert found[WEB].offset == 7
        leader = leader_of(cluster, OFFSETS_TOPIC, partition_of(group_id, 3))
        assert leader in {1, 3}
        assert await client.coordinator(group_id) == leader
        (other,) = {1, 3} - {leader}
        try:
            cluster.services(other).coordinators.groups.fetch(group_id)
        except KafkaError as error:
            assert error.code.name == "NOT_COORDINATOR"  # noqa: PT017
        else:
            raise AssertionError("two coordinators")


# ---- Transactions

TRANSACTIONS = 32  # of each producer


class Copier:
    """Writes transactions one after the other: record `n` to each partition, and the offset `n + 1` of a group.

    After any error it begins again as a new producer of the same transactional id, after the committed offset.
    """

    def __init__(self, client: Cluster, transactional_id: str, group_id: str, *, first_version: bool) -> None:
        self.client, self.transactional_id, self.group_id = client, transactional_id, group_id
        self.first_version = first_version
        self.done = 0

    async def run(self, count: int) -> None:
        while self.done < count:
            producer = TransactionalProducer(
                self.client, self.transactional_id, clock=SystemClock(), first_version=self.first_version
            )
            try:
                await producer.init()
                found = await committed_offsets(self.client, self.group_id, [WEB])
                self.done = found[WEB].offset if WEB in found else 0
                while self.done < count:
                    await self._copy(producer, self.done)
                    self.done += 1
            except (KafkaError, CannotConnect):
                await asyncio.sleep(0.05)
            finally:
                await producer.close()

    async def _copy(self, producer: TransactionalProducer, number: int) -> None:
        producer.begin()
        value = b"%s %d" % (self.transactional_id.encode(), number)
        sent = [await producer.send("web", value=value, partition=partition) for partition in PARTITIONS]
        await asyncio.gather(*sent)
        offset = OffsetAndMetadata(number + 1, -1, "")
        await producer.send_offsets(ConsumerGroupMetadata(self.group_id), {WEB: offset})
        await producer.commit()


async def read_committed(client: Cluster, topic: str) -> dict[int, list[bytes]]:
    """Read what committed transactions have written, up to the last stable offsets."""
    wanted = [TopicPartition(topic, index) for index in PARTITIONS]
    bounds = await list_offsets(client, dict.fromkeys(wanted, LATEST), read_committed=True)
    found: dict[int, list[bytes]] = {index: [] for index in PARTITIONS}
    ends = {where: bounds[where].offset for where in wanted}
    options = ConsumerOptions(read_committed=True)
    async with Consumer(client, dict.fromkeys(wanted, 0), end=ends, options=options) as consumer:
        async for where, records in consumer.chunks():
            found[where.partition] += [record.value or b"" for record in records]
    return found


@pytest.mark.parametrize("first_version", [False, True])
@pytest.mark.options(REPLICATED)
@pytest.mark.timeout(90)
async def test_transactions_are_exactly_once_when_brokers_are_killed(
    cluster: TestCluster, *, first_version: bool
) -> None:
    await create(cluster, "web", factor=3)
    groups = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    ids = await names_by_coordinator(cluster, TRANSACTIONS_TOPIC, 1)
    for topic in ("web", OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        await in_sync(cluster, topic)
    async with await cluster.client() as client:
        copiers = [
            Copier(client, ids[node_id], groups[node_id % 3 + 1], first_version=first_version) for node_id in NODES
        ]
        running = [asyncio.create_task(copier.run(TRANSACTIONS)) for copier in copiers]
        for number, killed in enumerate((1, 2, 3), start=1):
            await cluster.until(lambda at=8 * number: all(copier.done >= at for copier in copiers), seconds=30)  # type: ignore[misc]
            await cluster.kill(killed)
            await asyncio.sleep(0.3)
            await cluster.restart(killed)
            for topic in ("web", OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
                await in_sync(cluster, topic)
        await asyncio.gather(*running)
        expected = sorted(
            b"%s %d" % (copier.transactional_id.encode(), n) for copier in copiers for n in range(TRANSACTIONS)
        )

        async def all_decided() -> None:
            while any(  # noqa: ASYNC110
                len(values) < len(expected) for values in (await read_committed(client, "web")).values()
            ):
                await asyncio.sleep(0.1)

        await asyncio.wait_for(all_decided(), 20)
        for values in (await read_committed(client, "web")).values():
            assert sorted(values) == expected
            for copier in copiers:
                name = copier.transactional_id.encode() + b" "
                numbers = [int(value.removeprefix(name)) for value in values if value.startswith(name)]
                assert numbers == list(range(TRANSACTIONS))


# ---- Members of groups


class ModernMember:
    """A member of a group of the new protocol (KIP-848)."""

    def __init__(self, client: Cluster, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.member_id, self.epoch = str(uuid.uuid4()), 0
        self.assigned: set[int] = set()

    async def beat(self) -> None:
        async def attempt() -> None:
            node_id = await self.client.coordinator(self.group_id)
            joins = self.epoch == 0
            owned: list[heartbeat.TopicPartitions] | None = [] if joins else None
            request = heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                topic_partitions=owned,
                rebalance_timeout_ms=60_000 if joins else -1,
                subscribed_topic_names=["web"] if joins else None,
            )
            answer = await self.client.request(node_id, ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
            raise_for(answer.error_code, answer.error_message)
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {index for part in answer.assignment.topic_partitions for index in part.partitions}

        await self.client.retrying(attempt)


@pytest.mark.options(REPLICATED)
@pytest.mark.timeout(90)
async def test_a_group_continues_without_a_rebalance_when_its_coordinator_is_killed(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(cluster, "web", factor=3)
    names = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    await in_sync(cluster, OFFSETS_TOPIC)
    async with await cluster.client() as client:
        rebalances: list[int] = []
        classic, modern = names[2] + "-classic", names[2] + "-modern"
        number = 0
        while {leader_of(cluster, OFFSETS_TOPIC, partition_of(name, 3)) for name in (classic, modern)} != {2}:
            number += 1
            classic = classic.partition("/")[0] + f"/{number % 7}"
            modern = modern.partition("/")[0] + f"/{number // 7}"
        accepted, request = 0, client.request

        async def count_heartbeats(node_id: int, key: ApiKey, message: Any, **options: Any) -> Any:
            nonlocal accepted
            answer = await request(node_id, key, message, **options)
            accepted += key is ApiKey.HEARTBEAT and answer.error_code == ErrorCode.NONE
            return answer

        monkeypatch.setattr(client, "request", count_heartbeats)
        old = GroupMember(client, classic, ["web"], on_rebalance=lambda: rebalances.append(1), heartbeat_s=0.1)
        new = ModernMember(client, modern)
        assert len(await old.join()) == 3
        while len(new.assigned) < 3:
            await new.beat()
        identity, epoch = (old.member_id, old.generation_id), new.epoch
        assert await old.commit({WEB: 5})
        await cluster.kill(2)
        assert await old.commit({WEB: 6})
        before = accepted
        await cluster.until(lambda: accepted >= before + 5)
        for _ in range(5):
            await new.beat()
        assert rebalances == []
        assert (old.member_id, old.generation_id) == identity
        assert (new.epoch, new.assigned) == (epoch, {0, 1, 2})
        assert (await committed_offsets(client, classic))[WEB].offset == 6
        await old.leave()


# ---- Share groups


@pytest.mark.options(REPLICATED)
@pytest.mark.timeout(90)
async def test_accepted_records_are_not_delivered_again_when_leaders_and_share_coordinators_are_killed(
    cluster: TestCluster,
) -> None:
    await create(cluster, "web", factor=3)
    names = await names_by_coordinator(cluster, OFFSETS_TOPIC, 0)
    async with await cluster.client() as client:
        group_id = names[1]
        await from_the_start(client, group_id)
        member = ShareMember(client, group_id, "web")
        await member.join(3)
        for topic in ("web", OFFSETS_TOPIC, SHARE_STATE_TOPIC):
            await in_sync(cluster, topic)
        for number, killed in enumerate((1, 2, 3), start=1):
            async with Producer(client, clock=SystemClock()) as producer:
                for partition in PARTITIONS:
                    for _ in range(10):
                        await (await producer.send("web", value=b"v", partition=partition))
            for partition in PARTITIONS:
                await member.take_until(partition, 10 * number)
            await cluster.kill(killed)
            await asyncio.sleep(0.2)
            await member.beat()
            await cluster.restart(killed)
            for topic in ("web", OFFSETS_TOPIC, SHARE_STATE_TOPIC):
                await in_sync(cluster, topic)
        for partition in PARTITIONS:
            accepted = member.accepted[partition]
            assert len(accepted) == len(set(accepted)), "what was accepted is not delivered again"
            assert len(accepted) > 15, "most answers came"
