"""Brokers for tests: Ottla as a process, a real Apache Kafka, and `broker`, which is either.

`OTTLA_TEST_BROKER=kafka pytest tests/compat` runs the same tests against the real Kafka: the control that shows a test
says something about brokers and not about Ottla alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.kafka_jars import NoJars
from tests.support.kafka_jars import kafka_jars as fetched_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import RealKafka


class Broker(Protocol):
    """What Ottla and the real Kafka have in common as processes."""

    port: int

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The directory of Apache Kafka's jars, or a skip that says why there is none."""
    try:
        return fetched_jars()
    except NoJars as error:
        pytest.skip(f"no Apache Kafka jars: {error}")


@pytest.fixture(scope="session")
def real_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A real Kafka for the whole run; tests use topics and groups of their own."""
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka") / "broker")
    kafka.start()
    yield kafka
    kafka.stop()


@pytest.fixture
def ottla_server(tmp_path: Path) -> Iterator[OttlaProcess]:
    """An Ottla of the test's own; its log must hold no traceback at the end."""
    yield from _running(tmp_path / "ottla")


@pytest.fixture(scope="module")
def ottla_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaProcess]:
    """An Ottla shared by the tests of a file; its log must hold no traceback at the end."""
    yield from _running(tmp_path_factory.mktemp("ottla") / "broker")


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Broker:
    """Ottla, or the real Kafka where OTTLA_TEST_BROKER=kafka."""
    which = "real_kafka" if os.environ.get("OTTLA_TEST_BROKER") == "kafka" else "ottla_module"
    found: Broker = request.getfixturevalue(which)
    return found


def _running(directory: Path) -> Iterator[OttlaProcess]:
    server = OttlaProcess(directory).start()
    yield server
    assert server.process is not None
    if server.process.poll() is None:
        assert server.stop() == 0, server.log
    server.assert_log_is_clean()
