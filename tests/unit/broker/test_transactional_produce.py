"""Tests transactional Produce: the coordinator verifies a partition before a transaction's first batch there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ottla.broker.handlers import produce
from ottla.broker.remote.transaction_verification import TransactionVerifier
from ottla.core.error_codes import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.replication.end_txn_markers import append_end_txn_marker
from ottla.replication.partition import Partition
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.requests import request_to
from ottla.transactions.metadata import TransactionVersion
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated import create_topics
from ottla.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.hot_messages import CollectedResponse, hot_produce_request
from tests.support.storage import batch
from tests.support.waiting import until

pytestmark = pytest.mark.simulated_time

TOPIC = "t"
PRODUCER = 7
ASKED = tuple[str, int, int, frozenset[TopicPartition], TransactionVersion, bool]


class FakeCoordinator:
    """Answers with the error it was given, once `release` is set."""

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.error = error
        self.asked: list[ASKED] = []
        self.release = asyncio.Event()
        self.release.set()

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
        self.asked.append((transactional_id, producer_id, producer_epoch, partitions, client_version, verify_only))
        await self.release.wait()
        return self.error


class Client:
    """Sends batches of one producer to a broker with a fake coordinator."""

    def __init__(self, server: BrokerHandlers, error: ErrorCode = ErrorCode.NONE) -> None:
        self.server = server
        self.coordinator = FakeCoordinator(error)
        clock = server.services.clock
        server.services.coordinators.transaction_verifier = TransactionVerifier(self.coordinator, clock)

    def partition(self, index: int = 0) -> Partition:
        return self.server.services.replicas.partition(TopicPartition(TOPIC, index))

    def send(
        self,
        sequence: int,
        *,
        version: int = 11,
        epoch: int = 0,
        transactional_id: str | None = "billing",
        partitions: int = 1,
        producers: tuple[int, ...] = (PRODUCER,),
        transactional: bool = True,
    ) -> tuple[CollectedResponse, Coroutine[Any, Any, None] | None]:
        """Send one request; returns its response and what is left to be run."""
        context = request_to(self.server.services, version)
        parts = [
            PartitionProduceData(
                index=index,
                records=batch(
                    b"v",
                    producer_id=producers[index % len(producers)],
                    epoch=epoch,
                    sequence=sequence,
                    transactional=transactional,
                    timestamp_ms=self.server.services.clock.wall_ms(),
                ),
            )
            for index in range(partitions)
        ]
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=9000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=parts)],
        )
        response = CollectedResponse()
        work = produce.handle(context, hot_produce_request(request, version), response.pending)
        return response, work

    async def answer(self, sequence: int, *, version: int = 11, **more: Any) -> list[PartitionProduceResponse]:
        response, work = self.send(sequence, version=version, **more)
        if work is not None:
            await asyncio.create_task(work)
        (topic,) = (await asyncio.wait_for(response.produce(version), 20)).responses
        return list(topic.partition_responses)

    async def error(self, sequence: int, **more: Any) -> ErrorCode:
        return ErrorCode((await self.answer(sequence, **more))[0].error_code)

    def end(self, *, epoch: int = 0) -> None:
        now_ms = self.server.services.clock.wall_ms()
        append_end_txn_marker(self.partition(), PRODUCER, epoch, commit=True, coordinator_epoch=0, now_ms=now_ms)


@pytest.fixture
async def server(broker: BrokerHandlers) -> BrokerHandlers:
    """A broker with a topic."""
    topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=3, replication_factor=1)
    await broker.call("create_topics", 5, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    return broker


@pytest.mark.parametrize(("version", "adds"), [(9, False), (11, False), (12, True)])
async def test_the_coordinator_is_asked_before_the_first_batch_of_a_transaction_only(
    server: BrokerHandlers, version: int, *, adds: bool
) -> None:
    client = Client(server)
    assert await client.error(0, version=version) is ErrorCode.NONE
    kind = TransactionVersion.TV_2 if adds else TransactionVersion.TV_0
    asked = ("billing", PRODUCER, 0, frozenset({TopicPartition(TOPIC, 0)}), kind, not adds)
    assert client.coordinator.asked == [asked]
    assert await client.error(1, version=version) is ErrorCode.NONE
    assert len(client.coordinator.asked) == 1
    client.end()
    assert await client.error(2, version=version) is ErrorCode.NONE
    assert len(client.coordinator.asked) == 2


@pytest.mark.parametrize("version", [9, 12])
async def test_a_batch_of_an_epoch_that_is_old_in_the_partition_is_refused_without_asking_the_coordinator(
    server: BrokerHandlers, version: int
) -> None:
    client = Client(server, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    client.end(epoch=7)
    for epoch in (6, -1):
        assert await client.error(0, version=version, epoch=epoch) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.coordinator.asked == []
    assert await client.error(0, version=version, epoch=8) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_only_the_partitions_without_an_open_transaction_are_verified_and_in_one_call(
    server: BrokerHandlers,
) -> None:
    client = Client(server)
    await client.answer(0)
    await client.answer(1, partitions=1)
    found = await client.answer(0, partitions=3)  # of partition 0 a duplicate
    assert [part.error_code for part in found] == [0, 0, 0]
    assert client.coordinator.asked[-1][3] == {TopicPartition(TOPIC, 1), TopicPartition(TOPIC, 2)}


@pytest.mark.parametrize(
    ("version", "error", "answer"),
    [
        (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (11, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (11, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (11, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (11, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_errors_of_the_coordinator_are_those_that_the_clients_version_knows(
    server: BrokerHandlers, version: int, error: ErrorCode, answer: ErrorCode
) -> None:
    client = Client(server, error)
    assert await client.error(0, version=version) is answer
    assert client.partition().log.end_offset == 0


async def test_a_marker_written_while_the_coordinator_is_asked_refuses_the_batch(server: BrokerHandlers) -> None:
    client = Client(server)
    client.coordinator.release.clear()
    response, work = client.send(0)
    assert work is not None
    task = asyncio.create_task(work)
    await until(lambda: client.coordinator.asked)
    client.end()  # the transaction was aborted by its timeout
    client.coordinator.release.set()
    await task
    (topic,) = (await response.produce(11)).responses
    assert topic.partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE
    assert client.partition().log.last_stable_offset == 1, "nothing is open"


async def test_the_marker_of_the_previous_transaction_does_not_refuse_a_batch_of_the_next_one(
    server: BrokerHandlers,
) -> None:
    """With epoch bumps: the coordinator answers once all markers are written, this one while it was asked."""
    client = Client(server)
    assert await client.error(0, version=12) is ErrorCode.NONE
    client.coordinator.release.clear()
    response, work = client.send(0, version=12, epoch=1)
    assert work is not None
    waiting = asyncio.create_task(work)
    await until(lambda: len(client.coordinator.asked) == 2)
    client.end(epoch=1)
    client.coordinator.release.set()
    await waiting
    (topic,) = (await asyncio.wait_for(response.produce(12), 20)).responses
    assert topic.partition_responses[0].error_code == ErrorCode.NONE
    assert len(client.coordinator.asked) == 3, "it is verified again, with a new guard"


async def test_a_batch_that_waits_for_its_verification_does_not_refer_to_the_connections_buffer(
    server: BrokerHandlers,
) -> None:
    client = Client(server)
    client.coordinator.release.clear()
    response = CollectedResponse()
    context = request_to(server.services, 11)
    now_ms = server.services.clock.wall_ms()
    records = batch(b"v", producer_id=PRODUCER, epoch=0, sequence=0, transactional=True, timestamp_ms=now_ms)
    parts = [PartitionProduceData(index=0, records=records)]
    data = [TopicProduceData(name=TOPIC, partition_data=parts)]
    request = hot_produce_request(ProduceRequest(transactional_id="b", acks=-1, timeout_ms=9000, topic_data=data), 11)
    buffer = request.topics[0].partitions[0].records
    assert buffer is not None
    work = produce.handle(context, request, response.pending)
    assert work is not None
    buffer[:] = bytes(buffer.nbytes)  # the next request arrives
    client.coordinator.release.set()
    await asyncio.create_task(work)
    (topic,) = (await response.produce(11)).responses
    assert topic.partition_responses[0].error_code == 0


async def test_transactional_records_need_a_transactional_id_and_one_producer(server: BrokerHandlers) -> None:
    client = Client(server)
    assert await client.error(0, transactional_id=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    found = await client.answer(0, partitions=2, producers=(PRODUCER, PRODUCER + 1))
    assert [part.error_code for part in found] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert not client.coordinator.asked

    assert await client.error(0) is ErrorCode.NONE  # from now on the batch of the first producer needs no verification
    found = await client.answer(1, partitions=2, producers=(PRODUCER, PRODUCER + 1))
    assert [part.error_code for part in found] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert len(client.coordinator.asked) == 1


async def test_records_outside_a_transaction_are_not_verified_and_not_accepted_within_one(
    server: BrokerHandlers,
) -> None:
    client = Client(server)
    for transactional_id in (None, "billing"):
        sequence = int(transactional_id is not None)
        assert await client.error(sequence, transactional=False, transactional_id=transactional_id) is ErrorCode.NONE
    assert not client.coordinator.asked
    assert client.send(2, transactional=False, transactional_id=None)[1] is None, "it is served in the same turn"
    assert await client.error(3) is ErrorCode.NONE
    assert client.send(4)[1] is None, "its transaction is open: it is served in the same turn"
    assert await client.error(5, transactional=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE])
async def test_a_request_that_is_served_in_slices_is_verified_too(server: BrokerHandlers, error: ErrorCode) -> None:
    client = Client(server, error)
    now_ms = server.services.clock.wall_ms()
    records = batch(b"v", producer_id=PRODUCER, epoch=0, sequence=0, transactional=True, timestamp_ms=now_ms)
    parts = [PartitionProduceData(index=index, records=bytes(records)) for index in range(3)]
    data = [TopicProduceData(name=TOPIC, partition_data=parts)]
    body = codec.encode_request(
        ApiKey.PRODUCE, 11, ProduceRequest(transactional_id="b", acks=-1, timeout_ms=9000, topic_data=data)
    )
    context = request_to(server.services, 11)
    response = CollectedResponse()
    await asyncio.create_task(produce.handle_long(context, bytearray(body), 0, response.pending))
    (topic,) = (await response.produce(11)).responses
    assert [part.error_code for part in topic.partition_responses] == [error] * 3
    assert len(client.coordinator.asked) == 1 and len(client.coordinator.asked[0][3]) == 3
