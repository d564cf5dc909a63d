"""librdkafka with `group.protocol=consumer` (KIP-848) against a running broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.conftest import Broker

pytestmark = pytest.mark.slow
PATIENCE_S = 40
PARTITIONS = 6


class Member:
    """A consumer that a thread polls; the thread copies its assignment and what it read."""

    def __init__(self, broker: Broker, group: str, topics: list[str], **config: Any) -> None:
        self.read: list[tuple[int, int]] = []
        self.errors: list[str] = []
        self.partitions: set[tuple[str, int]] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
            | config
        )
        self._consumer.subscribe(topics)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            self.partitions = {(each.topic, each.partition) for each in self._consumer.assignment()}
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            self.read.append((partition, offset))
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                self.errors.append(str(error))

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._consumer.close()


@pytest.fixture
def joined(broker: Broker) -> Iterator[Callable[..., Member]]:
    with ExitStack() as stack:

        def join(group: str, topics: list[str], **config: Any) -> Member:
            member = Member(broker, group, topics, **config)
            stack.callback(member.close)
            return member

        yield join


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.05)


def create(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result(PATIENCE_S)


def produce(broker: Broker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def test_members_share_the_partitions_and_read_everything_once(
    broker: Broker, topic: str, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    create(broker, topic)
    produce(broker, topic, 600)
    group = fresh("group")
    first = joined(group, [topic])
    eventually(lambda: len(first.partitions) == PARTITIONS, "the first member's assignment")
    second, third = joined(group, [topic]), joined(group, [topic])
    members = [first, second, third]
    eventually(lambda: [len(member.partitions) for member in members] == [2, 2, 2], "the rebalance")
    assert len(set[tuple[str, int]]().union(*(member.partitions for member in members))) == PARTITIONS
    produce(broker, topic, 600)
    eventually(lambda: len({read for member in members for read in member.read}) == 1_200, "reading everything")
    reads = [read for member in members for read in member.read]
    assert len(reads) == len(set(reads)), "a committed record was read again"
    assert [member.errors for member in members] == [[], [], []]


def test_the_group_is_described_and_listed_as_a_consumer_group(
    broker: Broker, topic: str, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    create(broker, topic)
    group = fresh("group")
    member = joined(group, [topic], **{"group.remote.assignor": "range", "client.id": "shown"})
    eventually(lambda: len(member.partitions) == PARTITIONS, "the assignment")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert (found.type, found.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    assert found.partition_assignor == "range"
    [described] = found.members
    assert described.client_id == "shown"
    assert {(each.topic, each.partition) for each in described.assignment.topic_partitions} == member.partitions
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_S)
    assert group in {each.group_id for each in listed.valid}


def test_a_regular_expression_follows_new_topics(
    broker: Broker, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    prefix = fresh("regex")
    create(broker, f"{prefix}.a", 2)
    member = joined(fresh("group"), [f"^{prefix}\\..*"])
    eventually(lambda: member.partitions == {(f"{prefix}.a", 0), (f"{prefix}.a", 1)}, "the first match")
    create(broker, f"{prefix}.b", 1)
    eventually(lambda: (f"{prefix}.b", 0) in member.partitions, "the match of a new topic")


def test_a_static_member_comes_back_to_its_partitions(
    broker: Broker, topic: str, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    create(broker, topic)
    group = fresh("group")
    first, second = (joined(group, [topic], **{"group.instance.id": name}) for name in ("a", "b"))
    eventually(lambda: len(first.partitions) == len(second.partitions) == PARTITIONS // 2, "the assignment")
    before = first.partitions
    first.close()
    back = joined(group, [topic], **{"group.instance.id": "a"})
    eventually(lambda: back.partitions == before, "the return")
    assert len(second.partitions) == PARTITIONS // 2


def test_partitions_of_a_member_that_left_are_taken_by_the_others(
    broker: Broker, topic: str, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    create(broker, topic)
    group = fresh("group")
    first, second = joined(group, [topic]), joined(group, [topic])
    eventually(lambda: len(first.partitions) == len(second.partitions) == PARTITIONS // 2, "the assignment")
    first.close()
    eventually(lambda: len(second.partitions) == PARTITIONS, "the takeover")


def test_classic_and_new_members_share_a_group_in_both_directions(
    broker: Broker, topic: str, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    create(broker, topic)
    group = fresh("group")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def kind() -> ConsumerGroupType:
        found: ConsumerGroupType = admin.describe_consumer_groups([group])[group].result(PATIENCE_S).type
        return found

    old = joined(
        group, [topic], **{"group.protocol": "classic", "heartbeat.interval.ms": 500, "session.timeout.ms": 6000}
    )
    eventually(lambda: len(old.partitions) == PARTITIONS, "the classic assignment")
    new = joined(group, [topic])
    eventually(lambda: len(old.partitions) == len(new.partitions) == PARTITIONS // 2, "the mixed assignment")
    assert not old.partitions & new.partitions
    assert kind() is ConsumerGroupType.CONSUMER
    new.close()
    eventually(lambda: len(old.partitions) == PARTITIONS, "the assignment after the downgrade")
    assert kind() is ConsumerGroupType.CLASSIC


def test_committed_offsets_are_there_after_a_change_of_the_protocol(
    broker: Broker, topic: str, fresh: Callable[[str], str], joined: Callable[..., Member]
) -> None:
    create(broker, topic)
    produce(broker, topic, 60)
    group = fresh("group")
    old = joined(group, [topic], **{"group.protocol": "classic"})
    eventually(lambda: len(old.read) == 60, "reading everything")
    old.close()
    produce(broker, topic, 6)
    new = joined(group, [topic])
    eventually(lambda: len(new.read) == 6, "reading the rest")
    assert {offset for _, offset in new.read} == {10}
