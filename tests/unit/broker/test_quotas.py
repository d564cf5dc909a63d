"""Quotas of clients as they see them, in virtual time: the rates they get, and what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from ottla.client.connection import Connection
from ottla.core.error_codes import ErrorCode
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.generated.metadata import MetadataRequest
from tests.support.quotas import (
    TIMEOUT_S,
    alter_quotas,
    connect,
    described,
    fetch,
    fetched_bytes,
    produce,
    produce_request,
)

pytestmark = [pytest.mark.simulated_time, pytest.mark.brokers(1)]

TOPIC = "orders"
ENTITIES: tuple[Mapping[str, str | None], ...] = (
    {"client-id": "slow"},
    {"client-id": None},
    {"user": "ANONYMOUS"},
    {"user": None, "client-id": "slow"},
)


async def produced_in(connection: Connection, seconds: float, size: int) -> int:
    """Produce for so many seconds as fast as the broker allows; return the bytes."""
    loop = asyncio.get_running_loop()
    end, sent = loop.time() + seconds, 0
    while loop.time() < end:
        answer = await produce(connection, TOPIC, size)
        assert not answer.responses[0].partition_responses[0].error_code
        sent += size
    return sent


@pytest.mark.parametrize("entity", ENTITIES, ids=str)
async def test_a_producer_gets_its_rate(cluster: TestCluster, entity: Mapping[str, str | None]) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    await alter_quotas(cluster, entity, producer_byte_rate=10_000)
    connection = await connect(cluster, "slow")
    await produced_in(connection, 30, 5_000)  # past the first burst
    sent = await produced_in(connection, 300, 5_000)
    assert sent / 300 == pytest.approx(10_000, rel=0.04)  # the rest of a request is its header
    await connection.close()


async def test_a_consumer_gets_its_rate(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    connection = await connect(cluster, "slow")
    await produce(connection, TOPIC, 5_000)
    await alter_quotas(cluster, {"client-id": "slow"}, consumer_byte_rate=50_000)
    loop = asyncio.get_running_loop()
    begin, end, taken, empty = loop.time() + 30, loop.time() + 330, 0, 0
    while loop.time() < end:
        answer = await fetch(connection, TOPIC, size=1 << 20)
        size = fetched_bytes(answer)
        assert (size == 0) == (answer.throttle_time_ms > 0)
        empty += size == 0
        taken += size if loop.time() >= begin else 0
    assert taken / 300 == pytest.approx(50_000, rel=0.03)
    assert empty
    await connection.close()


async def test_the_throttle_time_is_in_the_response_and_the_next_request_waits(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    connection = await connect(cluster, "slow")
    await produce(connection, TOPIC, 50_000)
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=1_000)  # of the next request on
    answer = await produce(connection, TOPIC, 50_000)  # 10 windows of 1,000 are within the quota
    throttle_s = answer.throttle_time_ms / 1000
    assert throttle_s == pytest.approx(40, rel=0.02)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    metadata = await connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=TIMEOUT_S)
    assert loop.time() - begin == pytest.approx(throttle_s, abs=0.1)
    assert metadata.throttle_time_ms == 0
    await connection.close()


async def test_another_client_is_not_delayed_by_one_at_ten_times_its_quota(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=10_000, consumer_byte_rate=50_000)
    slow = [await connect(cluster, "slow") for _ in range(10)]
    flood = [asyncio.create_task(produced_in(each, 60, 10_000)) for each in slow]
    innocent = await connect(cluster, "innocent")
    loop = asyncio.get_running_loop()
    longest = 0.0
    for _ in range(300):
        begin = loop.time()
        answer = await produce(innocent, TOPIC, 10_000)
        longest = max(longest, loop.time() - begin)
        assert answer.throttle_time_ms == 0
        await asyncio.sleep(0.2)
    assert longest < 1
    assert sum(await asyncio.gather(*flood)) / 60 < 2 * 10_000 + 10 * 10_000 / 60
    for each in [*slow, innocent]:
        await each.close()


async def test_a_change_counts_at_once_and_the_one_that_waits_waits_on(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=1_000)
    connection = await connect(cluster, "slow")
    answer = await produce(connection, TOPIC, 30_000)
    assert answer.throttle_time_ms > 15_000
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=1_000_000)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    answer = await produce(connection, TOPIC, 30_000)
    assert loop.time() - begin == pytest.approx(20, rel=0.05)
    assert answer.throttle_time_ms == 0
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=None)
    assert cluster.brokers[1]._driver is not None and cluster.brokers[1]._driver._accounting is None
    assert (await produce(connection, TOPIC, 300_000)).throttle_time_ms == 0
    await connection.close()


async def test_quotas_are_there_after_a_restart(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    await alter_quotas(cluster, {"user": "a b", "client-id": None}, producer_byte_rate=1024, request_percentage=12.5)
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=1000)
    before = await described(cluster)
    assert before == {
        (("user", "a b"), ("client-id", None)): {"producer_byte_rate": 1024, "request_percentage": 12.5},
        (("client-id", "slow"),): {"producer_byte_rate": 1000},
    }
    await cluster.stop(1)
    await cluster.restart(1)
    assert await described(cluster) == before
    connection = await connect(cluster, "slow")
    assert (await produce(connection, TOPIC, 50_000)).throttle_time_ms > 30_000
    await connection.close()


async def test_a_client_that_connects_again_does_not_wait_but_has_used_what_it_used(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=1_000)
    for _ in range(2):
        connection = await connect(cluster, "slow")
        answer = await produce(connection, TOPIC, 30_000)
        await connection.close()
    assert answer.throttle_time_ms == pytest.approx(50_000, rel=0.1)


async def test_without_a_response_the_client_waits_all_the_same(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, configs={"retention.ms": "-1"})
    await alter_quotas(cluster, {"client-id": "slow"}, producer_byte_rate=1_000)
    connection = await connect(cluster, "slow")
    await connection.send_only(ApiKey.PRODUCE, produce_request(TOPIC, 30_000, acks=0), at_most=12)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=TIMEOUT_S)
    assert loop.time() - begin == pytest.approx(20, rel=0.05)
    await connection.close()


# ---- Mutations of the controller


async def create(connection: Connection, name: str, partitions: int, *, at_most: int = 7) -> CreateTopicsResponse:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    answer: CreateTopicsResponse = await connection.request(
        ApiKey.CREATE_TOPICS, request, timeout_s=TIMEOUT_S, at_most=at_most
    )
    return answer


async def test_partitions_above_the_quota_of_mutations_are_refused_and_later_created(cluster: TestCluster) -> None:
    await alter_quotas(cluster, {"client-id": "slow"}, controller_mutation_rate=1)
    connection = await connect(cluster, "slow")
    first = await create(connection, "first", 15)  # of a burst of 11: one request may overdraw it
    assert (first.topics[0].error_code, first.throttle_time_ms) == (0, 0)
    second = await create(connection, "second", 1)
    assert second.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert second.topics[0].error_message == "The throttling quota has been exceeded."
    assert second.throttle_time_ms == pytest.approx(4000, abs=200)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    more = CreatePartitionsTopic(name="first", count=16, assignments=None)
    grown = await connection.request(
        ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=[more], timeout_ms=30_000), timeout_s=TIMEOUT_S
    )
    assert loop.time() - begin == pytest.approx(4, abs=0.3)  # it waited for the throttle time
    assert (grown.results[0].error_code, grown.throttle_time_ms) == (0, 0)
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="first")], timeout_ms=30_000)
    deleted = await connection.request(ApiKey.DELETE_TOPICS, deletion, timeout_s=TIMEOUT_S)
    assert deleted.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    deleted = await connection.request(ApiKey.DELETE_TOPICS, deletion, timeout_s=TIMEOUT_S)
    assert deleted.responses[0].error_code == ErrorCode.NONE
    await connection.close()


async def test_an_older_client_creates_its_partitions_and_waits(cluster: TestCluster) -> None:
    await alter_quotas(cluster, {"client-id": "slow"}, controller_mutation_rate=1)
    connection = await connect(cluster, "slow")
    for name, throttle_ms in (("a", 4000), ("b", 5000)):  # 15 of 11, and 5 more once the bucket is at 0
        answer = await create(connection, name, 15 if name == "a" else 5, at_most=5)
        assert answer.topics[0].error_code == 0
        assert answer.throttle_time_ms == pytest.approx(throttle_ms, abs=300)
    await connection.close()


async def test_what_is_refused_for_another_reason_costs_no_mutations(cluster: TestCluster) -> None:
    await alter_quotas(cluster, {"client-id": "slow"}, controller_mutation_rate=1)
    connection = await connect(cluster, "slow")
    assert (await create(connection, "a/b", 1_000)).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await create(connection, "a", 1)).topics[0].error_code == ErrorCode.NONE
    await connection.close()


@pytest.mark.brokers(2)
async def test_a_client_of_another_broker_waits_as_the_controller_says(cluster: TestCluster) -> None:
    other = next(node_id for node_id in cluster.brokers if node_id != cluster.controller)
    await alter_quotas(cluster, {"client-id": "slow"}, other, controller_mutation_rate=1)
    connection = await connect(cluster, "slow", other)
    await create(connection, "first", 15)
    refused = await create(connection, "second", 1)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=TIMEOUT_S)
    assert loop.time() - begin == pytest.approx(refused.throttle_time_ms / 1000, abs=0.1)
    await connection.close()


# ---- The time of the event loop


async def test_a_client_gets_its_share_of_the_loops_time(cluster: TestCluster) -> None:
    await alter_quotas(cluster, {"client-id": "slow"}, request_percentage=10)
    quotas = cluster.brokers[1]._driver._accounting.quotas  # type: ignore[union-attr]
    loop, turns = asyncio.get_running_loop(), 0

    def now() -> float:  # each request takes 10 ms: virtual time stands still within a turn of the loop
        nonlocal turns
        turns += 1
        return loop.time() + turns * 0.005

    quotas.now = now
    connection = await connect(cluster, "slow")
    requests, begin = 0, loop.time()
    while loop.time() < begin + 100:
        answer = await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)
        assert answer.throttle_time_ms <= 1000
        requests += 1
    assert requests and answer.throttle_time_ms > 0
    innocent = await connect(cluster, "innocent")
    answer = await innocent.request(ApiKey.METADATA, MetadataRequest(topics=[]), timeout_s=TIMEOUT_S)
    assert answer.throttle_time_ms == 0
    for each in (connection, innocent):
        await each.close()
