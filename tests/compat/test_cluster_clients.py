"""The clients of the package index against three brokers, while the leaders of their partitions are killed."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"
# confluent-kafka ships types for its core only.

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from ottla.broker.fetch.replica_selector import RACK_AWARE_SELECTOR
from ottla.core.ids import OFFSETS_TOPIC
from ottla.testing.cluster import TestCluster
from ottla.wire.generated.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.test_leader_changes import RACKS
from tests.unit.broker.test_replicated_topic import create, in_sync, leader_of, send

pytestmark = pytest.mark.external
RECORDS = 400
PATIENCE_S = 20.0
SEND_PAUSE_S = 0.003

Work = Callable[[str, "Progress"], list[int]]
"""Produces and consumes against the bootstrap addresses; returns the values consumed, in order of arrival."""


async def create_groups(cluster: TestCluster) -> None:
    """Have the topic of groups created: it needs all three brokers."""
    request = FindCoordinatorRequest(key="team", key_type=0)
    await cluster.handlers(cluster.controller).call("find_coordinator", 3, request)
    await cluster.known_everywhere(OFFSETS_TOPIC)


class Progress:
    """Shows the test how far a client has come."""

    def __init__(self) -> None:
        self.sent = 0
        self.is_over = threading.Event()


def confluent(bootstrap: str, progress: Progress) -> list[int]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
    failed: list[Any] = []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "team", "auto.offset.reset": "earliest"})
    consumer.subscribe(["web"])
    found: list[int] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failed.append((error, message.value()))

    deadline = time.monotonic() + PATIENCE_S
    while len(found) < RECORDS and time.monotonic() < deadline:
        if progress.sent < RECORDS:
            producer.produce("web", str(progress.sent).encode(), partition=0, on_delivery=delivered)
            progress.sent += 1
            time.sleep(SEND_PAUSE_S)
        producer.poll(0)
        message = consumer.poll(0 if progress.sent < RECORDS else 0.2)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b""))
    assert producer.flush(10) == 0
    assert not failed
    consumer.close()
    return found


def kafka_python(bootstrap: str, progress: Progress) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", retries=20, linger_ms=2)
    sent = []
    for value in range(RECORDS):
        sent.append(producer.send("web", str(value).encode(), partition=0))
        progress.sent += 1
        time.sleep(SEND_PAUSE_S)
    for each in sent:
        each.get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        "web",
        bootstrap_servers=bootstrap.split(","),
        group_id="team",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    found: list[int] = []
    for message in consumer:
        found.append(int(message.value))
        if len(set(found)) == RECORDS:
            break
    consumer.close()
    return found


def aiokafka(bootstrap: str, progress: Progress) -> list[int]:
    async def run() -> list[int]:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=2) as producer:
            sent = []
            for value in range(RECORDS):
                sent.append(await producer.send("web", str(value).encode(), partition=0))
                progress.sent += 1
                await asyncio.sleep(SEND_PAUSE_S)
            await asyncio.gather(*sent)
        found: list[int] = []
        async with AIOKafkaConsumer(
            "web", bootstrap_servers=bootstrap, group_id="team", auto_offset_reset="earliest"
        ) as consumer:
            while len(found) < RECORDS:
                message = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                found.append(int(message.value or b""))
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize(("work", "is_idempotent"), [(confluent, True), (kafka_python, False), (aiokafka, True)])
@pytest.mark.timeout(120)
async def test_nothing_is_lost_when_the_leader_goes(
    cluster: TestCluster, work: Work, *, is_idempotent: bool, is_killed: bool
) -> None:
    await create(cluster)
    await create_groups(cluster)
    progress = Progress()
    working = asyncio.ensure_future(asyncio.to_thread(work, cluster.bootstrap, progress))
    await cluster.until(lambda: progress.sent > RECORDS // 3 or working.done(), seconds=PATIENCE_S)
    was = leader_of(cluster)
    await (cluster.kill(was) if is_killed else cluster.stop(was))
    found = await asyncio.wait_for(working, 2 * PATIENCE_S)
    assert sorted(set(found)) == list(range(RECORDS))
    if is_idempotent:
        assert found == list(range(RECORDS))
    await cluster.restart(was)
    await in_sync(cluster, 3)


async def test_the_admin_client_uses_any_broker_and_sees_the_cluster(cluster: TestCluster) -> None:
    def administer(bootstrap: str) -> None:
        for address in bootstrap.split(","):
            admin = AdminClient({"bootstrap.servers": address})
            listed = admin.list_topics(timeout=10)
            assert len(listed.brokers) == 3
        made = admin.create_topics([NewTopic("made", 6, 3)])
        made["made"].result(10)
        described = admin.describe_cluster().result(10)
        assert len(described.nodes) == 3

    await asyncio.to_thread(administer, cluster.bootstrap)
    await cluster.known_everywhere("made")
    topic = cluster.services(1).cluster.current.topics["made"]
    assert all(sorted(partition.isr) == [1, 2, 3] for partition in topic.partitions)
    assert OFFSETS_TOPIC not in cluster.services(1).cluster.current.topics


@pytest.mark.options({"replica.selector.class": RACK_AWARE_SELECTOR})
@pytest.mark.own_options(RACKS)
async def test_a_client_with_a_rack_reads_from_the_follower_in_it(cluster: TestCluster) -> None:
    """KIP-392, by librdkafka's own account of where it fetches from; without the follower it reads from the leader."""

    def consume(bootstrap: str, rack: str, count: int) -> tuple[list[int], int]:
        """Return the values, and the broker that they came from."""
        places: list[int] = []

        def note(statistics: str) -> None:
            partitions = json.loads(statistics)["topics"].get("web", {}).get("partitions", {})
            places.extend(each["broker"] for index, each in partitions.items() if index == "0")

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": rack,
                "client.rack": rack,
                "fetch.wait.max.ms": 100,
                "statistics.interval.ms": 50,
                "stats_cb": note,
            }
        )
        consumer.assign([TopicPartition("web", 0, 0)])
        deadline = time.monotonic() + PATIENCE_S
        found: list[int] = []
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b""))
        seen = len(places)
        while len(places) < seen + 2 and time.monotonic() < deadline:
            consumer.poll(0.05)
        consumer.close()
        return found, places[-1]

    await create(cluster)
    await send(cluster, range(100))
    leader = leader_of(cluster)
    other = next(node for node in cluster.brokers if node != leader)
    values = list(range(100))
    assert await asyncio.to_thread(consume, cluster.bootstrap, f"rack-{other}", 100) == (values, other)
    assert await asyncio.to_thread(consume, cluster.bootstrap, "elsewhere", 100) == (values, leader)
    await cluster.kill(other)
    await cluster.until(lambda: other not in cluster.services(leader).cluster.current.brokers)
    assert await asyncio.to_thread(consume, cluster.bootstrap, f"rack-{other}", 100) == (values, leader)
