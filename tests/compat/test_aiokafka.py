"""aiokafka, unmodified. It speaks the oldest versions of the APIs that are still served."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Where
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.conftest import Broker

pytestmark = pytest.mark.external
PATIENCE_S = 40


async def create(broker: Broker, topic: str, partitions: int = 2) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_records_produced_with_a_codec_are_consumed_unchanged(
    broker: Broker, topic: str, codec: str | None
) -> None:
    await create(broker, topic)
    values = [b"%d " % number + b"squeeze me " * 10 for number in range(300)]
    async with AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, compression_type=codec, acks="all", linger_ms=5
    ) as producer:
        reports = [await producer.send(topic, value, key=b"k", headers=[("h", b"v")], partition=1) for value in values]
        assert [(await report).offset for report in reports] == list(range(300))
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([Where(topic, 1)])
        found = [await consumer.getone() for _ in values]
    finally:
        await consumer.stop()
    assert [record.value for record in found] == values
    assert {(record.key, record.headers) for record in found} == {(b"k", (("h", b"v"),))}


async def test_an_idempotent_producer_delivers_in_order(broker: Broker, topic: str) -> None:
    await create(broker, topic, 1)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
        reports = [await producer.send(topic, b"%d" % number) for number in range(500)]
        assert [(await report).offset for report in reports] == list(range(500))


async def test_two_members_share_the_partitions_and_go_on_from_the_commit(
    broker: Broker, topic: str, fresh: Callable[[str], str]
) -> None:
    group = fresh("group")

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=6000,
            metadata_max_age_ms=1000,
        )

    await create(broker, topic)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for partition in (0, 0, 0, 1, 1, 1):
            await producer.send_and_wait(topic, b"v", partition=partition)
    first, second = member(), member()
    await first.start()
    await second.start()
    while not (len(first.assignment()) == len(second.assignment()) == 1):
        await first.getmany(timeout_ms=100)
        await second.getmany(timeout_ms=100)
    assert first.assignment() | second.assignment() == {Where(topic, 0), Where(topic, 1)}
    await first.commit(dict.fromkeys(first.assignment(), 2))
    await second.commit(dict.fromkeys(second.assignment(), 2))
    await second.stop()
    await first.stop()
    third = member()
    await third.start()
    try:
        found = {(record.partition, record.offset) for record in [await third.getone(), await third.getone()]}
    finally:
        await third.stop()
    assert found == {(0, 2), (1, 2)}
