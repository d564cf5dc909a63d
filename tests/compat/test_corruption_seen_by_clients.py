"""A flipped bit on the broker's disk, as programs with unmodified clients see it.

Real Kafka sends such a batch as it is: Java's consumer checks and throws, librdkafka checks only if configured to and
delivers it. Ottla's broker looks first and answers CORRUPT_MESSAGE, which both hand to the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ottla.records.batch import split
from tests.support.kafka_tools import run_tool
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.external, pytest.mark.slow]
PATIENCE_S = 30.0
TOPIC = "corrupted"
BATCHES = 12
CORRUPT = 5


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
    for number in range(BATCHES):  # a batch each
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        producer.produce(TOPIC, value=b"value %d " % number * 10)
        assert producer.flush(PATIENCE_S) == 0


def flip(log: Path, *, byte: int) -> None:
    data = bytearray(log.read_bytes())
    at = [position for position, _ in split(data)][CORRUPT]
    data[at + byte] ^= 0x10
    with log.open("r+b") as file:
        file.seek(at + byte)
        file.write(data[at + byte : at + byte + 1])


@pytest.fixture
def corrupted(tmp_path: Path) -> Iterator[OttlaProcess]:
    """Run an Ottla whose sixth batch was corrupted while it was stopped."""
    server = OttlaProcess(tmp_path).start()
    try:
        fill(server.bootstrap)
        server.stop()
        flip(server.data / f"{TOPIC}-0" / "00000000000000000000.log", byte=75)
        server.start()
        yield server
    finally:
        server.stop()


def polled(consumer: Consumer, count: int) -> tuple[list[Message], list[KafkaError]]:
    """Messages until there are `count` or an error came."""
    messages: list[Message] = []
    while len(messages) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"neither a message nor an error after {len(messages)}"
        error = message.error()
        if error is not None:
            return messages, [error]
        messages.append(message)
    return messages, []


def test_librdkafka_gets_an_error_at_the_corrupt_batch_and_can_seek_past_it(corrupted: OttlaProcess) -> None:
    consumer = Consumer({"bootstrap.servers": corrupted.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])

    before, errors = polled(consumer, BATCHES)
    assert [message.offset() for message in before] == list(range(CORRUPT))
    assert [error.code() for error in errors] == [KafkaError.INVALID_MSG]

    consumer.seek(TopicPartition(TOPIC, 0, CORRUPT + 1))
    after: list[Message] = []
    while len(after) < BATCHES - CORRUPT - 1:
        more, _ = polled(consumer, 1)  # an error may be on its way still
        after += more
    assert [message.offset() for message in after] == list(range(CORRUPT + 1, BATCHES))
    consumer.close()
    assert re.search(r"corruption found in .*corrupted-0.*offsets 5 to 5.*\. Copy the partition", corrupted.log)


def test_javas_consumer_throws_at_the_corrupt_batch_and_can_seek_past_it(
    corrupted: OttlaProcess, kafka_jars: Path
) -> None:
    at = ("--bootstrap-server", corrupted.bootstrap, "--topic", TOPIC)
    with pytest.raises(AssertionError, match="Encountered corrupt message when fetching offset 5"):
        run_tool(kafka_jars, "org.apache.kafka.tools.ConsumerPerformance", *at, "--messages", str(BATCHES))

    said = run_tool(
        kafka_jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *at,
        "--partition",
        "0",
        "--offset",
        str(CORRUPT + 1),
        "--max-messages",
        "1",
        "--timeout-ms",
        "15000",
    )
    assert "value 6" in said


def test_real_kafka_sends_it_and_leaves_it_to_the_client_to_look(kafka_jars: Path, tmp_path: Path) -> None:
    kafka = RealKafka(kafka_jars, tmp_path)
    kafka.format()
    kafka.start()
    try:
        fill(kafka.bootstrap)
        kafka.stop()
        flip(kafka.data / f"{TOPIC}-0" / "00000000000000000000.log", byte=75)
        kafka.start()
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition(TOPIC, 0, CORRUPT)])
        [message], errors = polled(consumer, 1)
        consumer.close()
        assert not errors
        assert message.value() != b"value 5 " * 10, "librdkafka delivers what was never produced"
    finally:
        kafka.stop()
