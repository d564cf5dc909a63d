"""From Kafka to Ottla and back on the same directory: no record, offset, id or setting is lost on the way."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from ottla.cli.main import run as ottla
from tests.support import traffic_of_all_kinds as traffic
from tests.support.kafka_tools import run_tool
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.traffic_of_all_kinds import COMPACTED, EARLIEST, Everything

pytestmark = [pytest.mark.external, pytest.mark.slow]

EAGER = {  # so that compaction is through within a test
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.initial.task.delay.ms": "100",
}
QUIET = {  # nothing goes by itself, and a kill does not undo DeleteRecords
    "log.cleaner.enable": "false",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
}
UNCLEANED = ("-o", "log.cleaner.enable=false")
KEPT_A_WEEK = (*UNCLEANED, "-o", "log.retention.hours=168")
COMPLAINTS = re.compile(r"isvalid: false|mismatch|out of order|Exception", re.IGNORECASE)


def cleaned_up_to(data: Path, topic: str) -> int:
    """How far Kafka's cleaner came."""
    checkpoint = data / "cleaner-offset-checkpoint"
    rows = [line.split() for line in checkpoint.read_text().splitlines()] if checkpoint.exists() else []
    return next((int(row[2]) for row in rows if len(row) == 3 and row[0] == topic), 0)


def write_transactions(bootstrap: str) -> None:
    traffic.create(bootstrap, NewTopic("transactions", 1, 1))
    producer = Producer(traffic.client(bootstrap, **{"transactional.id": "t"}))
    producer.init_transactions()
    for at in range(6):
        producer.begin_transaction()
        producer.produce("transactions", value=b"%d" % at)
        producer.flush()
        if at % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def write_compacted_once(kafka: RealKafka) -> None:
    """A topic whose policy changes when Kafka has taken batches out of it: its gaps stay."""
    name = "compacted-once"
    traffic.create(kafka.bootstrap, NewTopic(name, 1, 1, config={"cleanup.policy": "compact", **traffic.SMALL}))
    traffic.write_keys(kafka.bootstrap, name, 3_000)
    until(lambda: cleaned_up_to(kafka.data, name) > 1000, what="Kafka's compaction")
    entries = [
        ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET),
    ]
    asked = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)]
    traffic.administer(kafka.bootstrap, lambda admin: admin.incremental_alter_configs(asked))


class Written:
    """A directory, and what its broker showed of it."""

    def __init__(self, data: Path, bootstrap: str) -> None:
        self.data = data
        self.records: Everything = traffic.read_all(bootstrap)
        self.committed = traffic.read_all(bootstrap, isolation="read_committed")
        self.ids = traffic.topic_ids(bootstrap)
        self.settings = {name: traffic.own_settings(bootstrap, name) for name in self.ids}
        self.starts = traffic.ends(bootstrap, EARLIEST, self.records)

    def check(self, bootstrap: str, *, settings: bool = True) -> None:
        """Another broker shows the same of it."""
        for where, rows in traffic.read_all(bootstrap).items():
            assert rows == self.records[where], where
        for where, rows in traffic.read_all(bootstrap, isolation="read_committed").items():
            assert rows == self.committed[where], where
        assert traffic.topic_ids(bootstrap) == self.ids
        assert traffic.ends(bootstrap, EARLIEST, self.records) == self.starts
        if settings:
            assert {name: traffic.own_settings(bootstrap, name) for name in self.ids} == self.settings
        assert traffic.committed(bootstrap, "team", "plain", 3) == [5, 6, 7]


@pytest.fixture(scope="module")
def of_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A Kafka's directory with topics that Kafka compacted, one of which it shall no more, copied after a clean stop."""
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka") / "broker", node_id=3, settings=EAGER).start()
    try:
        traffic.write_all_kinds(kafka.bootstrap)
        write_transactions(kafka.bootstrap)
        write_compacted_once(kafka)
        until(lambda: cleaned_up_to(kafka.data, COMPACTED) > 1000, what="Kafka's compaction")
        return Written(kafka.data, kafka.bootstrap)
    finally:
        kafka.stop()


