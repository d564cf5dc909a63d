"""The broker of kafka-python's integration suite as one of Ottla in its process, instead of a Kafka that it starts.

`test/integration/conftest.py` imports all of this at its end.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.testing import kafka

OPTIONS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "2"}
"""As in the suite's own kafka.properties."""


@pytest.fixture(scope="module")
def kafka_broker_factory() -> Iterator[Callable[..., Any]]:
    fixture = importlib.import_module("test.integration.fixtures").KafkaFixture
    with kafka(options=OPTIONS) as brokers:
        host, port = brokers.bootstrap.split(":")

        def make(**parameters: object) -> Any:
            if parameters:
                pytest.skip(f"a broker with {parameters}")
            broker = object.__new__(fixture)
            vars(broker).update(host=host, port=int(port), partitions=4, replicas=1, transport="PLAINTEXT")
            vars(broker).update(sasl_mechanism=None, external=True, running=True, tmp_dir=None, child=None)
            return broker

        yield make
