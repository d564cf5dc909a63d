"""Kafka's own dump tool reads what Ottla wrote; Ottla reads, and rebuilds byte for byte, what Kafka wrote."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.records.batch import split
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory, cluster_id_of
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from tests.support.kafka_tools import run_tool
from tests.support.real_kafka import RealKafka
from tests.support.storage import batch, everything, marker

pytestmark = [pytest.mark.external, pytest.mark.slow]

SMALL = LogConfig(segment_bytes=20_000)
COMPLAINTS = re.compile(r"isvalid: false|mismatch|Found|out of order|Error|Exception|does not|invalid", re.IGNORECASE)


def write_directory(path: Path) -> int:
    """A directory with several segments, every codec, both kinds of time, producers and transactions; its records."""
    clock = SystemClock()
    directory = LogDirectory.open(SystemFiles(), path, clock, SMALL, node_id=1, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
    now_ms = clock.wall_ms()
    written = 0
    for topic, config in (
        ("plain", SMALL),
        ("arrival", LogConfig(segment_bytes=20_000, timestamp_type="LogAppendTime")),
    ):
        log = directory.create_log(TopicPartition(topic, 0), uuid.uuid4(), config)
        for at in range(200):
            values = [b"value %d of %d" % (n, at) * 10 for n in range(3)]
            records = batch(
                *values,
                timestamp_ms=now_ms + at - 7 * (at % 3),
                codec=at % 5,
                producer_id=at % 4,
                epoch=0,
                sequence=at // 4 * 3,
                key=b"key",
            )
            log.append(records, leader_epoch=at // 50, now_ms=now_ms + at)
            written += 3
    log = directory.create_log(TopicPartition("transactions", 0), uuid.uuid4(), SMALL)
    for at in range(20):
        log.append(batch(b"t", producer_id=9, epoch=0, sequence=at, transactional=True), leader_epoch=0, now_ms=now_ms)
        log.append(marker(9, 0, commit=at % 2 == 0), leader_epoch=0, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
        written += 2
    directory.close(broker_epoch=1)
    return written


def test_kafkas_dump_tool_finds_every_record_and_nothing_wrong(kafka_jars: Path, tmp_path: Path) -> None:
    written = write_directory(tmp_path)
    files = sorted(str(path) for path in tmp_path.glob("*/0*") if path.suffix != ".txnindex" or path.stat().st_size)
    assert {Path(name).suffix for name in files} == {".log", ".index", ".timeindex", ".snapshot", ".txnindex"}
    out = run_tool(kafka_jars, "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files))
    wrong = [line for line in out.splitlines() if COMPLAINTS.search(line)]
    assert not wrong, wrong[:10]
    assert sum(line.startswith("| offset:") for line in out.splitlines()) == written
    assert out.count("isvalid: true") == 2 * 200 + 40
    sanity = run_tool(
        kafka_jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--index-sanity-check",
        "--files",
        ",".join(name for name in files if name.endswith("index") and "txn" not in name),
    )
    fine = sanity.count("passed sanity check") + sanity.count("index is empty")
    assert fine == sum(name.endswith("index") and "txn" not in name for name in files)


@pytest.fixture(scope="module")
def kafka_directory(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a real Kafka, cleanly stopped."""
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka") / "broker")
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        small = {"segment.bytes": "1048576"}
        topics = [
            NewTopic(name, 1, 1, config=small) for name in ("gzip", "snappy", "lz4", "zstd", "none", "transactions")
        ]
        for future in admin.create_topics(topics).values():
            future.result()
        for codec in ("gzip", "snappy", "lz4", "zstd", "none"):
            settings = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "compression.type": codec}
            producer = Producer(settings)
            for at in range(3000):
                producer.produce(codec, key=b"k", value=b"%d " % at + b"x" * 500)
                if at % 100 == 0:
                    producer.flush()
            producer.flush()
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
        producer.init_transactions()
        for at in range(6):
            producer.begin_transaction()
            producer.produce("transactions", value=b"%d " % at)
            producer.flush()
            if at % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        kafka.stop()
    return kafka.data


@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_ottla_reads_kafkas_directory_and_leaves_it_byte_for_byte(
    kafka_directory: Path, tmp_path: Path, stop: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(kafka_directory, copy)
    if stop == "unclean":
        (copy / ".kafka_cleanshutdown").unlink()
        (copy / "recovery-point-offset-checkpoint").unlink()
        for derived in copy.glob("*/0*.*index"):
            if "__cluster_metadata" not in str(derived):
                derived.unlink()  # the scan has to make the same ones
    files = SystemFiles()
    cluster_id = cluster_id_of(files, copy)
    assert cluster_id is not None
    config = LogConfig(segment_bytes=1 << 20)
    directory = LogDirectory.open(files, copy, SystemClock(), config, node_id=1, cluster_id=cluster_id)
    logs = {tp.topic: log for tp, log in directory.logs.items()}
    for codec in ("gzip", "snappy", "lz4", "zstd", "none"):
        rows = everything(logs[codec], max_bytes=40_000)
        assert rows == [(at, b"%d " % at + b"x" * 500) for at in range(3000)], codec
    check_transactions(logs["transactions"])
    directory.close(broker_epoch=0)
    for path in sorted(kafka_directory.glob("*/*")):
        # An epoch without a record yet is forgotten by a scan, as in Kafka; the next leader notes its own.
        empty_epochs = path.name == "leader-epoch-checkpoint" and not any(
            log.stat().st_size for log in path.parent.glob("*.log")
        )
        if "__cluster_metadata" not in str(path) and not empty_epochs:
            ours = copy / path.relative_to(kafka_directory)
            assert ours.exists(), ours
            assert ours.read_bytes() == path.read_bytes(), ours


def check_transactions(log: PartitionLog) -> None:
    assert log.last_stable_offset == log.end_offset
    data = b"".join(
        region.file.read_at(region.position, region.size)
        for region in [log.read(0, max_bytes=1 << 20, end_offset=log.end_offset)]
        if region is not None
    )
    assert sum(header.is_control for _, header in split(data)) == 6
    assert [entry.last_offset - entry.first_offset for entry in log.aborted_transactions(0, log.end_offset)] == [
        1,
        1,
        1,
    ]
