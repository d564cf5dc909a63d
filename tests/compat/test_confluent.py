"""confluent-kafka (librdkafka), unmodified."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"
# confluent-kafka ships types for its core only; its admin client is untyped and re-exports without saying so.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conftest import Broker

PATIENCE_S = 30
pytestmark = pytest.mark.external


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    """A topic of three partitions."""
    create(admin, topic, partitions=3)
    return topic


def create(admin: AdminClient, name: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    admin.create_topics([new])[name].result(PATIENCE_S)


def produce(broker: Broker, topic: str, values: list[bytes], *, partition: int = 0, **config: Any) -> list[Message]:
    """Send everything and return the delivery reports, which must all be good."""
    reports: list[Message] = []

    def reported(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "acks": "all"} | config)
    for value in values:
        producer.produce(topic, value=value, key=b"k", partition=partition, on_delivery=reported)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return reports


def read(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` messages, none of them an error."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), 0.5):
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count, f"{len(found)} of {count} messages came"
    return found


@pytest.fixture
def consumer_of(broker: Broker) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers and closes them afterwards."""
    made: list[Consumer] = []

    def make(group: str, **config: Any) -> Consumer:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        made.append(Consumer(settings | {"enable.auto.commit": False} | config))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_produced_with_a_codec_are_consumed_unchanged(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer], codec: str
) -> None:
    values = [b"%06d " % number + b"compressible " * 20 for number in range(2_000)]
    reports = produce(broker, created, values, **{"compression.type": codec})
    assert [report.offset() for report in reports] == list(range(2_000))
    consumer = consumer_of("direct")
    consumer.assign([TopicPartition(created, 0, 0)])
    messages = read(consumer, len(values))
    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(2_000))


def test_keys_headers_nulls_and_timestamps_come_back_as_they_went(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer]
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    headers = [("one", b"1"), ("one", b"again"), ("empty", b""), ("null", None)]
    at_ms = 1_700_000_000_123
    producer.produce(created, key=b"\x00key", value=None, headers=headers, timestamp=at_ms, partition=1)
    producer.produce(created, key=None, value=b"", timestamp=at_ms + 1, partition=1)
    assert producer.flush(PATIENCE_S) == 0
    consumer = consumer_of("direct")
    consumer.assign([TopicPartition(created, 1, 0)])
    first, second = read(consumer, 2)
    assert (first.key(), first.value(), first.headers(), first.timestamp()[1]) == (b"\x00key", None, headers, at_ms)
    assert (second.key(), second.value(), second.headers(), second.timestamp()[1]) == (None, b"", None, at_ms + 1)


