"""The same directory compacted by Apache Kafka and by Ottla: the same batches and records are left, byte for byte.

Only the delete horizons differ: they are the time of the cleaning plus `delete.retention.ms`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.records.batch import DELETE_HORIZON
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory, cluster_id_of
from tests.support.cleaning import Seen, batches_in, clean_once
from tests.support.kafka_tools import run_tool
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.storage import StillClock

pytestmark = [pytest.mark.external, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = (*CODECS, "transactions", "arrival")
SEGMENT_BYTES = 20_000
CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES)


def fill(kafka: RealKafka) -> None:
    """Values, tombstones, several producers, committed and aborted transactions, over a dozen small segments."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    compact = {"cleanup.policy": "compact", "internal.segment.bytes": str(SEGMENT_BYTES)}
    topics = [
        NewTopic(
            name, 1, 1, config=compact | ({"message.timestamp.type": "LogAppendTime"} if name == "arrival" else {})
        )
        for name in TOPICS
    ]
    for made in admin.create_topics(topics).values():
        made.result(20)
    now_ms = SystemClock().wall_ms()  # Kafka forgets producers by the time of their records
    for topic in (*CODECS, "arrival"):
        codec = topic if topic in CODECS else "none"
        for first in (0, 900):  # two producers: the first one's last batch has to stay
            producer = Producer(
                {
                    "bootstrap.servers": kafka.bootstrap,
                    "enable.idempotence": True,
                    "linger.ms": 50,
                    "compression.type": codec,
                }
            )
            for at in range(first, first + 900):
                value = None if at % 13 == 0 else b"value %d of %s " % (at, topic.encode()) + b"x" * (at % 90)
                producer.produce(topic, key=b"key %d" % (at * at % 150), value=value, timestamp=now_ms + at)
                if at % 45 == 0:
                    producer.flush(20)
            producer.flush(20)
    for name, length in (("a", 60), ("b", 60)):
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "linger.ms": 5})
        producer.init_transactions(20)
        for at in range(length):
            producer.begin_transaction()
            for more in range(at % 4):
                producer.produce("transactions", key=b"key %d" % ((at + more) % 17), value=b"%d " % at + b"x" * 300)
                producer.flush(20)
            if at % 3:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)


