"""A real Apache Kafka starts on a directory with Ottla's own files beside Kafka's, serves, and does not touch them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ottla.storage.file_names import CHECKSUMS_SUFFIX
from ottla.storage.integrity.metadata_backup import FILE_NAME as COPIES_FILE
from ottla.storage.scrubbing.scrubber import REPORT_FILE
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.external, pytest.mark.slow]
PATIENCE_S = 30.0
TOPIC, RECORDS = "shared", 400


def offsets_read(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    while len(found) < RECORDS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert not message.error()
        offset = message.offset()
        assert offset is not None
        found.append(offset)
    consumer.close()
    return found


def test_kafka_starts_serves_and_deletes_segments_beside_them(kafka_jars: Path, tmp_path: Path) -> None:
    kafka = RealKafka(kafka_jars, tmp_path)
    kafka.format()
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        small = {"internal.segment.bytes": "20000", "file.delete.delay.ms": "0"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=small)])[TOPIC].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "batch.size": 2000})
        for number in range(RECORDS):
            producer.produce(TOPIC, value=b"%d" % number * 100)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        kafka.stop()

        place = kafka.data / f"{TOPIC}-0"
        segments = sorted(path.stem for path in place.glob("*.log"))
        assert len(segments) > 2
        ours = [
            kafka.data / COPIES_FILE,
            kafka.data / REPORT_FILE,
            *(place / f"{name}{CHECKSUMS_SUFFIX}" for name in segments),
        ]
        for path in ours:
            path.write_bytes(b"00000000\n{}\n")
        kafka.start()

        assert offsets_read(kafka.bootstrap) == list(range(RECORDS))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_records([TopicPartition(TOPIC, 0, RECORDS)])[TopicPartition(TOPIC, 0)].result(PATIENCE_S)
        kafka.stop()
        assert all(path.exists() for path in ours)
        kafka.start()
    finally:
        kafka.stop()