def test_an_idempotent_producer_delivers_each_record_once_in_order(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer]
) -> None:
    values = [b"%d" % number for number in range(5_000)]
    reports = produce(broker, created, values, **{"enable.idempotence": True, "batch.num.messages": 50})
    assert [report.offset() for report in reports] == list(range(5_000))
    consumer = consumer_of("direct")
    consumer.assign([TopicPartition(created, 0, 0)])
    assert [message.value() for message in read(consumer, 5_000)] == values


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_second_member_takes_part_of_the_partitions_and_gives_them_back(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer], fresh: Callable[[str], str], strategy: str
) -> None:
    group = fresh("group")
    config = {"partition.assignment.strategy": strategy, "session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
    first, second = consumer_of(group, **config), consumer_of(group, **config)
    first.subscribe([created])
    owned_by(first, {0, 1, 2}, [first])
    second.subscribe([created])
    deadline = time.monotonic() + PATIENCE_S
    while not (mine(first) and mine(second) and mine(first) | mine(second) == {0, 1, 2}) or mine(first) & mine(second):
        assert time.monotonic() < deadline, (mine(first), mine(second))
        first.poll(0.1)
        second.poll(0.1)
    second.close()
    owned_by(first, {0, 1, 2}, [first])


def mine(consumer: Consumer) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


def owned_by(consumer: Consumer, partitions: set[int], all_consumers: list[Consumer]) -> None:
    """Poll until the consumer owns exactly these partitions."""
    deadline = time.monotonic() + PATIENCE_S
    while mine(consumer) != partitions:
        assert time.monotonic() < deadline, f"owns {mine(consumer)}, not {partitions}"
        for each in all_consumers:
            each.poll(0.1)


def test_committed_offsets_are_where_the_next_member_goes_on(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer], fresh: Callable[[str], str]
) -> None:
    group = fresh("group")
    produce(broker, created, [b"%d" % number for number in range(10)])
    first = consumer_of(group)
    first.subscribe([created])
    read(first, 4)
    first.commit(offsets=[TopicPartition(created, 0, 4, "so far")], asynchronous=False)
    first.close()
    second = consumer_of(group)
    second.subscribe([created])
    assert [message.offset() for message in read(second, 6)] == [4, 5, 6, 7, 8, 9]
    committed = second.committed([TopicPartition(created, 0)], PATIENCE_S)[0]
    assert (committed.offset, committed.metadata) == (4, "so far")


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer], fresh: Callable[[str], str], admin: AdminClient
) -> None:
    group = fresh("group")
    config = {"session.timeout.ms": 20_000, "heartbeat.interval.ms": 200}
    first = consumer_of(group, **config | {"group.instance.id": "one"})
    second = consumer_of(group, **config | {"group.instance.id": "two"})
    for consumer in (first, second):
        consumer.subscribe([created])
    deadline = time.monotonic() + PATIENCE_S
    while not (mine(first) and mine(second) and mine(first) | mine(second) == {0, 1, 2}) or mine(first) & mine(second):
        assert time.monotonic() < deadline
        first.poll(0.1)
        second.poll(0.1)
    held, first_held = mine(second), mine(first)
    revoked: list[Any] = []
    second.close()
    again = consumer_of(group, **config | {"group.instance.id": "two"})
    again.subscribe([created], on_revoke=lambda _, partitions: revoked.append(partitions))
    owned_by(again, held, [first, again])
    assert mine(first) == first_held
    assert not revoked


def test_the_admin_client_sees_what_it_created_and_changes_it(admin: AdminClient, created: str) -> None:
    described = admin.describe_topics(TopicCollection([created]))[created].result(PATIENCE_S)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert not described.is_internal
    metadata = admin.list_topics(timeout=PATIENCE_S)
    assert created in metadata.topics
    admin.create_partitions([NewPartitions(created, 5)])[created].result(PATIENCE_S)
    assert len(admin.list_topics(created, timeout=PATIENCE_S).topics[created].partitions) == 5
    admin.delete_topics([created])[created].result(PATIENCE_S)
    assert created not in admin.list_topics(timeout=PATIENCE_S).topics


def test_creating_a_topic_twice_and_wrongly_gets_kafkas_errors(admin: AdminClient, created: str) -> None:
    def error_of(new: NewTopic) -> int:
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([new])[new.topic].result(PATIENCE_S)
        return int(caught.value.args[0].code())

    assert error_of(NewTopic(created, 1, 1)) == KafkaError.TOPIC_ALREADY_EXISTS
    assert error_of(NewTopic(created + "-x", 0, 1)) == KafkaError.INVALID_PARTITIONS
    assert error_of(NewTopic(created + "-x", 1, 9)) == KafkaError.INVALID_REPLICATION_FACTOR
    assert error_of(NewTopic("no/slash", 1, 1)) == KafkaError.TOPIC_EXCEPTION
    assert error_of(NewTopic(created + "-x", 1, 1, config={"retention.ms": "soon"})) == KafkaError.INVALID_CONFIG
    assert error_of(NewTopic(created + "-x", 1, 1, config={"no.such": "1"})) == KafkaError.INVALID_CONFIG