def cleaned_offsets(data: Path) -> dict[str, int]:
    lines = (data / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    return {topic: int(offset) for topic, _, offset in (line.split(" ") for line in lines)}


def active_bases(data: Path) -> dict[str, int]:
    return {topic: max(int(path.name[:20]) for path in (data / f"{topic}-0").glob("*.log")) for topic in TOPICS}


@pytest.fixture(scope="module")
def directories(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One directory, compacted by Kafka, and its copy from before."""
    place = tmp_path_factory.mktemp("kafka")
    kafka = RealKafka(kafka_jars, place / "broker", settings={"log.cleaner.enable": "false"})
    kafka.start()
    try:
        fill(kafka)
    finally:
        kafka.stop()
    copy = place / "copy"
    shutil.copytree(kafka.data, copy)
    ends = active_bases(copy)
    text = kafka.properties.read_text().replace("log.cleaner.enable=false", "log.cleaner.enable=true")
    kafka.properties.write_text(text + "log.cleaner.min.cleanable.ratio=0.0001\nlog.cleaner.backoff.ms=100\n")
    kafka.start()
    try:
        until(
            lambda: all(cleaned_offsets(kafka.data).get(topic, 0) >= ends[topic] for topic in TOPICS),
            timeout_s=60,
            what="Kafka's cleaner",
        )
    finally:
        kafka.stop()
    return kafka.data, copy


def opened(path: Path) -> LogDirectory:
    files = SystemFiles()
    cluster_id = cluster_id_of(files, path)
    assert cluster_id is not None
    return LogDirectory.open(files, path, SystemClock(), CONFIG, node_id=1, cluster_id=cluster_id)


HEADER_FIELDS = (
    "attributes",
    "base_offset",
    "base_sequence",
    "base_timestamp",
    "batch_length",
    "crc",
    "last_offset_delta",
    "magic",
    "max_timestamp",
    "partition_leader_epoch",
    "producer_epoch",
    "producer_id",
    "record_count",
    "size_bytes",
)


def comparable(seen: Seen, *, before: int) -> dict[str, Any]:
    """Return a batch without the fields that depend on the cleaning time or the compressor."""
    header = {name: getattr(seen.header, name) for name in HEADER_FIELDS}
    has_other_time = bool(seen.header.attributes & DELETE_HORIZON) or seen.header.log_append_time
    if has_other_time:
        del header["base_timestamp"]
    if has_other_time or seen.header.attributes & 7:
        for name in ("crc", "batch_length", "size_bytes"):
            del header[name]
    return header | {"records": seen.records, "changed": seen.header.base_offset < before}


def test_both_leave_the_same_batches_and_records(
    directories: tuple[Path, Path], tmp_path: Path, kafka_jars: Path
) -> None:
    theirs, copy = directories
    ends = active_bases(copy)
    ours = tmp_path / "ours"
    shutil.copytree(copy, ours)
    directory = opened(ours)
    kafkas = tmp_path / "kafkas"
    shutil.copytree(theirs, kafkas)
    reference = opened(kafkas)
    for topic in TOPICS:
        log, expected = directory.logs[TopicPartition(topic, 0)], reference.logs[TopicPartition(topic, 0)]
        before = len(batches_in(log))
        clock = StillClock(SystemClock().wall_ms())
        done = clean_once(directory, log, clock, slots=5_000_000)
        assert done is not None
        assert done.end_offset == ends[topic] == cleaned_offsets(theirs)[topic]
        found = batches_in(log)
        assert [comparable(seen, before=ends[topic]) for seen in found] == [
            comparable(seen, before=ends[topic]) for seen in batches_in(expected)
        ], topic
        assert len(found) < before
        plain = [seen.raw for seen in found if not seen.header.attributes & (DELETE_HORIZON | 7 | 8)]
        others = [seen.raw for seen in batches_in(expected) if not seen.header.attributes & (DELETE_HORIZON | 7 | 8)]
        assert plain == others, topic
        assert log.aborted_transactions(0, log.end_offset) == expected.aborted_transactions(0, log.end_offset)
        assert [segment.base_offset for segment in log.segments] == [each.base_offset for each in expected.segments]
    directory.close()
    reference.close()
    assert cleaned_offsets(ours) == {topic: ends[topic] for topic in TOPICS}
    # The tool looks for the greatest time among a batch's records, and where only its header was kept there are none.
    found_wrong = complaints(kafka_jars, ours)
    assert found_wrong == complaints(kafka_jars, theirs)
    assert all("timestamp mismatch" in line for line in found_wrong)


def complaints(jars: Path, place: Path) -> set[str]:
    """What Kafka's dump tool finds wrong with the logs and indexes of a directory."""
    logs = [path for topic in TOPICS for path in sorted((place / f"{topic}-0").glob("*.log")) if path.stat().st_size]
    indexes = [
        path.with_suffix(suffix)
        for path in logs
        for suffix in (".index", ".timeindex", ".txnindex")
        if path.with_suffix(suffix).exists() and path.with_suffix(suffix).stat().st_size
    ]
    files = ",".join(str(path) for path in (*logs, *indexes))
    out = run_tool(jars, "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files)
    assert out.count("isvalid: true") > 100
    wrong = re.compile(r"isvalid: false|mismatch|Found|out of order|Error|Exception|does not|invalid", re.IGNORECASE)
    return {line.replace(str(place), "") for line in out.splitlines() if wrong.search(line)}


def test_kafka_serves_what_ottla_has_cleaned(directories: tuple[Path, Path], tmp_path: Path, kafka_jars: Path) -> None:
    """Kafka starts on the directory without a word about it, and finds nothing left to clean."""
    _, copy = directories
    place = tmp_path / "broker"
    kafka = RealKafka(kafka_jars, place, settings={"log.cleaner.min.cleanable.ratio": "0.0001"})
    shutil.copytree(copy, kafka.data)
    directory = opened(kafka.data)
    left = {}
    for topic in TOPICS:
        log = directory.logs[TopicPartition(topic, 0)]
        clean_once(directory, log, StillClock(SystemClock().wall_ms()), slots=5_000_000)
        left[topic] = [record for seen in batches_in(log) for record in seen.records]
    directory.close(broker_epoch=0)
    kafka.start()
    kafka.stop()
    again = opened(kafka.data)
    for topic in TOPICS:
        log = again.logs[TopicPartition(topic, 0)]
        assert [record for seen in batches_in(log) for record in seen.records] == left[topic], topic
    again.close()
    said = kafka.log_file.read_text()
    assert not re.search(r"ERROR|Rebuilding|Corrupt|Deleting segment", said), said[-3000:]
