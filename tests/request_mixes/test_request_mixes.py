"""Valid requests in odd orders: each is answered as Kafka answers it, and no group is spoiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.request_mixes.campaign import errors_of, findings
from tests.request_mixes.settings import ottla
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(900)]

SEEDS = range(1, 1 + int(os.environ.get("OTTLA_MIXES", "16")))


@pytest.fixture
def broker_of_mixes(tmp_path: Path) -> Iterator[OttlaProcess]:
    process = ottla(tmp_path).start()
    yield process
    process.stop()


def test_valid_requests_in_odd_orders_are_answered_as_kafka_does(
    broker_of_mixes: OttlaProcess, real_kafka: RealKafka
) -> None:
    found = list(findings(broker_of_mixes.port, real_kafka.port, SEEDS))
    assert found == [], "\n".join(map(str, found))
    assert errors_of(broker_of_mixes.log) == {}