def test_a_topics_settings_are_described_and_altered(admin: AdminClient, created: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, created)
    before = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    change = ConfigEntry("retention.ms", "1234567", incremental_operation=AlterConfigOpType.SET)
    both = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    changed = ConfigResource(ResourceType.TOPIC, created, incremental_configs=[change, both])
    admin.incremental_alter_configs([changed])[changed].result(PATIENCE_S)
    after = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert after["retention.ms"].value == "1234567"
    assert after["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert after["cleanup.policy"].value == "delete,compact"


def test_the_brokers_settings_are_described(admin: AdminClient) -> None:
    node = next(iter(admin.list_topics(timeout=PATIENCE_S).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(node))
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert found["log.segment.bytes"].value == "1073741824"
    assert found["num.partitions"].value == "1"


def test_the_cluster_is_described(admin: AdminClient, broker: Broker) -> None:
    cluster = admin.describe_cluster(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", broker.port)]
    assert cluster.controller.id == cluster.nodes[0].id
    assert cluster.cluster_id


def test_offsets_are_listed_by_place_and_by_time(admin: AdminClient, broker: Broker, created: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for at_ms in (1_000_000_000_000, 1_000_000_000_300, 1_000_000_000_200):
        producer.produce(created, b"v", partition=0, timestamp=at_ms)
        assert producer.flush(PATIENCE_S) == 0
    where = TopicPartition(created, 0)

    def offset(spec: OffsetSpec) -> int:
        futures = admin.list_offsets({where: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        return int(futures[where].result(PATIENCE_S).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(1_000_000_000_001)) == 1
    assert offset(OffsetSpec.for_timestamp(1_000_000_000_301)) == -1


def test_deleted_records_are_gone_and_the_log_starts_later(admin: AdminClient, broker: Broker, created: str) -> None:
    produce(broker, created, [b"%d" % number for number in range(10)])
    futures = admin.delete_records([TopicPartition(created, 0, 6)])
    deleted = next(iter(futures.values())).result(PATIENCE_S)
    assert deleted.low_watermark == 6
    where = TopicPartition(created, 0)
    assert admin.list_offsets({where: OffsetSpec.earliest()})[where].result(PATIENCE_S).offset == 6


def test_groups_are_listed_described_reset_and_deleted(
    admin: AdminClient, broker: Broker, created: str, consumer_of: Callable[..., Consumer], fresh: Callable[[str], str]
) -> None:
    group = fresh("group")
    produce(broker, created, [b"a", b"b", b"c"])
    member = consumer_of(group, **{"client.id": "the-client"})
    member.subscribe([created])
    read(member, 3)
    member.commit(asynchronous=False)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert group in {each.group_id for each in listed.valid}
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert described.state == ConsumerGroupState.STABLE
    assert [each.client_id for each in described.members] == ["the-client"]
    assert {part.partition for part in described.members[0].assignment.topic_partitions} == {0, 1, 2}
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(created, 0, 1)])
    admin.alter_consumer_group_offsets([change])[group].result(PATIENCE_S)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(created, 0)])
    offsets = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    assert [part.offset for part in offsets.topic_partitions] == [1]
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert group not in {each.group_id for each in listed.valid}


def test_a_topic_is_made_by_producing_to_it(broker: Broker, admin: AdminClient, topic: str) -> None:
    produce(broker, topic, [b"first"], partition=-1)
    assert topic in admin.list_topics(timeout=PATIENCE_S).topics


def test_an_offset_out_of_range_is_reset_as_the_consumer_wishes(
    broker: Broker, created: str, consumer_of: Callable[..., Consumer]
) -> None:
    produce(broker, created, [b"a", b"b"])
    consumer = consumer_of("direct", **{"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(created, 0, 99)])
    assert [message.offset() for message in read(consumer, 2)] == [0, 1]


def test_a_record_too_large_for_the_topic_is_refused(admin: AdminClient, broker: Broker, topic: str) -> None:
    create(admin, topic, config={"max.message.bytes": "1000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"x" * 5_000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
