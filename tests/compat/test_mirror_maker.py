"""MirrorMaker 2, from its jars, between a real Kafka and Ottla, in both directions at once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.pipeline.jars import JarsNotFound
from tests.support.jvm import SHORT_RUN, java
from tests.support.kafka_jars import mirror_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.topics import ReadRow, create_topic, read_with_librdkafka

pytestmark = [pytest.mark.external, pytest.mark.slow]
RECORDS, PARTITIONS = 300, 2
WAIT_S = 150.0
PROPERTIES = """\
clusters=kafka,ottla
kafka.bootstrap.servers={kafka}
ottla.bootstrap.servers={ottla}
kafka->ottla.enabled=true
kafka->ottla.topics={to_ottla}
kafka->ottla.groups={group}
ottla->kafka.enabled=true
ottla->kafka.topics={to_kafka}
ottla->kafka.groups={group}
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
offset.lag.max=0
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
refresh.groups.interval.seconds=2
refresh.topics.interval.seconds=5
sync.topic.acls.interval.seconds=1
"""
Copied = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def send(bootstrap: str, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for n in range(first, first + count):
        producer.produce(
            topic,
            b"value %d" % n,
            b"key %d" % (n % 7) if n % 5 else None,
            partition=n % PARTITIONS,
            timestamp=1_431_856_800_000 + n,
            headers=[("n", b"%d" % n), ("empty", None)],
        )
    assert producer.flush(30) == 0


def commit_end(bootstrap: str, topic: str, group: str) -> None:
    """Commit the ends of the partitions as a group's offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    ends = [TopicPartition(topic, index, RECORDS // PARTITIONS) for index in range(PARTITIONS)]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()


def committed(bootstrap: str, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return [each.offset for each in consumer.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], 20)]
    finally:
        consumer.close()


def rows_of(bootstrap: str, topic: str) -> list[list[Copied]]:
    """Return what a reader sees of each partition, in order."""

    def copied(row: ReadRow) -> Copied:
        return row.key, row.value, row.timestamp_ms, row.headers

    return [
        [copied(row) for row in read_with_librdkafka(bootstrap, topic, end_offset=1 << 60, partition=index)]
        for index in range(PARTITIONS)
    ]


def ends_of(bootstrap: str, topic: str) -> list[int]:
    """Return where the partitions of a topic end; all 0 while there is no such topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    try:
        known = consumer.list_topics(timeout=20).topics
        if topic not in known or len(known[topic].partitions) < PARTITIONS:
            return [0] * PARTITIONS
        return [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=20)[1] for n in range(PARTITIONS)]
    finally:
        consumer.close()


@contextmanager
def mirror_maker(directory: Path, properties: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run MirrorMaker until the end of the block, and kill it then."""
    try:
        jars = mirror_jars()
    except JarsNotFound as error:
        pytest.fail(f"the jars of MirrorMaker could not be fetched: {error}")
    file = directory / "mm2.properties"
    file.write_text(properties)
    command = [
        str(java()),
        "-Xmx512M",
        *SHORT_RUN,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{jars}/*",
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(file),
    ]
    with (directory / "mm2.log").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def test_topics_and_offsets_of_groups_are_mirrored_both_ways(
    tmp_path: Path, real_kafka: RealKafka, ottla_server: OttlaProcess, fresh: Callable[[str], str]
) -> None:
    to_ottla, to_kafka, group = fresh("to-ottla"), fresh("to-kafka"), fresh("team")
    ways = [
        (real_kafka.bootstrap, to_ottla, ottla_server.bootstrap, f"kafka.{to_ottla}"),
        (ottla_server.bootstrap, to_kafka, real_kafka.bootstrap, f"ottla.{to_kafka}"),
    ]
    for source, topic, _, _ in ways:
        create_topic(source, topic, partitions=PARTITIONS)
        send(source, topic, 0, RECORDS // 2)
    properties = PROPERTIES.format(
        kafka=real_kafka.bootstrap, ottla=ottla_server.bootstrap, to_ottla=to_ottla, to_kafka=to_kafka, group=group
    )
    with mirror_maker(tmp_path, properties) as process:

        def until_copied(what: str, holds: Callable[[], bool]) -> None:
            try:
                until(lambda: process.poll() is not None or holds(), timeout_s=WAIT_S, what=what)
            except TimeoutError as error:
                pytest.fail(f"{error}: {(tmp_path / 'mm2.log').read_text()[-3000:]}")
            assert process.poll() is None, (tmp_path / "mm2.log").read_text()[-3000:]

        for _, _, target, copy in ways:
            until_copied(f"half of {copy}", lambda: sum(ends_of(target, copy)) == RECORDS // 2)  # noqa: B023
        for source, topic, _, _ in ways:
            send(source, topic, RECORDS // 2, RECORDS // 2)
            commit_end(source, topic, group)
        for source, topic, target, copy in ways:
            until_copied(copy, lambda: sum(ends_of(target, copy)) == RECORDS)  # noqa: B023
            assert rows_of(target, copy) == rows_of(source, topic)
            until_copied(
                f"offsets of {group} on {copy}",
                lambda: all(0 < each <= RECORDS // PARTITIONS for each in committed(target, copy, group)),  # noqa: B023
            )
    errors = [line for line in (tmp_path / "mm2.log").read_text().splitlines() if "ACL" in line]
    assert not errors, "access lists are asked for every second; without an authorizer that is no error"
