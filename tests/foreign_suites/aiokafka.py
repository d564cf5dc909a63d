"""The fixtures of aiokafka's suite with a broker of Ottla in its process instead of a container.

`tests/conftest.py` imports all of this at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ottla.testing import kafka


@dataclass
class KafkaServer:
    """What aiokafka's tests ask of their broker."""

    host: str
    port: int
    ssl_port: int = 0
    sasl_plain_port: int = 0
    sasl_ssl_port: int = 0
    container: None = None

    @property
    def hosts(self) -> list[str]:
        return [f"{self.host}:{self.port}"]


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with kafka(options={"num.partitions": "2"}) as brokers:
        host, port = brokers.bootstrap.split(":")
        yield KafkaServer(host, int(port))


@pytest.fixture(scope="session")
def docker() -> None:
    """There is none."""


@pytest.fixture(scope="session")
def kafka_image() -> str:
    """The version that decides which tests the suite skips."""
    return "ottla:2.13_4.0.0"


@pytest.fixture(scope="session")
def ssl_folder() -> None:
    """There are no certificates."""


@pytest.fixture(scope="class")
def acl_manager() -> None:
    """There are no ACLs."""


@pytest.fixture(scope="class")
def kafka_config() -> None:
    """There are no SCRAM users."""


@pytest.fixture(scope="class")
def kerberos_utils() -> None:
    """There is no Kerberos."""
