"""Compacts in a running broker: only last values remain, also if a process is killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import descendants, until

pytestmark = pytest.mark.slow

KEYS = 100
EAGER = ("-o", "log.cleaner.backoff.ms=50", "-o", "log.retention.check.interval.ms=100000")
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "300000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ottla"


def create(server: OttlaProcess, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values()
    made.result(20)


def produce(server: OttlaProcess, topic: str, count: int, *, first: int = 0) -> dict[bytes, bytes]:
    """Write `count` records over a hundred keys, and tombstones for every tenth key at the end; what is then true."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
    latest: dict[bytes, bytes] = {}
    for number in range(first, first + count):
        key, value = b"key %d" % (number % KEYS), b"%d " % number + os.urandom(150)
        producer.produce(topic, key=key, value=value)
        latest[key] = value
        if number % 500 == 0:
            assert producer.flush(20) == 0
    for number in range(0, KEYS, 10):
        producer.produce(topic, key=b"key %d" % number, value=None)
        latest.pop(b"key %d" % number, None)
    assert producer.flush(20) == 0
    return latest


def read(server: OttlaProcess, topic: str) -> tuple[dict[bytes, bytes], int]:
    """What the topic says of each key, and how many records it took to say it."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    latest: dict[bytes, bytes] = {}
    count = 0
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, "the end of the topic did not come"
            if message.error():
                return latest, count
            count += 1
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            if value is None:
                latest.pop(key, None)
            else:
                assert isinstance(value, bytes)
                latest[key] = value
    finally:
        consumer.close()


def compacted(server: OttlaProcess, topic: str) -> int:
    """How often the broker has said that it compacted a topic."""
    return len(re.findall(rf"{topic}-0 compacted in", server.log))


def cleaned_up_to(server: OttlaProcess, topic: str) -> int:
    """How far the cleaner's checkpoint says that compaction came."""
    found = re.search(rf"^{topic} 0 (\d+)$", (server.data / "cleaner-offset-checkpoint").read_text(), re.MULTILINE)
    return int(found[1]) if found else -1


def workers_of(pid: int) -> list[int]:
    """The cleaning processes of a broker."""
    return descendants(pid, running=b"ottla.storage.cleaning.worker")


def member(server: OttlaProcess, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )


def commit(consumer: Consumer, place: TopicPartition) -> None:
    """Commit one offset, once the client has found its coordinator."""

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._WAIT_COORD:
                raise
            return False
        return True

    until(is_committed, what="the coordinator")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
def test_only_the_last_value_of_each_key_is_left_and_the_worker_ends_when_idle(place: Path, durability: str) -> None:
    server = OttlaProcess(place, options=(*EAGER, "-o", f"durability={durability}")).start()
    try:
        create(server, "web", COMPACTED)
        latest = produce(server, "web", 20_000)
        until(lambda: compacted(server, "web") > 0, what="a compaction")
        latest = produce(server, "web", 5_000, first=20_000)
        until(lambda: cleaned_up_to(server, "web") > 20_100, what="another compaction")
        found, count = read(server, "web")
        assert found == latest
        assert count < 6_000
        until(lambda: not workers_of(server.pid), what="the end of the idle worker")
        files = sorted(path.name for path in (server.data / "web-0").glob("*.log*"))
        assert all(name.endswith((".log", ".deleted")) for name in files), files
        until(lambda: not list((server.data / "web-0").glob("*.deleted")), what="the removal of the old segments")
        server.restart()
        assert read(server, "web")[0] == latest
    finally:
        assert server.stop() == 0
    server.assert_log_is_clean()


def test_a_killed_worker_costs_nothing(place: Path) -> None:
    server = OttlaProcess(place, options=(*EAGER, "-o", "log.cleaner.io.max.bytes.per.second=2000000")).start()
    try:
        create(server, "web", COMPACTED)
        latest = produce(server, "web", 20_000)
        until(lambda: bool(workers_of(server.pid)), what="a worker")
        for worker in workers_of(server.pid):
            os.kill(worker, signal.SIGKILL)
        until(lambda: "the cleaner's process ended with -9" in server.log, what="the word of the worker's end")
        until(lambda: compacted(server, "web") > 0, what="a compaction after all")
        assert read(server, "web")[0] == latest
        names = [path.name for path in (server.data / "web-0").iterdir()]
        assert not [name for name in names if name.endswith(".swap")], names
    finally:
        assert server.stop() == 0
    server.assert_log_is_clean()


