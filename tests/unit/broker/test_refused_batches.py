"""What follows a refused batch of an idempotent producer is refused too: nothing is there twice, none out of order."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ottla.broker.handlers import produce as produce_handler
from ottla.broker.refused_batches import BATCHES_MAX, REMEMBERED_S, RefusedBatches
from ottla.core.errors import ErrorCode
from ottla.testing.cluster import TestCluster
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.headers import parse_response_header
from tests.support.batches import Written, batch
from tests.support.hot_messages import CollectedResponse, hot_produce_request
from tests.support.storage import NOW_MS, StillClock
from tests.unit.broker.test_leader_changes import PRODUCE_VERSION, context, follower_of
from tests.unit.broker.test_replicated_topic import create, in_sync, leader_of, read, replica

pytestmark = pytest.mark.simulated_time

PRODUCER_ID = 7
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


def batch_of(sequence: int, *, epoch: int = 0, count: int = 2, producer_id: int = PRODUCER_ID) -> bytes:
    """Make a batch whose values are its sequence numbers."""
    records = [Written(str(sequence + index).encode()) for index in range(count)]
    return batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


async def send(cluster: TestCluster, node_id: int, sequence: int, *, epoch: int = 0, codec_id: int = 0) -> int:
    """Send a batch of two records; returns the error code."""
    records = batch(
        [Written(str(sequence + index).encode()) for index in range(2)],
        attributes=codec_id,
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    topic = TopicProduceData(name="web", partition_data=[PartitionProduceData(index=0, records=records)])
    asked = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    collected = CollectedResponse()
    produce_handler.handle(
        context(cluster, node_id, PRODUCE_VERSION), hot_produce_request(asked, PRODUCE_VERSION), collected.pending
    )
    frame = await asyncio.wait_for(collected.frame(), 10)
    _, at = parse_response_header(frame, ApiKey.PRODUCE, PRODUCE_VERSION)
    response = cast("ProduceResponse", codec.decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, frame, at))
    return response.responses[0].partition_responses[0].error_code


async def make_leader(cluster: TestCluster, node_id: int) -> None:
    """Kill the other broker, which leads."""
    await cluster.kill(leader_of(cluster))
    await cluster.until(lambda: leader_of(cluster) == node_id and replica(cluster, node_id).is_serving)


@pytest.mark.brokers(2)
@pytest.mark.options({"min.insync.replicas": "1"})
async def test_requests_in_flight_over_the_begin_of_a_term_are_appended_once_and_in_order(cluster: TestCluster) -> None:
    """The first two are refused, the third would have a gap: librdkafka would send all again in another epoch."""
    await create(cluster, factor=2)
    other = follower_of(cluster)
    assert await send(cluster, leader_of(cluster), 0) == NONE
    await in_sync(cluster, 2)
    assert [await send(cluster, other, 0), await send(cluster, other, 2)] == [NOT_LEADER] * 2
    await make_leader(cluster, other)
    assert [await send(cluster, other, 4), await send(cluster, other, 6)] == [NOT_LEADER] * 2
    assert [await send(cluster, other, sequence) for sequence in (0, 2, 4, 6)] == [NONE] * 4
    assert await read(cluster, 8) == list(range(8))


@pytest.mark.brokers(2)
@pytest.mark.options({"min.insync.replicas": "1"})
async def test_a_producer_that_the_new_leader_does_not_know_begins_with_its_first_batch(cluster: TestCluster) -> None:
    await create(cluster, factor=2)
    other = follower_of(cluster)
    assert await send(cluster, other, 0) == NOT_LEADER
    await make_leader(cluster, other)
    assert await send(cluster, other, 2) == NOT_LEADER
    assert [await send(cluster, other, 0), await send(cluster, other, 2)] == [NONE] * 2
    assert await read(cluster, 4) == list(range(4))


@pytest.mark.brokers(2)
@pytest.mark.options({"min.insync.replicas": "2"})
async def test_the_batches_after_one_that_lacked_replicas_wait_for_it(cluster: TestCluster) -> None:
    await create(cluster, factor=2)
    leader, other = leader_of(cluster), follower_of(cluster)
    assert await send(cluster, leader, 0) == NONE
    await cluster.kill(other)
    await in_sync(cluster, 1)
    assert await send(cluster, leader, 2, codec_id=1) == ErrorCode.NOT_ENOUGH_REPLICAS
    await cluster.restart(other)
    await in_sync(cluster, 2)
    assert await send(cluster, leader, 4, codec_id=1) == NOT_LEADER
    assert [await send(cluster, leader, 2), await send(cluster, leader, 4)] == [NONE] * 2
    refused = cluster.services(leader).refused_batches
    assert refused is not None
    assert await send(cluster, leader, 8) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not refused.batches


@pytest.mark.brokers(1)
async def test_a_refused_batch_is_forgotten_when_it_is_not_sent_again_in_time(cluster: TestCluster) -> None:
    await create(cluster, factor=1)
    partition, clock = replica(cluster, leader_of(cluster)), StillClock()
    refused = RefusedBatches(clock)
    refused.note(partition, memoryview(batch_of(0)))
    for sequence in range(2, 100, 2):  # those that follow do not make it longer
        clock.now_ms = NOW_MS + int(REMEMBERED_S * 10 * sequence)
        assert refused.refuses(partition, memoryview(batch_of(sequence)))
    clock.now_ms = NOW_MS + int(REMEMBERED_S * 1000)
    assert not refused.refuses(partition, memoryview(batch_of(100)))
    assert not refused.batches


@pytest.mark.brokers(1)
async def test_another_epoch_of_the_producer_ends_the_refusals(cluster: TestCluster) -> None:
    await create(cluster, factor=1)
    partition = replica(cluster, leader_of(cluster))
    refused = RefusedBatches(StillClock())
    refused.note(partition, memoryview(batch_of(0)))
    assert not refused.refuses(partition, memoryview(batch_of(0, epoch=1)))
    assert not refused.refuses(partition, memoryview(batch_of(2)))


@pytest.mark.brokers(1)
async def test_the_number_of_remembered_batches_is_bounded(cluster: TestCluster) -> None:
    await create(cluster, factor=1)
    partition = replica(cluster, leader_of(cluster))
    refused = RefusedBatches(StillClock())
    for producer_id in range(BATCHES_MAX + 5):
        refused.note(partition, memoryview(batch_of(0, producer_id=producer_id)))
    refused.note(partition, memoryview(batch(producer_id=-1)))
    assert len(refused.batches) == BATCHES_MAX
    assert not refused.refuses(partition, memoryview(batch_of(2, producer_id=4)))
    assert refused.refuses(partition, memoryview(batch_of(2, producer_id=5)))