@pytest.fixture(scope="module")
def of_ottla(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """An Ottla's directory, after a clean stop."""
    server = OttlaProcess(tmp_path_factory.mktemp("ottla") / "broker", options=UNCLEANED).start()
    try:
        traffic.write_all_kinds(server.bootstrap)
        return Written(server.data, server.bootstrap)
    finally:
        server.stop()


def kafka_on(jars: Path, directory: Path, data: Path, *, node_id: int = 3) -> RealKafka:
    """A Kafka that finds its data there, formatted."""
    kafka = RealKafka(jars, directory, node_id=node_id, settings={**QUIET, "log.dirs": str(data)})
    kafka.data = data
    return kafka


def exported(data: Path) -> None:
    assert ottla(["cluster", "export-kafka", str(data)]) == 0


def writes_go_on(bootstrap: str, seen: Everything, *, where: tuple[str, int] = ("plain", 0)) -> None:
    """Check that an idempotent producer can append and that a topic can be created."""
    before = seen[where][-1].offset
    traffic.write_records(bootstrap, where[0], 30)
    offsets = [row.offset for row in traffic.read_all(bootstrap)[where]]
    assert offsets[-30:] == list(range(before + 1, before + 31))
    traffic.create(bootstrap, NewTopic(f"made-after-{uuid.uuid4().hex[:8]}", 2, 1))


@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_ottla_takes_a_directory_of_kafka_over(of_kafka: Written, tmp_path: Path, stop: str) -> None:
    server = OttlaProcess(tmp_path, options=KEPT_A_WEEK)
    shutil.copytree(of_kafka.data, server.data)
    if stop == "unclean":
        for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
            (server.data / name).unlink()
        with (server.data / "plain-1" / "00000000000000000000.log").open("ab") as log:
            log.write(b"half a batch")
    server.start()
    try:
        assert " node 3 " in server.ready_line
        of_kafka.check(server.bootstrap)
        writes_go_on(server.bootstrap, of_kafka.records)
    finally:
        server.stop()
    assert len(re.findall("imported from Apache Kafka's metadata: 12 topics and 2 internal ones", server.log)) == 1
    server.assert_log_is_clean()


def test_a_kafka_that_was_killed_is_taken_over_too(kafka_jars: Path, tmp_path: Path) -> None:
    kafka = RealKafka(kafka_jars, tmp_path / "kafka", node_id=3, settings=QUIET).start()
    traffic.write_all_kinds(kafka.bootstrap)
    written = Written(kafka.data, kafka.bootstrap)
    until(lambda: "cut 0 17" in (kafka.data / "log-start-offset-checkpoint").read_text(), what="the start's note")
    kafka.kill()
    server = OttlaProcess(tmp_path / "ottla", options=KEPT_A_WEEK)
    shutil.copytree(kafka.data, server.data)
    server.start()
    try:
        written.check(server.bootstrap)
        writes_go_on(server.bootstrap, written.records)
    finally:
        server.stop()


def test_without_metadata_topics_are_imported_by_directory_name_and_never_deleted(
    of_kafka: Written, tmp_path: Path
) -> None:
    server = OttlaProcess(
        tmp_path, options=[*UNCLEANED, "-o", "log.retention.ms=1", "-o", "log.retention.check.interval.ms=100"]
    )
    shutil.copytree(of_kafka.data, server.data)
    shutil.rmtree(server.data / "__cluster_metadata-0")
    (server.data / "bootstrap.checkpoint").unlink(missing_ok=True)  # Kafka 4.4 writes none
    server.start()
    try:
        of_kafka.check(server.bootstrap, settings=False)
        keep = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert traffic.own_settings(server.bootstrap, COMPACTED) == keep
        writes_go_on(server.bootstrap, of_kafka.records)
    finally:
        server.stop()
    assert "without metadata" in server.log


@pytest.mark.parametrize("quorum", ["controller.quorum.voters", "controller.quorum.bootstrap.servers"])
def test_kafka_starts_on_an_exported_directory(
    of_ottla: Written, kafka_jars: Path, tmp_path: Path, quorum: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(of_ottla.data, data)
    exported(data)
    kafka = kafka_on(kafka_jars, tmp_path / "kafka", data, node_id=1)
    if quorum != "controller.quorum.voters":
        text = kafka.properties.read_text()
        kafka.properties.write_text(text.replace("controller.quorum.voters=1@", f"{quorum}="))
    kafka.start()
    try:
        of_ottla.check(kafka.bootstrap)
        writes_go_on(kafka.bootstrap, of_ottla.records)
    finally:
        kafka.stop()
    logs = [str(path) for path in sorted(data.glob("*/0*.log")) if "__" not in str(path) and path.stat().st_size]
    dump = run_tool(kafka_jars, "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(logs))
    assert not [line for line in dump.splitlines() if COMPLAINTS.search(line)]
    assert not list(data.glob("*-stray"))


def test_kafka_starts_on_the_exported_directory_of_an_ottla_that_was_killed(kafka_jars: Path, tmp_path: Path) -> None:
    server = OttlaProcess(
        tmp_path / "ottla", options=[*UNCLEANED, "-o", "log.flush.offset.checkpoint.interval.ms=50"]
    ).start()
    traffic.write_all_kinds(server.bootstrap)
    written = Written(server.data, server.bootstrap)
    until(lambda: "cut 0 17" in (server.data / "log-start-offset-checkpoint").read_text(), what="the start's note")
    server.kill()
    exported(server.data)
    kafka = kafka_on(kafka_jars, tmp_path / "kafka", server.data, node_id=1).start()
    try:
        written.check(kafka.bootstrap)
        writes_go_on(kafka.bootstrap, written.records)
    finally:
        kafka.stop()


def test_a_directory_goes_from_kafka_to_ottla_to_kafka_and_to_ottla_again(
    of_kafka: Written, kafka_jars: Path, tmp_path: Path
) -> None:
    server = OttlaProcess(tmp_path / "ottla", options=KEPT_A_WEEK)
    shutil.copytree(of_kafka.data, server.data)
    server.start()
    writes_go_on(server.bootstrap, of_kafka.records)
    traffic.administer(server.bootstrap, lambda admin: admin.delete_topics(["empty"]))
    traffic.commit(server.bootstrap, "second", [TopicPartition("plain", 0, 77)])
    second = Written(server.data, server.bootstrap)
    server.stop()

    exported(server.data)
    kafka = kafka_on(kafka_jars, tmp_path / "kafka", server.data).start()
    try:
        second.check(kafka.bootstrap)
        assert traffic.committed(kafka.bootstrap, "second", "plain", 1) == [77]
        writes_go_on(kafka.bootstrap, second.records)
        traffic.commit(kafka.bootstrap, "second", [TopicPartition("plain", 0, 99)])
        traffic.administer(kafka.bootstrap, lambda admin: admin.delete_topics(["gzip"]))
        third = Written(server.data, kafka.bootstrap)
    finally:
        kafka.stop()

    server.start()
    try:
        third.check(server.bootstrap)
        assert traffic.committed(server.bootstrap, "second", "plain", 2) == [99, OFFSET_INVALID]
        assert ("gzip", 0) not in third.records and ("empty", 0) not in third.records
        writes_go_on(server.bootstrap, third.records)
    finally:
        server.stop()
    server.assert_log_is_clean()


def test_a_start_is_refused_when_a_kafka_has_run_without_an_export(
    of_kafka: Written, kafka_jars: Path, tmp_path: Path
) -> None:
    server = OttlaProcess(tmp_path / "ottla", options=UNCLEANED)
    shutil.copytree(of_kafka.data, server.data)
    server.start()
    server.stop()
    kafka = kafka_on(kafka_jars, tmp_path / "kafka", server.data).start()
    traffic.write_records(kafka.bootstrap, "plain", 30)
    written = Written(server.data, kafka.bootstrap)
    kafka.stop()
    code = ottla(["server", "--port", "0", "--data", str(server.data)])
    assert code == 1

    (server.data / "ottla-metadata.db").unlink()
    server.start()
    try:
        for where, rows in traffic.read_all(server.bootstrap).items():
            assert rows == written.records[where], where
    finally:
        server.stop()