def test_a_broker_killed_while_cleaning_takes_its_worker_along_and_loses_nothing(place: Path) -> None:
    options = (*EAGER, "-o", "log.cleaner.io.max.bytes.per.second=1000000")
    server = OttlaProcess(place, options=options).start()
    create(server, "web", COMPACTED)
    latest = produce(server, "web", 20_000)
    for _ in range(3):
        until(lambda: any((server.data / "web-0").glob("*.cleaned")), what="a cleaning in the middle of its work")
        workers = workers_of(server.pid)
        server.kill()
        until(lambda workers=workers: not any(map(is_alive, workers)), what="the end of the worker")  # type: ignore[misc]
        server.start()
        assert not list((server.data / "web-0").glob("*.swap"))
        assert read(server, "web")[0] == latest
    server.stop()
    server.options = EAGER
    server.start()
    try:
        until(lambda: compacted(server, "web") > 0, what="a compaction after all")
        assert read(server, "web")[0] == latest
    finally:
        assert server.stop() == 0


def test_a_corrupt_log_is_named_and_left_alone_and_the_others_have_their_turn(place: Path) -> None:
    server = OttlaProcess(place, options=(*EAGER, "-o", "log.cleaner.threads=0")).start()
    latest = {}
    for topic in ("bad", "good"):
        create(server, topic, COMPACTED)
        latest[topic] = produce(server, topic, 10_000)
    assert server.stop() == 0
    segment = sorted((server.data / "bad-0").glob("*.log"))[2]
    corrupt = bytearray(segment.read_bytes())
    corrupt[len(corrupt) // 2] ^= 0x10
    segment.write_bytes(corrupt)
    before = sorted(path.name for path in (server.data / "bad-0").glob("*.log"))
    server.options = EAGER
    server.start()
    try:
        until(lambda: "bad-0 cannot be compacted" in server.log, what="the word of the corruption")
        assert segment.name in server.log.partition("bad-0 cannot be compacted")[2]
        until(lambda: cleaned_up_to(server, "good") > 8_000, what="the compaction of the other log")
        assert read(server, "good")[0] == latest["good"]
        left = sorted(path.name for path in (server.data / "bad-0").glob("*.log"))
        assert left[: len(before) - 1] == before[:-1]
        assert segment.read_bytes() == bytes(corrupt)
    finally:
        assert server.stop() == 0


def test_groups_find_their_offsets_after_the_offsets_topic_was_compacted(place: Path) -> None:
    options = (
        *EAGER,
        "-o",
        "offsets.topic.segment.bytes=1048576",
        "-o",
        "offsets.topic.num.partitions=1",
        "-o",
        "log.cleaner.min.cleanable.ratio=0.01",
    )
    server = OttlaProcess(place, options=options).start()
    try:
        create(server, "web", {})
        produce(server, "web", 100)
        members = [member(server, f"group {n}") for n in range(4)]
        for number in range(200):
            for n, consumer in enumerate(members):
                commit(consumer, TopicPartition("web", 0, (number + n) % 90, metadata="m" * 4000))
        until(lambda: cleaned_up_to(server, "__consumer_offsets") > 500, what="a compaction of the offsets")

        def committed() -> list[int]:
            found = []
            for n in range(4):
                asker = member(server, f"group {n}")
                found += [each.offset for each in asker.committed([TopicPartition("web", 0)], timeout=20)]
                asker.close()
            return found

        expected = [(199 + n) % 90 for n in range(4)]
        assert committed() == expected
        for consumer in members:
            consumer.close()
        server.restart()
        assert committed() == expected
        server.kill()
        server.start()
        assert committed() == expected
    finally:
        assert server.stop() == 0
