"""The broker of quixstreams' suite as one of Ottla in its process, instead of a container.

`tests/conftest.py` imports all of this at its end.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.testing import kafka

KafkaContainer = namedtuple("KafkaContainer", ["broker_address", "internal_broker_address"])  # noqa: PYI024 - as theirs

OPTIONS = {"log.retention.ms": "-1", "group.initial.rebalance.delay.ms": "10"}
"""As the suite gives them to its container."""


@pytest.fixture(scope="session")
def kafka_container_factory() -> Callable[[], Iterator[Any]]:
    def make() -> Iterator[Any]:
        with kafka(options=OPTIONS) as brokers:
            yield KafkaContainer(brokers.bootstrap, brokers.bootstrap)

    return make
