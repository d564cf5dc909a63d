"""Tests TxnOffsetCommit: offsets in a transactional batch of __consumer_offsets, verified with the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.remote.transaction_verification import TransactionVerifier
from ottla.core.error_codes import ErrorCode
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.replication.end_txn_markers import append_end_txn_marker
from ottla.replication.partition import Partition
from ottla.testing.cluster import BrokerHandlers
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.generated import create_topics
from ottla.wire.generated import find_coordinator as fc
from ottla.wire.generated import offset_commit as oc
from ottla.wire.generated import offset_fetch as of
from ottla.wire.generated import txn_offset_commit as toc

pytestmark = [pytest.mark.simulated_time, pytest.mark.options({"offsets.topic.num.partitions": "3"})]

GROUP, PRODUCER, VERSIONS = "team", 7, range(6)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


class FakeCoordinator:
    """Answers with the error it was given."""

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        self.asked: list[tuple[frozenset[TopicPartition], TransactionVersion, bool]] = []

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        client_version: TransactionVersion,
        verify_only: bool,
    ) -> ErrorCode:
        assert (transactional_id, producer_id) == ("copier", PRODUCER)
        self.asked.append((partitions, client_version, verify_only))
        return self.error


class Client:
    """A producer that commits offsets of a group, and a reader of them."""

    def __init__(self, server: BrokerHandlers) -> None:
        self.server, self.coordinator = server, FakeCoordinator()
        clock = server.services.clock
        server.services.coordinators.transaction_verifier = TransactionVerifier(self.coordinator, clock)
        self.where = TopicPartition(OFFSETS_TOPIC, server.services.coordinators.groups.led.partition_for(GROUP))

    @property
    def partition(self) -> Partition:
        return self.server.services.replicas.partition(self.where)

    async def send(
        self, version: int, *, offset: int = 5, epoch: int = 0, group: str = GROUP, **member: Any
    ) -> list[int]:
        partitions = [toc.TxnOffsetCommitRequestPartition(partition_index=i, committed_offset=offset) for i in (0, 9)]
        request = toc.TxnOffsetCommitRequest(
            transactional_id="copier",
            group_id=group,
            producer_id=PRODUCER,
            producer_epoch=epoch,
            topics=[
                toc.TxnOffsetCommitRequestTopic(name="web", partitions=partitions),
                toc.TxnOffsetCommitRequestTopic(name="other", partitions=partitions[:1]),
            ],
            **member,
        )
        answer = await self.server.call("txn_offset_commit", version, request)
        return [each.error_code for topic in answer.topics for each in topic.partitions]

    async def fetched(self, *, stable: bool) -> tuple[int, int]:
        """The offset of partition 0 and its error."""
        topic = of.OffsetFetchRequestTopics(name="web", partition_indexes=[0])
        request = of.OffsetFetchRequest(
            groups=[of.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])], require_stable=stable
        )
        (group,) = (await self.server.call("offset_fetch", 9, request)).groups
        found = group.topics[0].partitions[0]
        return found.committed_offset, found.error_code

    async def end(self, *, commit: bool, epoch: int = 0) -> None:
        now_ms = self.server.services.clock.wall_ms()
        groups = self.server.services.coordinators.groups
        marker = append_end_txn_marker(
            self.partition, PRODUCER, epoch, commit=commit, coordinator_epoch=0, now_ms=now_ms
        )
        groups.marker_appended(self.where.partition, marker.first_offset)
        await groups.complete_transaction(self.where.partition, PRODUCER, commit=commit)


@pytest.fixture
async def client(broker: BrokerHandlers) -> Client:
    topic = create_topics.CreatableTopic(name="web", num_partitions=2, replication_factor=1)
    await broker.call("create_topics", 5, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    await broker.call("find_coordinator", 3, fc.FindCoordinatorRequest(key=GROUP))
    await broker.services.coordinators.groups.led.wait_until_loaded()
    return Client(broker)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [False, True])
async def test_offsets_become_visible_or_are_dropped_with_the_marker(
    client: Client, version: int, *, commit: bool
) -> None:
    assert await client.send(version) == [0, UNKNOWN, UNKNOWN]
    adds = version >= 5
    kind = TransactionVersion.TV_2 if adds else TransactionVersion.TV_0
    assert client.coordinator.asked == [(frozenset({client.where}), kind, not adds)]
    assert await client.send(version, offset=6) == [0, UNKNOWN, UNKNOWN]
    assert len(client.coordinator.asked) == 1  # the transaction is open on the partition
    assert await client.fetched(stable=True) == (-1, UNSTABLE)
    assert await client.fetched(stable=False) == (-1, 0)
    await client.end(commit=commit)
    assert await client.fetched(stable=True) == (6 if commit else -1, 0)


async def test_a_restart_reads_open_and_ended_transactions_from_the_log(broker: BrokerHandlers, client: Client) -> None:
    await client.send(3)
    await client.end(commit=True)
    await client.send(3, offset=8)
    await broker.restart()
    await broker.services.coordinators.groups.led.wait_until_loaded()
    client = Client(broker)
    assert await client.fetched(stable=False) == (5, 0)
    assert await client.fetched(stable=True) == (-1, UNSTABLE)
    await client.end(commit=True)
    assert await client.fetched(stable=True) == (8, 0)


@pytest.mark.parametrize(
    ("version", "error", "answer"),
    [
        (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (1, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (4, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (3, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
async def test_errors_of_the_transaction_coordinator(
    client: Client, version: int, error: ErrorCode, answer: ErrorCode
) -> None:
    client.coordinator.error = error
    assert await client.send(version) == [answer, UNKNOWN, UNKNOWN]
    assert client.partition.log.end_offset == 0


async def test_members_and_groups_are_checked(client: Client) -> None:
    assert await client.send(3, group="") == [ErrorCode.INVALID_GROUP_ID, UNKNOWN, UNKNOWN]
    illegal = ErrorCode.ILLEGAL_GENERATION
    assert await client.send(3, member_id="m", generation_id=1) == [illegal, UNKNOWN, UNKNOWN]
    assert await client.send(3, member_id="m") == [0, UNKNOWN, UNKNOWN]  # no generation and no members


async def test_an_old_epoch_is_fenced_by_the_log(client: Client) -> None:
    await client.send(3, epoch=2)
    await client.end(commit=False, epoch=2)
    assert await client.send(3, epoch=1) == [ErrorCode.INVALID_PRODUCER_EPOCH, UNKNOWN, UNKNOWN]


async def test_a_commit_outside_the_transaction_is_not_unstable(client: Client) -> None:
    await client.send(3)
    partition = oc.OffsetCommitRequestPartition(partition_index=1, committed_offset=3)
    asked = oc.OffsetCommitRequestTopic(name="web", partitions=[partition])
    await client.server.call("offset_commit", 8, oc.OffsetCommitRequest(group_id=GROUP, topics=[asked]))
    request = of.OffsetFetchRequest(
        groups=[of.OffsetFetchRequestGroup(group_id=GROUP, topics=None)], require_stable=True
    )
    (group,) = (await client.server.call("offset_fetch", 8, request)).groups
    found = [(each.partition_index, each.committed_offset, each.error_code) for each in group.topics[0].partitions]
    assert found == [(1, 3, 0)]
