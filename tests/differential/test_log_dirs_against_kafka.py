"""Moves of replicas between two log directories, in a real Apache Kafka and in Ottla: the same requests and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import batch, numbered
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.wire_client import Wire

pytestmark = [pytest.mark.external, pytest.mark.slow]

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture
def kafka(kafka_jars: Path, tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    directory = tmp_path / "kafka"
    paths = [str(directory / "logs"), str(directory / "other")]
    server = RealKafka(kafka_jars, directory, settings={"log.dirs": ",".join(paths)}).start()
    yield server.port, paths
    server.stop()


@pytest.fixture
def ottla(tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    directory = tmp_path / "ottla"
    paths = [str(directory / "data"), str(directory / "other")]
    server = OttlaProcess(directory)
    server.data = Path(",".join(paths))
    server.start()
    yield server.port, paths
    server.stop()
    server.assert_log_is_clean()


def answers_to_moves(port: int, paths: list[str]) -> list[Any]:
    """Move a partition to and fro, and return what the broker answers; directories by their numbers."""
    answers: list[Any] = []
    with Wire(port) as wire:

        def alter(*wanted: tuple[str, str, int]) -> None:
            dirs = [{"path": path, "topics": [{"name": topic, "partitions": [at]}]} for path, topic, at in wanted]
            answer = wire.call("alter_replica_log_dirs", 2, dirs=dirs)
            answers.append(
                sorted(
                    (topic["topic_name"], each["partition_index"], int(each["error_code"]))
                    for topic in answer["results"]
                    for each in topic["partitions"]
                )
            )

        def where(topic: str) -> list[tuple[str, int, bool]]:
            return sorted(
                (result["log_dir"], each["partition_index"], each["is_future_key"])
                for result in wire.call("describe_log_dirs", 4, topics=None)["results"]
                for found in result["topics"]
                if found["name"] == topic
                for each in found["partitions"]
            )

        def limit(rate: int) -> None:
            config = {"name": RATE, "config_operation": 0, "value": str(rate)}
            resource = {"resource_type": 4, "resource_name": "1", "configs": [config]}
            answer = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
            assert answer["responses"][0]["error_code"] == 0

        def create(topic: str) -> None:
            wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}
            assert wire.call("create_topics", 5, topics=[wanted], timeout=9000)["topics"][0]["error_code"] == 0
            until(lambda: bool(where(topic)), what="the log")

        create("web")
        ((here, _, _),) = where("web")
        (there,) = (path for path in paths if path != here)
        for _ in range(40):
            records = [{"name": "web", "partition_data": [{"index": 0, "records": batch(numbered(2000))}]}]
            answer = wire.call("produce", 9, acks=-1, timeout=9000, topic_data=records)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        limit(1000)
        alter((there, "web", 0))
        answers.append(sorted((path == here, is_future) for path, _, is_future in where("web")))
        alter((there, "web", 0), ("/nowhere", "web", 1))
        alter((here, "web", 0))
        until(lambda: where("web") == [(here, 0, False)], what="the cancellation")
        limit(1 << 40)
        alter((there, "web", 0))
        until(lambda: where("web") == [(there, 0, False)], timeout_s=60, what="the end of the move")
        alter((there, "web", 0))
        for number, path in enumerate((here, there, there, here)):
            alter((path, f"new-{number}", 0))
            create(f"new-{number}")
            answers.append([found == path for found, _, _ in where(f"new-{number}")])
    return answers


def test_moves_are_answered_alike(kafka: tuple[int, list[str]], ottla: tuple[int, list[str]]) -> None:
    assert answers_to_moves(*ottla) == answers_to_moves(*kafka)
