"""`ottla client metrics` shows what a client of librdkafka has pushed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port, until
from tests.support.wire_client import Wire

pytestmark = [pytest.mark.external, pytest.mark.slow]
CLIENT_METRICS, SET = 16, 0


def test_what_a_producer_pushes_is_shown_by_its_client_id(tmp_path: Path) -> None:
    options = {"ottla.http.listener": f"127.0.0.1:{free_port()}", "ottla.client.metrics.enable": "true"}
    arguments = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    broker = OttlaProcess(tmp_path / "broker", options=arguments).start()
    try:
        _show(broker)
    finally:
        broker.stop()


def _show(broker: OttlaProcess) -> None:
    settings = {"metrics": "org.apache.kafka.producer.", "interval.ms": "200"}
    configs = [{"name": name, "config_operation": SET, "value": value} for name, value in settings.items()]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": "all", "configs": configs}
    with Wire(broker.port) as wire:
        wire.call("incremental_alter_configs", 1, resources=[resource])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "orders-writer"})
    producer.produce("orders", b"v")
    assert producer.flush(20) == 0

    def shown() -> list[dict[str, str]]:
        producer.produce("orders", b"v")
        assert producer.flush(20) == 0
        program = str(Path(sys.executable).with_name("ottla"))
        command = [program, "client", "metrics", "orders-writer", "--brokers", broker.bootstrap, "--format", "json"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        rows: list[dict[str, str]] = json.loads(ran.stdout)
        return rows

    until(lambda: any(float(row["value"]) > 0 for row in shown()), what="a push after a request")
    (connections,) = [row for row in shown() if row["metric"].endswith("connection.creation.total")]
    assert (connections["client_id"], connections["is_counter"]) == ("orders-writer", "true")
    assert float(connections["value"]) >= 0  # librdkafka pushes what came since it was asked for pushes
