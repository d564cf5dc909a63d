"""Topics of every kind, written through a foreign client to whichever broker, and read back record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from tests.support.processes import until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = {"segment.bytes": str(1 << 20)}
TIME_MS = 1_700_000_000_000
COMPACTED = "compacted"
PATIENCE_S = 30.0
EARLIEST, LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
PASSING = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "NOT_LEADER_FOR_PARTITION",
)
LONG_AGO_IS_FINE = {"retention.ms": "-1"}


class Row(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    time: tuple[int, int]  # kind and milliseconds
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


Everything = dict[tuple[str, int], list[Row]]


def client(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0, **more}


def administer(bootstrap: str, work: Callable[[AdminClient], dict[Any, Any]]) -> dict[Any, Any]:
    """Ask for something and wait until all of it is done: what each future gave."""
    admin = AdminClient(client(bootstrap))  # it must live until the last future has its result
    return {about: future.result(PATIENCE_S) for about, future in work(admin).items()}


def create(bootstrap: str, *topics: NewTopic) -> None:
    administer(bootstrap, lambda admin: admin.create_topics(list(topics)))


def write_all_kinds(bootstrap: str) -> None:
    """Several segments, every codec, both kinds of time, headers, nulls, a compacted topic, a moved start, a group."""
    create(
        bootstrap,
        NewTopic("plain", 3, 1, config={**SMALL, **LONG_AGO_IS_FINE}),
        *(NewTopic(codec, 1, 1, config=SMALL | LONG_AGO_IS_FINE) for codec in CODECS),
        NewTopic("arrival", 1, 1, config={"message.timestamp.type": "LogAppendTime"}),
        NewTopic(COMPACTED, 1, 1, config={"cleanup.policy": "compact", **SMALL}),
        NewTopic("cut", 1, 1, config=LONG_AGO_IS_FINE),
        NewTopic("empty", 2, 1),
    )
    write_records(bootstrap, "plain", 900, partitions=3)
    for codec in CODECS:
        write_records(bootstrap, codec, 300, codec=codec)
    for topic in ("arrival", "cut"):
        write_records(bootstrap, topic, 50)
    write_keys(bootstrap, COMPACTED, 3_000)
    administer(bootstrap, lambda admin: admin.delete_records([TopicPartition("cut", 0, 17)]))
    commit(bootstrap, "team", [TopicPartition("plain", at, 5 + at) for at in range(3)])


def write_records(bootstrap: str, topic: str, count: int, *, codec: str = "none", partitions: int = 1) -> None:
    """Records with headers, with null keys and with null values, by an idempotent producer, in small batches."""
    producer = Producer(client(bootstrap, **{"enable.idempotence": True, "compression.type": codec, "linger.ms": 5}))
    failed: list[object] = []
    for at in range(count):
        producer.produce(
            topic,
            value=None if at % 11 == 0 else b"value %d of %s " % (at, topic.encode()) * (200 if at % 3 else 1),
            key=None if at % 7 == 0 else b"key %d" % (at % 13),
            partition=at % partitions,
            headers=[("first", b"%d" % at), ("nothing", None)] if at % 5 == 0 else [],
            timestamp=TIME_MS + at * 10 - (at % 4) * 25,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if at % 50 == 49:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed[0]


def write_keys(bootstrap: str, topic: str, count: int) -> None:
    """A few keys again and again, over several segments; the last of some is a tombstone."""
    producer = Producer(client(bootstrap, **{"linger.ms": 5}))
    for at in range(count):
        producer.produce(topic, key=b"%d" % (at % 17), value=b"%d " % at * 300, partition=0)
        if at % 100 == 99:
            producer.flush(PATIENCE_S)
    producer.produce(topic, key=b"3", value=None, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def commit(bootstrap: str, group: str, offsets: list[TopicPartition]) -> None:
    consumer = Consumer(client(bootstrap, **{"group.id": group}))

    def taken() -> bool:
        try:
            return bool(consumer.commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:  # the coordinator may not have been elected yet
            if not error.args[0].retriable() and error.args[0].name() not in PASSING:
                raise
            return False

    until(taken, what=f"a commit of {group}")
    consumer.close()


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer(client(bootstrap, **{"group.id": group}))
    found = consumer.committed([TopicPartition(topic, at) for at in range(partitions)], timeout=PATIENCE_S)
    consumer.close()
    return [each.offset for each in found]


def partitions_of(bootstrap: str) -> list[tuple[str, int]]:
    """Every partition of every topic that is not internal."""
    topics = AdminClient(client(bootstrap)).list_topics(timeout=PATIENCE_S).topics
    return sorted((name, at) for name, topic in topics.items() if not name.startswith("__") for at in topic.partitions)


def ends(bootstrap: str, which: OffsetSpec, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    asked = {TopicPartition(*each): which for each in partitions}
    found: dict[tuple[str, int], int] = {}

    def answered() -> bool:
        try:
            offsets = administer(bootstrap, lambda admin: admin.list_offsets(asked))
        except KafkaException as error:  # a broker that has just started may still be elected
            if not error.args[0].retriable() and error.args[0].name() not in PASSING:
                raise
            return False
        found.update({(tp.topic, tp.partition): each.offset for tp, each in offsets.items()})
        return True

    until(answered, what="an answer to ListOffsets")
    return found


def read_all(bootstrap: str, *, isolation: str = "read_uncommitted") -> Everything:
    """Every record of every topic, from each partition's start to its end."""
    partitions = partitions_of(bootstrap)
    first, last = (ends(bootstrap, each, partitions) for each in (EARLIEST, LATEST))
    found: Everything = {each: [] for each in partitions}
    open_ones = {each for each in partitions if first[each] < last[each]}
    settings = {"group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True, "check.crcs": True}
    consumer = Consumer(client(bootstrap, **settings))
    consumer.assign([TopicPartition(*each, first[each]) for each in sorted(open_ones)])
    while open_ones:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"no more came, with {sorted(open_ones)} not at the end"
        where = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is not None:
            assert error.name() == "_PARTITION_EOF", error
            open_ones.discard(where)
            continue
        fields: tuple[Any, ...] = (
            message.offset(),
            message.timestamp(),
            message.key(),
            message.value(),
            message.headers() or [],
        )
        found[where].append(Row(*fields))
    consumer.close()
    return found


def topic_ids(bootstrap: str) -> dict[str, str]:
    names = TopicCollection(sorted({topic for topic, _ in partitions_of(bootstrap)}))
    found = administer(bootstrap, lambda admin: admin.describe_topics(names))
    return {name: str(described.topic_id) for name, described in found.items()}


def own_settings(bootstrap: str, topic: str) -> dict[str, str]:
    """What was set for the topic itself."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (found,) = administer(bootstrap, lambda admin: admin.describe_configs([resource])).values()
    dynamic_topic_config = 1
    return {name: entry.value for name, entry in found.items() if entry.source == dynamic_topic_config}
