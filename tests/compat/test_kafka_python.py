"""kafka-python, unmodified. It guesses the broker's version from the list of APIs and speaks the newest versions of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Where
from kafka.admin import KafkaAdminClient, NewTopic

from tests.conftest import Broker

pytestmark = pytest.mark.external
PATIENCE_MS = 20_000


@pytest.fixture
def created(broker: Broker, topic: str) -> str:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    finally:
        admin.close()
    return topic


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_produced_with_a_codec_are_consumed_unchanged(broker: Broker, created: str, codec: str | None) -> None:
    values = [b"%d " % number + b"squeeze me " * 10 for number in range(300)]
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type=codec, acks="all", linger_ms=20)
    try:
        sent = [producer.send(created, value, key=b"k", headers=[("h", b"v")], partition=0) for value in values]
        assert [each.get(20).offset for each in sent] == list(range(300))
    finally:
        producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE_MS
    )
    try:
        consumer.assign([Where(created, 0)])
        found = [next(consumer) for _ in values]
    finally:
        consumer.close()
    assert [record.value for record in found] == values
    assert {(record.key, tuple(record.headers)) for record in found} == {(b"k", (("h", b"v"),))}


def test_a_group_consumes_commits_and_goes_on_where_it_was(
    broker: Broker, created: str, fresh: Callable[[str], str]
) -> None:
    group = fresh("group")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(6):
        producer.send(created, b"%d" % number, partition=0).get(20)
    producer.close()

    def member() -> KafkaConsumer:
        return KafkaConsumer(
            created,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=PATIENCE_MS,
            max_poll_records=1,
        )

    first = member()
    assert [next(first).offset for _ in range(4)] == [0, 1, 2, 3]
    first.commit()
    first.close()
    second = member()
    try:
        assert [next(second).offset for _ in range(2)] == [4, 5]
        assert second.committed(Where(created, 0)) == 4
        assert second.beginning_offsets([Where(created, 0)]) == {Where(created, 0): 0}
        assert second.end_offsets([Where(created, 0)]) == {Where(created, 0): 6}
    finally:
        second.close()


def test_offsets_are_found_by_time(broker: Broker, created: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for at_ms in (1_000, 2_000, 3_000):
        producer.send(created, b"v", partition=1, timestamp_ms=at_ms).get(20)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    try:
        where = Where(created, 1)
        assert consumer.offsets_for_times({where: 1_500})[where].offset == 1
        assert consumer.offsets_for_times({where: 3_001})[where] is None
    finally:
        consumer.close()


def test_the_admin_client_lists_describes_and_deletes(broker: Broker, created: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        assert created in admin.list_topics()
        described = admin.describe_topics([created])
        assert sorted(part["partition_index"] for part in described[0]["partitions"]) == [0, 1]
        admin.delete_topics([created])
        assert created not in admin.list_topics()
    finally:
        admin.close()
