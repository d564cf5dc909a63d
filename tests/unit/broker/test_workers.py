"""Tests what the owner of several workers decides for each of them; tests/processes/test_workers.py runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ottla.broker import config as configuration
from ottla.broker.config import BrokerConfig
from ottla.broker.process.workers import check_listeners, of_first_worker, worker_settings
from ottla.core.settings import InvalidSettings
from ottla.storage.directory_names import parse_partition_directory


def read(options: Mapping[str, str]) -> BrokerConfig:
    return configuration.read(file=None, environment={}, options=options)[0]


def test_each_worker_has_its_own_id_port_and_directory() -> None:
    config = read({"listeners": "A://127.0.0.1:9092,B://[::1]:9192", "node.id": "5"})
    first, third = (worker_settings(config, [Path("/d"), Path("/e")], number, 3) for number in (1, 3))
    assert (first["node.id"], third["node.id"]) == ("5", "7")
    assert first["listeners"] == "A://127.0.0.1:9092,B://[::1]:9192"
    assert third["listeners"] == "A://127.0.0.1:9094,B://[::1]:9194"
    assert (first["log.dirs"], third["log.dirs"]) == ("/d,/e", "/d/workers/3,/e/workers/3")


def test_no_directory_of_a_worker_has_the_name_of_a_partition() -> None:
    settings = worker_settings(read({}), [Path("/data")], 2, 2)
    below = Path(settings["log.dirs"]).relative_to("/data")
    assert all(parse_partition_directory(part) is None for part in below.parts)


def test_workers_have_one_replica_unless_the_settings_want_more() -> None:
    config = read({"transaction.state.log.replication.factor": "2"})
    settings = worker_settings(config, [Path("/data")], 1, 2)
    assert settings["offsets.topic.replication.factor"] == "1"
    assert settings["transaction.state.log.min.isr"] == "1"
    assert "transaction.state.log.replication.factor" not in settings


def test_the_memory_of_requests_is_divided() -> None:
    config = read({"queued.max.request.bytes": str(64 << 20)})
    assert worker_settings(config, [Path("/data")], 1, 4)["queued.max.request.bytes"] == str(16 << 20)
    least = read({"queued.max.request.bytes": str(1 << 20)})
    assert worker_settings(least, [Path("/data")], 1, 4)["queued.max.request.bytes"] == str(1 << 20)


def test_old_names_of_settings_are_overridden_under_the_name_that_was_used(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=3\nlog.dir=/old\nadvertised.listeners=PLAINTEXT://w{worker}.example:9092\n")
    given, _ = configuration.read(file=file, environment={}, options={})
    settings = worker_settings(given, [Path("/old")], 2, 2)
    again, _ = configuration.read(file=file, environment={}, options=settings)
    assert again.server.node_id == 4
    assert again.server.log_dirs == ("/old/workers/2",)
    assert again.net.advertised_listeners == ("PLAINTEXT://w2.example:9092",)


def test_listeners_that_workers_cannot_share_are_invalid_settings() -> None:
    check_listeners(["PLAINTEXT://127.0.0.1:9092", "A://127.0.0.1:0"], 4)
    check_listeners(["PLAINTEXT://127.0.0.{worker}:9092"], 4)
    for text in ("PLAINTEXT://127.0.0.1:65534", "PLAINTEXT://127.0.0.{worker}:70000"):
        with pytest.raises(InvalidSettings, match="larger than 65535"):
            check_listeners([text], 4)
    with pytest.raises(InvalidSettings, match="would listen there"):
        check_listeners(["A://127.0.0.1:9092", "B://127.0.0.1:9093"], 2)
    assert of_first_worker(read({"listeners": "A://h{worker}:1"})).net.listeners == ("A://h1:1",)


def test_a_broker_of_its_own_does_not_import_what_workers_need() -> None:
    code = (
        "import sys, ottla.broker.process.server; "
        "print([name for name in sys.modules if name.startswith('ottla.') and ('worker' in name or 'socket' in name)])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "ottla.broker.process.workers" not in found
    assert "ottla.metadata_store.socket_store" not in found
