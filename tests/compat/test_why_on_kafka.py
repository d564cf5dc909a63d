"""`ottla doctor` and `why` on a real Apache Kafka: its APIs are the facts, and it has no events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import main
from tests.support.real_kafka import RealKafka


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    broker = RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka"))
    broker.format()
    broker.start()
    yield broker
    broker.stop()


def _findings(kafka: RealKafka, capsys: pytest.CaptureFixture[str], *command: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    main.run([*command, "--format", "json", "--brokers", kafka.bootstrap])
    answer = json.loads(capsys.readouterr().out)
    assert not answer["unread"]
    assert not answer["has_events"]
    return list(answer["findings"])


def test_a_healthy_kafka_is_well_and_its_faults_are_explained(
    kafka: RealKafka, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert _findings(kafka, capsys, "doctor") == []
    assert main.run(["topic", "create", "orders", "--brokers", kafka.bootstrap]) == 0
    assert [each["rule"] for each in _findings(kafka, capsys, "why", "topic", "orders")] == ["idle"]
    seek = ["group", "seek", "readers", "--to", "0", "--topic", "orders", "--brokers", kafka.bootstrap]
    assert main.run(seek) == 0
    assert (
        main.run(
            [
                "config",
                "set",
                "topic/orders",
                "cleanup.policy=compact",
                "min.compaction.lag.ms=365d",
                "--brokers",
                kafka.bootstrap,
            ]
        )
        == 0
    )
    rules = [each["rule"] for each in _findings(kafka, capsys, "doctor")]
    assert rules == ["compaction cannot run", "idle"]
    assert [each["rule"] for each in _findings(kafka, capsys, "why", "group", "typo")] == ["no such group"]
    assert main.run(["bundle", str(tmp_path / "kafka.tar.gz"), "--brokers", kafka.bootstrap]) == 0
