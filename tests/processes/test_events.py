"""What a broker records as events is read by HTTP, by programs and by `ottla cluster events`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port


def _events(port: int, query: str = "") -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/events{query}", timeout=10) as response:
        return json.load(response)


def _refused_by(bootstrap: str) -> None:
    """Send a record that the topic does not take."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic("small", 1, 1, config={"max.message.bytes": "100"})
    admin.create_topics([topic])["small"].result(20)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "writer"})
    producer.produce("small", b"x" * 1000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors and errors[0] is not None


def test_a_refused_request_is_read_as_an_event_by_http(tmp_path: Path) -> None:
    port = free_port()
    server = OttlaProcess(tmp_path, options=["-o", f"ottla.http.listener=127.0.0.1:{port}"]).start()
    try:
        _refused_by(server.bootstrap)
        (event,) = _events(port, "?kind=refused-request")["events"]
        assert (event["kind"], event["topic"], event["client"]) == ("refused-request", "small", "writer")
        assert "MESSAGE_TOO_LARGE" in json.dumps(event)
        number = event["number"]
        assert _events(port, f"?kind=refused-request&after={number}")["events"] == []
        assert _events(port, "?kind=election&since=9999999999999")["events"] == []
        with pytest.raises(urllib.error.HTTPError, match="400"):
            _events(port, "?since=yesterday")
    finally:
        server.stop()
