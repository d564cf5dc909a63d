"""Compares the errors after the loss of a log directory: the same requests to a real Apache Kafka and to Ottla."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Written, batch
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.small_disks import CannotMount, LoopDisk, loop_disk
from tests.support.wire_client import Wire

Answers = dict[str, Any]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A disk that can be lost: it turns read-only under the broker."""
    try:
        mounted = loop_disk(tmp_path / "loop", size_bytes=64 << 20)
        found = mounted.__enter__()
    except CannotMount as error:
        pytest.skip(f"no disk of one's own here: {error}")
    yield found
    mounted.__exit__(None, None, None)


def test_a_lost_log_directory_is_reported_as_by_kafka(kafka_jars: Path, tmp_path: Path, disk: LoopDisk) -> None:
    kafka = RealKafka(kafka_jars, tmp_path / "kafka")
    properties = kafka.properties.read_text().replace(f"{kafka.data}", f"{kafka.data},{disk.place / 'kafka'}")
    kafka.properties.write_text(properties)
    ottla = OttlaProcess(tmp_path / "ottla")
    ottla.data = Path(f"{tmp_path / 'ottla' / 'data'},{disk.place / 'ottla'}")
    kafka.start()
    ottla.start()
    try:
        with Wire(kafka.port) as one, Wire(ottla.port) as other:
            lost = [prepare(wire, disk.place / name) for wire, name in ((one, "kafka"), (other, "ottla"))]
            try:
                disk.turn_read_only()
            except CannotMount as error:
                pytest.skip(str(error))
            said, ours = (
                scenario(wire, partition, disk.place / name)
                for wire, partition, name in ((one, lost[0], "kafka"), (other, lost[1], "ottla"))
            )
    finally:
        kafka.kill()
        ottla.kill()
    assert ours == said
    assert said["produce"] == 56, "the disk was lost on both sides"
    ottla.assert_log_is_clean()


def prepare(wire: Wire, path: Path) -> int:
    """A topic with a partition in each directory; which one is on the disk that will be lost."""
    new = {"name": "t", "num_partitions": 2, "replication_factor": 1}
    assert wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"] == 0
    until(lambda: [produce(wire, partition) for partition in (0, 1)] == [0, 0], what="both partitions")
    (directory,) = (
        each for each in wire.call("describe_log_dirs", 4, topics=None)["results"] if each["log_dir"] == str(path)
    )
    (topic,) = (each for each in directory["topics"] if each["name"] == "t")
    return int(topic["partitions"][0]["partition_index"])


def produce(wire: Wire, partition: int) -> int:
    part = {"index": partition, "records": batch([Written(b"x")])}
    said = wire.call("produce", 9, acks=-1, timeout=10_000, topic_data=[{"name": "t", "partition_data": [part]}])
    return int(said["responses"][0]["partition_responses"][0]["error_code"])


def partition_of(wire: Wire, version: int, index: int) -> Answers:
    topic = wire.call("metadata", version, topics=[{"name": "t"}])["topics"][0]
    return next(part for part in topic["partitions"] if part["partition_index"] == index)


def scenario(wire: Wire, lost: int, path: Path) -> Answers:
    """The same questions about the lost partition and its neighbour; the answers without what must differ."""
    answers: Answers = {"produce": produce(wire, lost)}
    until(lambda: partition_of(wire, 9, lost)["error_code"], what="the loss to be known")
    answers |= {"again": produce(wire, lost), "neighbour": produce(wire, 1 - lost)}
    for version in (1, 5, 9, 12):
        answers[f"metadata {version}"] = [without(partition_of(wire, version, at)) for at in (lost, 1 - lost)]
    for time in (-1, -2, -3, 5):
        part = {"partition_index": lost, "timestamp": time, "current_leader_epoch": -1}
        said = wire.call("list_offsets", 7, replica_id=-1, topics=[{"name": "t", "partitions": [part]}])
        answers[f"offset at {time}"] = without(said["topics"][0]["partitions"][0])
    part = {"partition": lost, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    said = wire.call(
        "fetch",
        11,
        max_wait=100,
        min_bytes=1,
        max_bytes=1000,
        replica_id=-1,
        session_epoch=-1,
        isolation_level=0,
        rack_id="",
        topics=[{"topic": "t", "partitions": [part]}],
    )
    answers["fetch"] = without(said["responses"][0]["partitions"][0])
    part = {"partition": lost, "current_leader_epoch": -1, "leader_epoch": 0}
    said = wire.call("offset_for_leader_epoch", 3, replica_id=-1, topics=[{"topic": "t", "partitions": [part]}])
    answers["end of epoch"] = without(said["topics"][0]["partitions"][0])
    part = {"partition_index": lost, "offset": 1}
    said = wire.call("delete_records", 1, timeout=3000, topics=[{"name": "t", "partitions": [part]}])
    answers["delete records"] = without(said["topics"][0]["partitions"][0])
    said = wire.call("describe_producers", 0, topics=[{"name": "t", "partition_indexes": [lost]}])
    answers["producers"] = without(said["topics"][0]["partitions"][0])
    dirs = wire.call("describe_log_dirs", 4, topics=None)["results"]
    answers["directory"] = next(without(each) for each in dirs if each["log_dir"] == str(path))
    said = wire.call("describe_topic_partitions", 0, topics=[{"name": "t"}], response_partition_limit=9, cursor=None)
    parts = {part["partition_index"]: without(part) for part in said["topics"][0]["partitions"]}
    answers["described"] = [parts[lost], parts[1 - lost]]
    more = {"name": "t", "count": 3, "assignments": None}
    said = wire.call("create_partitions", 2, topics=[more], timeout=10_000, validate_only=False)
    answers["more partitions"] = said["results"][0]["error_code"]
    until(lambda: not produce(wire, 2), what="a new partition, which goes to the directory that is left")
    answers["deletion"] = wire.call("delete_topics", 4, topic_names=["t"], timeout=10_000)["responses"][0]["error_code"]
    return answers


def without(answer: Answers) -> Answers:
    """Less what differs by place and words, and the leader epoch, which Kafka's controller raises as it takes note."""
    left_out = {"partition_index", "partition", "log_dir", "leader_epoch", "error_message"}
    return {key: value for key, value in answer.items() if key not in left_out}
